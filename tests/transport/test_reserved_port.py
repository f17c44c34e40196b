"""A port that is looked for and then listened at is still there: nobody else is given it meanwhile."""

from __future__ import annotations

import socket

import pytest

from recovery.transport.local_address import reserved_port

HOST = "127.0.0.1"


def test_a_reserved_port_is_its_own_servers_at_each_start_and_no_other_programs() -> None:
    with reserved_port(HOST) as reserved:
        port = reserved.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind((HOST, port))
        for _ in range(2):
            with (
                socket.create_server((HOST, port)) as server,
                socket.create_connection((HOST, port)) as client,
            ):
                assert server.getsockname()[1] == port
                client.close()
