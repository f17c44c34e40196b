"""Which processors and memory nodes each process gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.errors import SettingConflictError
from recovery.launch.arguments import CpuBinding


def cpus_of(
    binding: CpuBinding, place: str, *, index: int, workers: int, available: Sequence[int]
) -> tuple[int, ...]:
    """Processors of one process; none: wherever it likes.

    Args:
        binding: --bind_core.
        place: `scheduler` or `device<n>`.
        index: of the worker on this host; its share of an even division.
        workers: on this host.
        available: processors of this host that may be used.

    Raises:
        SettingConflictError: a processor is named that is not there.
    """
    if isinstance(binding, bool):
        if not binding or place == "scheduler":
            return ()
        ordered = sorted(available)
        begin, end = len(ordered) * index // workers, len(ordered) * (index + 1) // workers
        return tuple(ordered[begin:end] or [ordered[begin]])
    named = tuple(cpu for text in binding.get(place, ()) for cpu in _expanded(text))
    absent = sorted(set(named) - set(available))
    if absent:
        raise SettingConflictError(
            field="--bind_core",
            value=f"{place}: {binding[place]}",
            rule=f"processor {absent[0]} is not among this host's ({_shown(available)})",
            next_step="Name processors that are there, or give --bind_core=True to share them evenly.",
        )
    return named


def numactl_of(
    binding: CpuBinding, place: str, *, index: int, workers: int, nodes: Sequence[int]
) -> tuple[str, ...]:
    """What is put before the command so that memory and processors are of one node; nothing: wherever it likes.

    Args:
        binding: --bind_numa.
        place: `scheduler` or `device<n>`.
        index: of the worker on this host; its share of an even division.
        workers: on this host.
        nodes: memory nodes of this host.

    Raises:
        SettingConflictError: a node is named that is not there.
    """
    if isinstance(binding, bool):
        if not binding or place == "scheduler":
            return ()
        named = [nodes[index * len(nodes) // workers]]
    else:
        named = [node for text in binding.get(place, ()) for node in _expanded(text)]
    if not named:
        return ()
    if not set(named) <= set(nodes):
        raise SettingConflictError(
            field="--bind_numa",
            value=f"{place}: {named}",
            rule=f"this host's memory nodes are {_shown(nodes)}",
            next_step="Name nodes that are there, or give --bind_numa=True to share them evenly.",
        )
    listed = _shown(named)
    return ("numactl", f"--membind={listed}", f"--cpunodebind={listed}")


def _expanded(text: str) -> list[int]:
    """`0-2,5`: 0, 1, 2, 5."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _shown(cpus: Sequence[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
