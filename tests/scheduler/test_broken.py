"""A fault of the scheduler's own program ends its process: a state that is half changed is not served on."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery import config
from recovery.core.ids import ConnectionId, NodeId
from recovery.core.records import EventKind
from recovery.core.scheduler.effects import GraceTimer
from recovery.core.scheduler.stimuli import StopAsked, TimerFired
from recovery.errors import ROWS, Cause, ProcessError
from recovery.scheduler.service import serve
from recovery.store.reader import read_job, read_newest_events
from tests.cluster.harness import free_port
from tests.scheduler.test_backpressure import scheduler
from tests.transport.wire import HOST, run
from tests.worker.test_broken_threads import without_threads


def test_scheduler_ends_when_its_machine_cannot_take_what_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[int] = []

    async def main() -> None:
        async with scheduler(tmp_path, 2) as (service, _, _):
            broken = TimerFired(GraceTimer(NodeId("nobody")))
            service._deliver(broken)
            service._deliver(broken)
            left.append(len(service._held))

    with pytest.raises(ProcessError) as ended:
        run(main())
    assert (ended.value.code, ended.value.temporary) == ("SCHEDULER_BROKEN", True)
    assert isinstance(ended.value.__cause__, KeyError)
    assert left == [1], "nothing is taken behind it"
    [said] = [record for record in caplog.records if "event=scheduler_broken" in record.message]
    assert "TimerFired (KeyError: 'nobody')" in said.message
    assert said.exc_info is not None, "whoever mends it finds where it was"
    assert read_job(tmp_path) is not None, "what was written stays"


def test_scheduler_whose_state_cannot_be_ends_before_it_writes_what_follows_from_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with scheduler(tmp_path, 2) as (service, _, _):
            service._machine.state.speakers[ConnectionId(1)] = NodeId("nobody")
            service._deliver(StopAsked("SIGTERM"))

    with pytest.raises(ProcessError) as ended:
        run(main())
    assert ended.value.code == "SCHEDULER_BROKEN"
    assert "belongs to exactly one node" in str(ended.value)
    kinds = [row.event.kind for row in read_newest_events(tmp_path, tuple(EventKind), 9)]
    assert EventKind.SCHEDULER_STARTED in kinds
    assert EventKind.SCHEDULER_STOPPED not in kinds


def test_scheduler_that_finds_no_thread_ends_by_name(tmp_path: Path) -> None:
    """It ended with a traceback and 1, the script's own, and its job with it."""
    settings = config.load(
        {
            "MS_ROLE": "MS_SCHED",
            "MS_WORKER_NUM": "1",
            "MS_SCHED_HOST": HOST,
            "MS_SCHED_PORT": str(free_port()),
            "MS_ENABLE_RECOVERY": "1",
            "MS_RECOVERY_PATH": str(tmp_path / "recovery"),
        }
    )
    with (
        without_threads(),
        pytest.raises(ProcessError, match=r"NO_THREAD: a thread that it needs .*can't start new thread"),
    ):
        serve(settings)
    assert ROWS["NO_THREAD"].cause is Cause.TEMPORARY
