from __future__ import annotations

import errno
import re
import socket

import pytest

from recovery.errors import ProcessError
from recovery.transport.listening import _explained
from tests.transport.wire import HOST, Receiver, run, serving


def refusal(host: str, port: int) -> str:
    async def main() -> str:
        with pytest.raises(ProcessError) as caught:
            await Receiver().server.start(host, port)
        return str(caught.value)

    return run(main())


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server((HOST, 0)) as holder:
        port = holder.getsockname()[1]

        assert refusal(HOST, port) == (
            f"PORT_IN_USE: MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT={port}: cannot listen (EADDRINUSE: address already in use). "
            "Another scheduler or program may hold the port (ss -ltnp); stop it or choose another MS_SCHED_PORT."
        )


def test_a_second_scheduler_on_the_same_port_is_refused() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            with pytest.raises(ProcessError, match="PORT_IN_USE"):
                await Receiver().server.start(HOST, port)

    run(main())


def test_an_address_of_another_machine_is_named() -> None:
    assert refusal("192.0.2.1", 0) == (
        "HOST_UNUSABLE: MS_SCHED_HOST='192.0.2.1': is no address of this machine, so the scheduler cannot listen there. "
        "Start the scheduler on the machine that owns it, or use one of its addresses."
    )


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".b", "nul\0byte"])
def test_a_name_that_does_not_resolve_is_named(host: str) -> None:
    text = refusal(host, 0)

    assert re.fullmatch(
        r"HOST_UNUSABLE: MS_SCHED_HOST=" + re.escape(repr(host)) + r": does not resolve \(.+\)\. "
        r"Set it to an IP address of the scheduler's machine\.",
        text,
    )


def test_an_empty_host_is_not_taken_for_every_address() -> None:
    assert refusal("", 0) == (
        "HOST_UNUSABLE: MS_SCHED_HOST='': is empty. Set it to an IP address of the scheduler's machine."
    )


def test_a_port_that_this_user_may_not_use_is_named() -> None:
    denied = PermissionError(errno.EACCES, "any text of the system")

    assert "MS_SCHED_PORT=80: cannot listen (EACCES: permission denied)." in str(_explained(HOST, 80, denied))


def test_a_name_with_several_addresses_gets_one_port_for_all() -> None:
    async def main() -> None:
        receiver = Receiver()
        port = await receiver.server.start("localhost", 0)

        assert {each.sockets[0].getsockname()[1] for each in receiver.server._listeners} == {port}
        await receiver.server.stop()

    run(main())
