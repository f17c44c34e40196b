"""Which processors and memory nodes each process gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from recovery.errors import SettingError
from recovery.launch.cpu_binding_file import BindFile
from recovery.launch.flag_values import CpuBinding


def cpus_of(
    binding: CpuBinding | BindFile, place: str, *, index: int, workers: int, available: Sequence[int]
) -> tuple[int, ...]:
    """Processors of one process; none: wherever it likes.

    Args:
        binding: --bind_core, or the file of --bind_numa.
        place: `scheduler` or `device<n>`.
        index: of the worker on this host; its share of an even division.
        workers: on this host.
        available: processors of this host that may be used.

    Raises:
        SettingError: a processor is named that is not there.
    """
    if isinstance(binding, bool):
        if not binding or place == "scheduler":
            return ()
        ordered = sorted(available)
        begin, end = len(ordered) * index // workers, len(ordered) * (index + 1) // workers
        return tuple(ordered[begin:end] or [ordered[begin]])
    if isinstance(binding, BindFile):
        field, texts = "--bind_numa", _listed(binding.cpus, place)
    else:
        field, texts = "--bind_core", tuple(binding.get(place, ()))
    named = tuple(_expanded(texts))
    absent = sorted(set(named) - set(available))
    if absent:
        raise SettingError(
            "SETTING_CONFLICT",
            field=field,
            value=f"{place}: {list(texts)}",
            rule=f"processor {absent[0]} is not among this host's ({_shown(available)})",
            next_step=f"Name processors that are there, or give {field}=True to share them evenly.",
        )
    return named


def numactl_of(
    binding: CpuBinding | BindFile, place: str, *, index: int, workers: int, nodes: Sequence[int]
) -> tuple[str, ...]:
    """What is put before the command so that memory and processors are of one node; nothing: wherever it likes.

    Args:
        binding: --bind_numa.
        place: `scheduler` or `device<n>`.
        index: of the worker on this host; its share of an even division.
        workers: on this host.
        nodes: memory nodes of this host.

    Raises:
        SettingError: a node is named that is not there.
    """
    if isinstance(binding, bool):
        if not binding or place == "scheduler":
            return ()
        memory = cpus = [nodes[index * len(nodes) // workers]]
    elif isinstance(binding, BindFile):
        memory = _expanded(_listed(binding.memory_nodes, place))
        cpus = _expanded(_listed(binding.cpu_nodes, place))
    else:
        memory = cpus = _expanded(binding.get(place, ()))
    named = sorted({*memory, *cpus})
    if not named:
        return ()
    if not set(named) <= set(nodes):
        raise SettingError(
            "SETTING_CONFLICT",
            field="--bind_numa",
            value=f"{place}: {named}",
            rule=f"this host's memory nodes are {_shown(nodes)}",
            next_step="Name nodes that are there, or give --bind_numa=True to share them evenly.",
        )
    bound = [f"--membind={_shown(memory)}"] if memory else []
    bound += [f"--cpunodebind={_shown(cpus)}"] if cpus else []
    return ("numactl", *bound)


def _listed(by_place: Mapping[str, str], place: str) -> tuple[str, ...]:
    return (by_place[place],) if place in by_place else ()


def _expanded(texts: Iterable[str]) -> list[int]:
    """`0-2,5`: 0, 1, 2, 5."""
    found: list[int] = []
    for part in (part for text in texts for part in text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _shown(cpus: Sequence[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
