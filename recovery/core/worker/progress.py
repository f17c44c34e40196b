"""How far this rank is: for the heartbeats, and written down for people. Recovery does not need it."""

from __future__ import annotations

import msgspec

from recovery.core.effects import Persist
from recovery.core.ids import Generation, NodeId, Rank
from recovery.core.messages import Admitted
from recovery.core.records import StepRecord
from recovery.core.worker.activity import TrainingIntervals
from recovery.core.worker.stimuli import StepsDone


class Progress:
    """The newest step of one process, and the first one of each generation."""

    def __init__(self, node_id: NodeId, *, heartbeat_ms: int) -> None:
        """No step was applied yet.

        Args:
            node_id: of this process.
            heartbeat_ms: the longest time between two notes.
        """
        self._node_id = node_id
        self._newest = StepsDone(generation=Generation(0), step=0, epoch=0, step_in_epoch=0)
        self._begun_in = Generation(0)
        """The newest generation whose first step was applied; 0: none."""
        self._stretches = TrainingIntervals(heartbeat_ms=heartbeat_ms)
        """The times in which it trained without a pause."""

    @property
    def newest(self) -> StepsDone:
        """What the main thread has applied last; generation 0: nothing."""
        return self._newest

    @property
    def step(self) -> int:
        """The newest step that was applied; 0: none."""
        return self._newest.step

    def has_begun(self, generation: Generation) -> bool:
        """Was a step of this generation applied? Then its world has met."""
        return self._begun_in == generation

    def applied(self, done: StepsDone) -> None:
        """The main thread has come so far."""
        self._newest = done

    def begin(self, generation: Generation) -> None:
        """The first step of a generation was applied."""
        self._begun_in = generation

    def stopped(self, generation: Generation, step: int) -> None:
        """The main thread has left the training function behind this step."""
        self._newest = msgspec.structs.replace(
            self._newest, generation=generation, step=step, epoch=0, step_in_epoch=0
        )

    def note(
        self,
        rank: Rank | None,
        admitted: Admitted | None,
        now_ms: int,
        *,
        trains: bool,
        stopped: bool = False,
    ) -> list[Persist]:
        """Write how far this rank is: with its first step, once per heartbeat and when it stops.

        Args:
            rank: of this process; None: it has none yet and there is nothing to write.
            admitted: as it was let in; None: it was not.
            now_ms: on the monotonic clock.
            trains: False: it is out of training, or its data plane broke, so this is not a time in which it trained.
            stopped: training stops here.
        """
        if admitted is None or rank is None or not self._newest.generation:
            return []
        record = StepRecord(
            node_id=self._node_id,
            rank=rank,
            run=admitted.run,
            generation=self._newest.generation,
            incarnation=admitted.incarnation,
            step=self._newest.step,
            epoch=self._newest.epoch,
            step_in_epoch=self._newest.step_in_epoch,
        )
        if not trains or not self.has_begun(record.generation):
            return [Persist((record,))]
        self._stretches.note(record.generation, record.step, now_ms)
        lasted = self._stretches.record(
            record.node_id, record.rank, record.run, record.incarnation, stopped=stopped
        )
        return [Persist((record, lasted))]
