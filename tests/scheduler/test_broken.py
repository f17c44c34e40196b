"""A fault of the scheduler's own program ends its process: a state that is half changed is not served on."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.ids import NodeId
from recovery.core.scheduler.effects import GraceTimer
from recovery.core.scheduler.stimuli import TimerFired
from recovery.store.reader import read_job
from tests.scheduler.test_backpressure import scheduler
from tests.transport.wire import run


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

    with pytest.raises(KeyError):
        run(main())
    assert left == [1], "nothing is taken behind it"
    [said] = [record.message for record in caplog.records if "event=scheduler_broken" in record.message]
    assert "TimerFired: KeyError: 'nobody'" in said
    assert read_job(tmp_path) is not None, "what was written stays"
