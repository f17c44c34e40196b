"""A launcher's report of how a process ended reaches a scheduler that is busy or started again itself; one that does not is missed aloud."""

from __future__ import annotations

import asyncio

import pytest

from recovery.core.ids import NodeId
from recovery.core.messages import Exited
from recovery.launch import scheduler_contact
from recovery.launch.scheduler_contact import SchedulerContact
from recovery.transport.access import Access
from recovery.transport.local_address import reserved_port
from tests.transport.wire import HOST, Receiver, run, until

KILLED = "killed by SIGKILL"


async def report(port: int, *, goes_on: bool) -> None:
    exited = Exited(node_id=NodeId("worker_0"), pid=7, reason=KILLED)
    await SchedulerContact(HOST, port, Access()).tell(exited, goes_on=goes_on)


def test_a_scheduler_that_is_started_again_meanwhile_is_told() -> None:
    async def told() -> list[str]:
        receiver = Receiver()
        with reserved_port(HOST) as reserved:
            port = reserved.getsockname()[1]
            reporting = asyncio.create_task(report(port, goes_on=True))
            await asyncio.sleep(0.1)
            await receiver.server.start(HOST, port)
            try:
                await reporting
                await until(lambda: receiver.messages, "the report")
            finally:
                await receiver.server.stop()
        return [message.reason for _, message, _ in receiver.messages if isinstance(message, Exited)]

    assert run(told()) == [KILLED]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_report_that_reaches_nobody_is_said_where_the_job_goes_on(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduler_contact, "_STARTED_AGAIN_S", 0.1)
    with reserved_port(HOST) as reserved:
        run(report(reserved.getsockname()[1], goes_on=goes_on))
    said = "".join(capfd.readouterr())
    assert (f"was not told how worker_0 (pid 7) ended ({KILLED})" in said) is goes_on
