"""Object storage of a simulated job: what a process is ordered to send comes there after a while, unless its file is gone or another order comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.core.held import HeldCheckpoint
from recovery.core.worker import stimuli as s

if TYPE_CHECKING:
    from tests.simulation.files import Content, Saved
    from tests.simulation.process import Process
    from tests.simulation.world import World

_AGAIN_MS = 2_000


class Storage:
    """What all ranks have sent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ordered: dict[Process, HeldCheckpoint] = {}
        self._parts: dict[tuple[str, int, int, int], dict[int, Content]] = {}
        """By job, run, generation and step: what each rank's part holds."""

    def order(self, process: Process, checkpoint: HeldCheckpoint) -> None:
        """The scheduler has ordered it."""
        self._ordered[process] = checkpoint
        self.world.clock.soon("uploads", 10, 3_000, lambda: self._try(process, checkpoint))

    def pinned(self, process: Process) -> tuple[int, ...]:
        """What its disk keeps for it."""
        ordered = self._ordered.get(process)
        return () if ordered is None else (ordered.step,)

    def _try(self, process: Process, checkpoint: HeldCheckpoint) -> None:
        clock = self.world.clock
        if not process.alive or self._ordered.get(process) is not checkpoint:
            clock.seen["an upload was overtaken"] += 1
            return
        if clock.now < process.frozen_until or clock.draw("uploads").random() < 0.1:
            clock.seen["an upload failed"] += 1
            clock.later(_AGAIN_MS, lambda: self._try(process, checkpoint))
            return
        file = self.world.disk[checkpoint.path.rpartition("/")[0]].get(checkpoint.step)
        is_there = file is not None and not file.gone and file.held.digest == checkpoint.digest
        if file is not None and is_there:
            self.take(file)
        clock.seen["a part was sent" if is_there else "a part was gone"] += 1
        done = s.Uploaded(process.request(), checkpoint.step, checkpoint.digest, is_there)
        process.handle(done)

    def take(self, file: Saved) -> None:
        """A rank's part arrives: of one generation and step it has a single one, sent again also from where a person has copied it to.

        A copy comes with its manifest, and is the same part. Here it has a digest of its own, so that a file found bad can be told from the one
        it was made of: what both hold is compared.
        """
        part = file.held
        parts = self._parts.setdefault((file.job, part.run, part.generation, part.step), {})
        is_same = parts.setdefault(file.rank, file.content) == file.content
        assert is_same, f"I8: two parts of rank {file.rank}: {part}"
        if len(parts) == self.world.shape.rules.worker_count:
            self.world.clock.seen["a step was sent by all ranks"] += 1
