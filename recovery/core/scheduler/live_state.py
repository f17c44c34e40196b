"""What the scheduler knows of live rollback: in whose memory the plan's state is, and what the ranks have taken."""

from __future__ import annotations

from recovery.core.ids import Rank
from recovery.core.policy.live import LiveSource


class LiveRollback:
    """Of the current generation, but for what is refused."""

    def __init__(self) -> None:
        """Each rank has its checkpoint."""
        self.sources: tuple[LiveSource, ...] = ()
        """In whose memories the plan found its state; none: each rank has its checkpoint."""
        self._of_rank: dict[Rank, LiveSource] = {}
        """Where there are several: the one that gives each rank its part."""
        self.spoken: set[Rank] = set()
        """Ranks that have said what they took of it."""
        self.firsts: dict[Rank, tuple[Rank, str]] = {}
        """By source: which rank has said first what it had taken there, and what."""
        self.refused: set[int] = set()
        """Steps whose state could not be taken, or was not the same on all ranks. Not stored: the next scheduler may try once more."""

    def source_of(self, rank: Rank) -> LiveSource | None:
        """The source that gives a rank its state; None: it has its checkpoint."""
        if self._of_rank or not self.sources:
            return self._of_rank.get(rank)
        return self.sources[0]

    def restore(self, sources: tuple[LiveSource, ...]) -> None:
        """The plan is that of an earlier process. What the ranks have taken they say again."""
        self.sources = sources
        self._of_rank = {rank: source for source in sources for rank in source.replicas}

    def begin(self, sources: tuple[LiveSource, ...], step: int) -> None:
        """A plan to `step` is made. What is newer is trained again: its states are others then than those that were refused."""
        self.restore(sources)
        self.spoken.clear()
        self.firsts.clear()
        self.refused = {refused for refused in self.refused if refused <= step}
