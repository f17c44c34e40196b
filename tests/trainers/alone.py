"""A rank that has nobody beside it, as Accelerate and the Trainer of transformers see their session: no cluster, and no rollback."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recovery.checkpoint.position import Position
from recovery.worker.phase_clock import PhaseClock


class Alone:
    """One entry, from the beginning or from a folder of an earlier one."""

    job, host, run, rank, local_rank = "0123456789ab-alone", "127.0.0.1", 1, 0, 0
    world_size = local_world_size = generation = 1
    interrupted = False

    def __init__(self, folder: Path | None = None, step: int = 0) -> None:
        self.resume_from, self.step, self.epoch, self.step_in_epoch, self.total_steps = folder, step, 0, 0, 0
        self.versions: dict[str, str] = {}
        self.phases = PhaseClock()
        self.loop_watch = SimpleNamespace(closed=lambda: None)

    @property
    def position(self) -> Position:
        """Where training stands."""
        return Position(step=self.step, epoch=self.epoch, batch=self.step_in_epoch)

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        yield

    def applied(self, *, step: int, epoch: int, step_in_epoch: int) -> None:
        self.step = step

    def check(self) -> None: ...

    def refuse_drains(self, why: str) -> None: ...

    def report(self, **values: Any) -> None: ...

    def on_generation_end(self, close: Callable[[], None]) -> None: ...
