"""What every rank must have alike (the weights under DistributedDataParallel): which rank has not, and in which tensors?

Each rank names it by fingerprints of the same tensors, in the same groups. Their joint digest lies in the checkpoint itself: whether a step's files are
alike is seen from them, whoever was started again since. Source: docs/howto/silent_corruption.md.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from recovery.core.ids import Rank

TENSORS_NAMED = 3
RANKS_NAMED = 8
NAMES_CHARS = 32
"""The first half of a joint digest is of the names alone."""
APART = "apart"
"""In the place of a joint digest: the ranks differ in it, and it counts, since it is training that makes them differ."""

Fingerprints = Mapping[str, str]


class Difference(NamedTuple):
    """At least one rank has something else."""

    ranks: tuple[Rank, ...]
    """Which: those that are not among the more than half that agree; all, where no more than half do."""
    tensors: tuple[str, ...]
    """The names of what differs, in the order of the model; empty: only joint digests are known."""
    by_majority: bool

    @property
    def sentence(self) -> str:
        """For people."""
        who = _few([str(rank) for rank in self.ranks], RANKS_NAMED)
        which = f" in {_few(self.tensors, TENSORS_NAMED)}" if self.tensors else ""
        if self.by_majority:
            return f"rank{'s' if len(self.ranks) > 1 else ''} {who} differ{'' if len(self.ranks) > 1 else 's'} from the other ranks{which}"
        return f"ranks {who} differ{which}, and no more than half of them agree"


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
    return _odd_ones({rank: tuple(said[rank][name] for name in differing) for rank in ranks}, differing)


def joint_digest(fingerprints: Fingerprints) -> str:
    """One digest (64 hex characters) of all fingerprints of a rank; empty: it names nothing.

    Ranks that name other tensors are not compared with each other, so the names have a half of their own.
    """
    if not fingerprints:
        return ""
    named = sorted(fingerprints.items())
    halves = (
        "".join(f"{name}\n" for name, _ in named),
        "".join(f"{name} {of_it}\n" for name, of_it in named),
    )
    hashed = (hashlib.sha256(half.encode(errors="backslashreplace")).hexdigest() for half in halves)
    return "".join(half[:NAMES_CHARS] for half in hashed)


def digests_differ(digests: Collection[str]) -> bool:
    """Do joint digests of one step show that ranks which name the same do not hold the same?"""
    said = {digest for digest in digests if digest}
    return APART not in said and len(said) > len({digest[:NAMES_CHARS] for digest in said})


def difference_of_digests(said: Mapping[Rank, str]) -> Difference | None:
    """As `difference`, by the joint digests of the ranks: no tensor is named. None: they do not show one."""
    if not digests_differ(said.values()):
        return None
    by_names: dict[str, dict[Rank, tuple[str, ...]]] = defaultdict(dict)
    for rank in sorted(rank for rank, digest in said.items() if digest):
        by_names[said[rank][:NAMES_CHARS]][rank] = (said[rank],)
    of_same_names = next(of_ranks for of_ranks in by_names.values() if len({*of_ranks.values()}) > 1)
    return _odd_ones(of_same_names, ())


def _odd_ones(said: Mapping[Rank, tuple[str, ...]], tensors: tuple[str, ...]) -> Difference:
    alike: dict[tuple[str, ...], list[Rank]] = {}
    for rank, of_rank in said.items():
        alike.setdefault(of_rank, []).append(rank)
    most = max(alike.values(), key=len)
    by_majority = len(most) * 2 > len(said)
    odd = tuple(rank for rank in said if rank not in most) if by_majority else tuple(said)
    return Difference(odd, tensors, by_majority)
