"""Which rank holds the others up, and from when on that is more than slow (MS_STEP_TIMEOUT=auto)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from recovery.core.phases import Phase, PhaseReport

LIMIT_FACTOR = 3
"""Of the longest that was seen. At twice it a step that waits for one slow disk would be judged, at six times a hang of minutes goes unseen."""

LIMIT_MS_MIN = {
    Phase.START: 300_000,
    Phase.FIRST_BATCH: 60_000,
    Phase.DATA: 5_000,
    Phase.COMPUTE: 5_000,
    Phase.OWN_CODE: 180_000,
    Phase.EVALUATION: 180_000,
    Phase.SAVE: 180_000,
    Phase.STEP: 180_000,
}
"""The least limit. Data and compute come in every step, so that what is usual is known soon; what a script does besides comes now and then, and
may be something else each time: a first evaluation that leaves the model in training mode, samples, an upload. So may a start: one without warm
caches behind one with them. A phase that is not here has no limit."""
LEAST_MS = min(LIMIT_MS_MIN.values())
"""What takes less is never judged."""


class RankPhase(NamedTuple):
    """What one rank said last."""

    rank: int
    node_id: str
    step: int
    report: PhaseReport


class Suspect(NamedTuple):
    """A rank that does not come on."""

    rank: int
    node_id: str
    step: int
    """The last one that it has done."""
    phase: Phase
    lasting_ms: int
    limit_ms: int
    limit_of: Phase
    """Whose limit that is."""
    waiting: int
    """How many ranks wait for it."""
    left_out: int = 0
    """So many collectives fewer than a rank that waits for it has it begun, with more steps done. Then times and limit are those of that rank."""

    def is_same(self, other: Suspect) -> bool:
        """Are they the same rank at the same place?"""
        return self[:4] == other[:4]

    @property
    def sentence(self) -> str:
        """For people."""
        lasting, limit = f"{self.lasting_ms / 1000:.1f} s", f"{self.limit_ms / 1000:.1f} s"
        if self.left_out:
            return (
                f"rank {self.rank} ({self.node_id}) has left out {self.left_out} of the collectives before the end of step {self.step}: ranks that wait "
                f"in one, with fewer steps done: {self.waiting}, for {lasting}, its limit is {limit}"
            )
        others = f"; ranks that wait for it: {self.waiting}" if self.waiting else ""
        return f"rank {self.rank} ({self.node_id}) is in {self.phase.value} behind step {self.step} for {lasting}, its limit is {limit}{others}"


def limit_ms(phase: Phase, longest_ms: Mapping[Phase, int]) -> int | None:
    """How long a phase may last; None: as long as it takes, since none was seen to its end, or it has no limit.

    Args:
        phase: of a rank.
        longest_ms: of each phase, the longest that any rank of this run has come through.
    """
    least, longest = LIMIT_MS_MIN.get(phase), longest_ms.get(phase)
    return None if least is None or longest is None else max(least, LIMIT_FACTOR * longest)


def suspect(
    ranks: Sequence[RankPhase], longest_ms: Mapping[Phase, int], done: Sequence[RankPhase] = ()
) -> Suspect | None:
    """The rank that the others wait for, where it takes longer than is known of what it does; None: nobody does.

    Who has begun more collectives, or done more steps, waits for who is furthest behind. Of those that are equally far the ones that compute may
    wait in a collective, so one that does anything else goes first.

    Args:
        ranks: all that train, each as it spoke last; not empty.
        longest_ms: as of `limit_ms`.
        done: those that have trained to the end, as far as they have spoken since.
    """
    if (one := _has_left_one_out(ranks, longest_ms, done)) is not None:
        return one
    furthest_behind = min(_reached(rank) for rank in ranks)
    behind = [rank for rank in ranks if _reached(rank) == furthest_behind]
    elsewhere = [rank for rank in behind if rank.report.phase is not Phase.COMPUTE] or behind
    held_up_by = max(elsewhere, key=lambda rank: rank.report.lasting_ms)
    report = held_up_by.report
    most_ms = limit_ms(report.phase, longest_ms)
    if most_ms is None or report.lasting_ms < most_ms:
        return None
    waiting = len(ranks) - len(elsewhere)
    return Suspect(*held_up_by[:3], report.phase, report.lasting_ms, most_ms, report.phase, waiting)


def _has_left_one_out(
    ranks: Sequence[RankPhase], longest_ms: Mapping[Phase, int], done: Sequence[RankPhase]
) -> Suspect | None:
    """A rank that is further than one that waits in a collective, and has begun fewer: in one program for all that cannot be."""
    waits: RankPhase | None = None
    training = {rank.rank for rank in ranks}
    # One that does not say how many it has begun is not judged.
    counted = sorted((rank for rank in [*ranks, *done] if rank.report.collectives), key=_reached)
    for _, equal in itertools.groupby(counted, key=lambda rank: rank.step):
        at_a_step = [*equal]
        # The first one has begun the fewest, the last one the most.
        found = None if waits is None else _left_out(at_a_step[0], waits, longest_ms)
        if found is not None:
            return found._replace(waiting=sum(rank.step < found.step for rank in ranks))
        waits = max((rank for rank in at_a_step if rank.rank in training), key=_begun, default=waits)
    return None


def _left_out(one: RankPhase, waits: RankPhase, longest_ms: Mapping[Phase, int]) -> Suspect | None:
    fewer = waits.report.collectives - one.report.collectives
    at, lasting_ms = waits.report.phase, waits.report.lasting_ms
    most_ms = limit_ms(at, longest_ms)
    if most_ms is None or lasting_ms < most_ms or fewer <= 0:
        return None
    return Suspect(*one[:3], one.report.phase, lasting_ms, most_ms, at, 0, fewer)


def _begun(rank: RankPhase) -> tuple[int, int]:
    """Of those that wait in the same collective the one that waits longest is heard."""
    return rank.report.collectives, rank.report.lasting_ms


def _reached(rank: RankPhase) -> tuple[int, int]:
    return rank.step, rank.report.collectives
