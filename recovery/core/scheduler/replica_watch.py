"""What the ranks have said of what they must have alike, save by save (MS_COMPARE_REPLICAS).

Whether a step is alike is seen from its files' joint digests, which are stored. Here is what names the tensors, and how often it was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from recovery.core.ids import Generation, Rank
from recovery.core.policy import replica_difference
from recovery.core.policy.replica_difference import Fingerprints
from recovery.core.records import CheckpointRecord, CheckpointState

REFUSED_MAX = 3
"""In how many generations in a row saves may be refused. Damage does not come back when the steps are done again; what does is no damage."""

STEPS_MAX = 8
"""How many saves may be under way of which a rank says nothing, or has not yet."""


class ReplicaWatch:
    """Of this process of the scheduler."""

    def __init__(self) -> None:
        """Nothing was saved yet."""
        self.told_uncompared = False
        """It was said that a step is committed of which not all ranks have told what they hold."""
        self.distrusts_memory = False
        """Until the next plan: what is in the ranks' memories may be what differs."""
        self._said: dict[int, dict[Rank, Fingerprints]] = {}
        """By step and rank, of the saves of this generation since the last one that all ranks had alike."""
        self._generation = Generation(0)
        self._refused_step, self._refused_in, self._refused_times = 0, Generation(0), 0
        """The first step at which the ranks differed in the newest generation in which they did; in how many they have since they last agreed there."""
        self._refused: Mapping[Rank, str] = {}
        """What they had at that step, as joint digests."""

    def restore(self, rows: Iterable[CheckpointRecord]) -> None:
        """Take over what the scheduler's last process refused last, as far as the rows of the run show it."""
        by_step: dict[int, dict[Rank, CheckpointRecord]] = {}
        for row in rows:
            by_step.setdefault(row.step, {})[row.rank] = row
        for step, of_ranks in by_step.items():
            digests = {rank: row.replica for rank, row in of_ranks.items()}
            refused = [row.generation for row in of_ranks.values() if row.state is CheckpointState.INVALID]
            if refused and replica_difference.digests_differ(digests.values()):
                self._note_refused(max(refused), step, digests)
        self._refused_times = min(self._refused_times, 1)

    def note(self, generation: Generation, step: int, rank: Rank, replica: Fingerprints) -> None:
        """A rank has saved a step."""
        if generation != self._generation:
            self._generation, self._said = generation, {}
        self._said.setdefault(step, {})[rank] = replica
        for oldest in sorted(self._said)[:-STEPS_MAX]:
            del self._said[oldest]

    def said(self, step: int) -> Mapping[Rank, Fingerprints]:
        """What the ranks have told of a step in this generation."""
        return self._said.get(step, {})

    def agreed(self, generation: Generation, step: int) -> None:
        """All ranks have the same at this step. Damage is known to be over by what was done again."""
        self._said = {known: by_rank for known, by_rank in self._said.items() if known > step}
        if generation > self._refused_in and step >= self._refused_step:
            self._refused_times, self._refused = 0, {}

    def is_of_training(self, generation: Generation, digests: Mapping[Rank, str]) -> bool:
        """Does training make the ranks differ, which do in this? The same has come of the same steps, or they differ again and again.

        Only steps that were done again say so: behind damage all saves of its generation differ, as many as come before it is known.
        """
        if generation <= self._refused_in:
            return False
        return self._refused_times >= REFUSED_MAX or self._refused == digests

    def refuse(self, generation: Generation, step: int, digests: Mapping[Rank, str]) -> None:
        """They differ at this step, which is to be done again."""
        self.distrusts_memory = True
        self._note_refused(generation, step, digests)

    def _note_refused(self, generation: Generation, step: int, digests: Mapping[Rank, str]) -> None:
        if (generation, -step) <= (self._refused_in, -self._refused_step):
            return
        self._refused_times += generation > self._refused_in
        self._refused_step, self._refused_in, self._refused = step, generation, digests
