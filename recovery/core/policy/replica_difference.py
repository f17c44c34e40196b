"""What every rank must have alike (the weights under DistributedDataParallel): which rank has not, and in which tensors?

Each rank names it by fingerprints of the same tensors, in the same groups. Source: docs/howto/silent_corruption.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from recovery.core.ids import Rank

TENSORS_NAMED = 3
RANKS_NAMED = 8

Fingerprints = Mapping[str, str]


class Difference(NamedTuple):
    """At least one rank has something else."""

    ranks: tuple[Rank, ...]
    """Which: those that are not among the more than half that agree; all, where no more than half do."""
    tensors: tuple[str, ...]
    """The names of what differs, in the order of the model."""
    by_majority: bool

    @property
    def sentence(self) -> str:
        """For people."""
        who = _few([str(rank) for rank in self.ranks], RANKS_NAMED)
        which = _few(self.tensors, TENSORS_NAMED)
        if self.by_majority:
            return f"rank{'s' if len(self.ranks) > 1 else ''} {who} differ{'' if len(self.ranks) > 1 else 's'} from the other ranks in {which}"
        return f"ranks {who} differ in {which}, and no more than half of them agree"


def _few(names: tuple[str, ...] | list[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def difference(said: Mapping[Rank, Fingerprints]) -> Difference | None:
    """Compare what the ranks have in common; None: it is alike, or one of them names nothing.

    Args:
        said: by rank, of all ranks.
    """
    ranks = sorted(said)
    names = [name for name in said[ranks[0]] if all(name in said[rank] for rank in ranks)]
    differing = tuple(name for name in names if len({said[rank][name] for rank in ranks}) > 1)
    if not differing:
        return None
    alike: dict[tuple[str, ...], list[Rank]] = {}
    for rank in ranks:
        alike.setdefault(tuple(said[rank][name] for name in differing), []).append(rank)
    most = max(alike.values(), key=len)
    by_majority = len(most) * 2 > len(ranks)
    odd = tuple(rank for rank in ranks if rank not in most) if by_majority else tuple(ranks)
    return Difference(odd, differing, by_majority)
