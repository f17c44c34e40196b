"""What a worker says of its place, asked while the main thread comes to the end of its loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from recovery.core.ids import Generation
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import StopAt
from recovery.worker.executor import Executor
from recovery.worker.training_control import TrainingControl
from tests.worker.test_training_control import PAUSE_LIMIT_MS, plan


class Ending(TrainingControl):
    """Its main thread comes to the end of its loop, one step on, behind each look at where it is."""

    @override
    def stop_at(self, generation: int, step: int, *, ends_training: bool = False) -> tuple[int, bool]:
        seen = super().stop_at(generation, step, ends_training=ends_training)
        self.stop_point.leave_loop(seen[0] + 1)
        return seen


def test_no_step_is_said_to_be_the_last_before_which_the_loop_was_not_over(tmp_path: Path) -> None:
    control = Ending(pause_limit_ms=PAUSE_LIMIT_MS, on_pause=lambda _: None)
    control.open(plan(committed_step=10))
    said: list[Any] = []

    async def ask() -> None:
        parts: dict[str, Any] = dict.fromkeys(["client", "copy_work", "object_storage", "finished_file"])
        store: Any = SimpleNamespace(recovery_path=tmp_path)
        executor = Executor(
            **parts,
            training_control=control,
            local_store=store,
            abort_timeout_ms=1_000,
            deliver=said.append,
            replace=lambda *_: None,
        )
        executor.carry_out(StopAt(1, Generation(1), 20, ends_training=False))

    asyncio.run(ask())
    assert said == [s.Positioned(Generation(1), 10, stops=True, step=20, is_over=False)]
    assert control.stop_point.is_over
