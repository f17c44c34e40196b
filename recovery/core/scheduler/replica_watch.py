"""What the ranks have said of what they must have alike, save by save (MS_COMPARE_REPLICAS)."""

from __future__ import annotations

from recovery.core.ids import Generation, Rank
from recovery.core.policy.replica_difference import Fingerprints

REFUSED_MAX = 3
"""How often in a row a save may be refused. Damage does not come back when the steps are done again; what does is no damage."""

STEPS_MAX = 8
"""How many saves may be under way of which a rank says nothing, or has not yet."""


class ReplicaWatch:
    """Of this process of the scheduler. Nothing of it is stored but what was refused."""

    def __init__(self) -> None:
        """Nothing was saved yet."""
        self.compares = True
        self.said: dict[int, dict[Rank, Fingerprints]] = {}
        """By step and rank, of the saves of this generation since the last one that all ranks had alike."""
        self.told_uncompared = False
        """It was said that a step is committed of which not all ranks have told what they hold."""
        self.distrusts_memory = False
        """Until the next plan: what is in the ranks' memories may be what differs."""
        self._generation = Generation(0)
        self._refused_step, self._refused_times = 0, 0
        """The newest step at which the ranks differed; how often they have since they last agreed at such a step."""
        self._refused: dict[Rank, Fingerprints] = {}
        """What they had then."""

    def note(self, generation: Generation, step: int, rank: Rank, replica: Fingerprints) -> None:
        """A rank has saved a step."""
        if generation != self._generation:
            self._generation, self.said = generation, {}
        self.said.setdefault(step, {})[rank] = replica
        for oldest in sorted(self.said)[:-STEPS_MAX]:
            del self.said[oldest]

    def agreed(self, step: int) -> None:
        """All ranks have the same at this step."""
        self.said = {known: by_rank for known, by_rank in self.said.items() if known > step}
        if step >= self._refused_step:
            self._refused_times, self._refused = 0, {}

    def is_of_training(self, step: int) -> bool:
        """Does training make the ranks differ, which do at this step? The same has come of the same steps, or they differ again and again."""
        return self._refused_times >= REFUSED_MAX or self._refused == self.said[step]

    def refuse(self, step: int) -> None:
        """They differ at this step, which is to be done again."""
        self._refused_step, self._refused_times = step, self._refused_times + 1
        self._refused, self.distrusts_memory = self.said[step], True
