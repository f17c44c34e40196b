"""`--bind_core` and `--bind_numa`: read from what was typed, and what each process of a host gets by them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from recovery.errors import SettingError
from recovery.launch.flag_values import refuse
from recovery.launch.job_spec import Bound, Host
from recovery.launch.msrun.binding_file import NUMBERS, PLACE, BindFile, read_binding_file
from recovery.launch.presence import Kind, look_at

CpuBinding = bool | dict[str, list[str]]
"""Off, shared evenly, or processor lists by `scheduler` and `device<n>`."""
_EXAMPLE = '\'{"device0": ["0-3"]}\''


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    """What both flags say of the processes of a host. Called as `JobSpec.bind` is."""

    core: CpuBinding
    numa: CpuBinding | BindFile
    workers: int
    """Of this host."""

    def __call__(self, place: str, index: int, host: Host) -> Bound:
        """Where a process may run.

        Raises:
            SettingError: the host does not have what is named.
        """
        by_file = isinstance(self.numa, BindFile) and place in self.numa.cpus
        cpus = cpus_of(
            self.numa if by_file else self.core, place, index=index, workers=self.workers, available=host.cpus
        )
        prefix = numactl_of(self.numa, place, index=index, workers=self.workers, nodes=host.numa_nodes)
        return Bound(cpus, prefix)


def read_binding(flag: str, text: str) -> CpuBinding:
    """Read which processors each process gets."""
    if text in ("True", "False"):
        return text == "True"
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not given:
        raise refuse(flag, text, "True, False or a JSON object", _EXAMPLE)
    for place, cpus in given.items():
        if PLACE.fullmatch(place) is None:
            raise refuse(flag, place, "an object whose keys are scheduler or device<n>", _EXAMPLE)
        listed = (
            isinstance(cpus, list)
            and cpus
            and all(isinstance(cpu, str) and NUMBERS.fullmatch(cpu) for cpu in cpus)
        )
        if not listed:
            rule = 'an object whose values are lists like ["0-3"], ["5"] or ["1,2"]'
            raise refuse(flag, f"{place}: {cpus}", rule, _EXAMPLE)
    return given


def read_numa_binding(flag: str, text: str) -> CpuBinding | BindFile:
    """Read which memory nodes each process gets, or the file that says so."""
    if text.lower().endswith(".json") or look_at(Path(text)).kind is Kind.FILE:
        return read_binding_file(Path(text))
    return read_binding(flag, text)


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
