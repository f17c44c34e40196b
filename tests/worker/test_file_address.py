"""Where a node gives its checkpoints to others: where others are, or where copies are asked for."""

from __future__ import annotations

import socket

import pytest

from recovery.config import load
from recovery.transport.local_address import address_towards, is_local
from recovery.worker.file_exchange import serving_host

WORKER = {
    "MS_ROLE": "MS_WORKER",
    "MS_WORKER_NUM": "2",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
    "MS_ENABLE_RECOVERY": "1",
    "MS_RECOVERY_PATH": "/tmp/never-made",
    "MS_NODE_ID": "w0",
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ""),
        ({"MS_CHECKPOINT_COPIES": "1"}, "127.0.0.1"),
        ({"MS_CHECKPOINT_COPIES": "1", "MS_WORKER_IP": "127.0.0.2"}, "127.0.0.2"),
        ({"MS_WORKER_IP": "127.0.0.2"}, ""),
        ({"MS_WORKER_IP": "10.1.2.3"}, "10.1.2.3"),
        ({"MS_WORKER_IP": "10.1.2.3", "MS_CHECKPOINT_COPIES": "0"}, ""),
        ({"MS_WORKER_IP": "::1"}, ""),
        ({"MS_WORKER_IP": "10.1.2.3", "MS_ROLE": "MS_PSERVER", "MS_SERVER_NUM": "1"}, ""),
        ({"MS_SCHED_HOST": "no-such-host.invalid"}, ""),
    ],
)
def test_a_node_serves_where_others_are(given: dict[str, str], expected: str) -> None:
    assert serving_host(load({**WORKER, **given})) == expected


def test_the_address_towards_a_host_is_one_of_this_machine() -> None:
    found = address_towards("127.0.0.1", 9)
    with socket.socket() as probe:
        probe.bind((found, 0))
    assert address_towards("no-such-host.invalid", 9) == ""


@pytest.mark.parametrize("name", ["x" * 64, "a..b", "a\0b"])
def test_what_is_no_name_of_a_host_is_none_of_this_one(name: str) -> None:
    assert address_towards(name, 9) == ""
    assert not is_local(name)
