"""Which ranks are slower than is usual in this job by their own work, not by waiting for others."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from recovery.core.pace import HeldUp, Pace

BATCHES = 100
"""A median of fewer is one of a moment: ten steps of 10 ms are the tenth of a second in which a neighbour was busy."""
LEAST_US = 1_000
"""What a rank must be behind by in any case: at less the two clock readings and the scheduler of the kernel are what is compared."""

_WORDS = {
    HeldUp.STARVED: "its main thread waited for a processor for {:.0%} of the time",
    HeldUp.THROTTLED: "its control group was throttled for {:.0%} of the time",
    HeldUp.STOLEN: "the host of its virtual machine had its processors for {:.0%} of the time",
    HeldUp.SWAPPED: "{:.0%} of its memory is in swap",
}
_WORTH_SAYING = 20
"""Thousandths."""


class RankPace(NamedTuple):
    """What one rank said last."""

    rank: int
    node_id: str
    pace: Pace

    @property
    def has_enough(self) -> bool:
        """Is it over as many batches as a verdict needs?"""
        return self.pace.batches >= BATCHES


class Straggler(NamedTuple):
    """A rank that the others wait for in each step."""

    rank: int
    node_id: str
    part: str
    """`data` or `compute`: where most of the difference is."""
    own_us: int
    """What its own work on a batch takes."""
    usual_us: int
    """What it takes a rank in the middle, or the faster one of two."""
    held_up: tuple[tuple[HeldUp, int], ...] = ()

    @property
    def sentence(self) -> str:
        """For people."""
        why = [_WORDS[what].format(thousandths / 1_000) for what, thousandths in self.held_up]
        return (
            f"rank {self.rank} ({self.node_id}) needs {self.own_us / 1000:.1f} ms for its own work on a batch, others {self.usual_us / 1000:.1f} ms; "
            f"most of it in {self.part}{''.join(f'; {one}' for one in why)}"
        )


def slow(ranks: Sequence[RankPace], percent: int) -> list[Straggler]:
    """The ranks that are slower than the one in the middle by so much, slowest first. One rank is compared with nobody.

    Args:
        ranks: all that train, each with enough batches.
        percent: of the time of the one in the middle, more than 0.
    """
    if len(ranks) < 2:  # noqa: PLR2004 - itself and another one
        return []
    tells_compute = all(rank.pace.compute_us for rank in ranks)
    computes = [rank.pace.compute_us if tells_compute else 0 for rank in ranks]
    usual_data = statistics.median_low(rank.pace.data_us for rank in ranks)
    usual_compute = statistics.median_low(computes)
    owns = [rank.pace.data_us + compute for rank, compute in zip(ranks, computes, strict=True)]
    usual_us = statistics.median_low(owns)
    most_us = usual_us + max(usual_us * percent // 100, LEAST_US)
    found = [
        Straggler(
            rank.rank,
            rank.node_id,
            "data" if rank.pace.data_us - usual_data > compute - usual_compute else "compute",
            own_us,
            usual_us,
            tuple((what, much) for what, much in rank.pace.held_up.items() if much >= _WORTH_SAYING),
        )
        for rank, compute, own_us in zip(ranks, computes, owns, strict=True)
        if own_us > most_us
    ]
    return sorted(found, key=lambda one: -one.own_us)
