"""`--bind_core` and `--bind_numa`: read from what was typed, and what each process of a host gets by them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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
        return Bound(self._cpus(place, index, host.cpus), self._numactl(place, index, host.numa_nodes))

    def _cpus(self, place: str, index: int, available: Sequence[int]) -> tuple[int, ...]:
        """Its processors; none: all."""
        if isinstance(self.numa, BindFile) and place in self.numa.cpus:
            field, texts = "--bind_numa", [self.numa.cpus[place]]
        elif isinstance(self.core, bool):
            if not self.core or place == "scheduler":
                return ()
            ordered, workers = sorted(available), self.workers
            begin, end = len(ordered) * index // workers, len(ordered) * (index + 1) // workers
            return tuple(ordered[begin:end] or [ordered[begin]])
        else:
            field, texts = "--bind_core", self.core.get(place, [])
        named = tuple(_expanded(texts))
        absent = sorted(set(named) - set(available))
        if absent:
            raise SettingError(
                "SETTING_CONFLICT",
                field=field,
                value=f"{place}: {texts}",
                rule=f"processor {absent[0]} is not among this host's ({_shown(available)})",
                next_step=f"Name processors that are there, or give {field}=True to share them evenly.",
            )
        return named

    def _numactl(self, place: str, index: int, nodes: Sequence[int]) -> tuple[str, ...]:
        """What is put before its command so that memory and processors are of one node; nothing: wherever it likes."""
        if isinstance(self.numa, bool):
            if not self.numa or place == "scheduler":
                return ()
            memory = cpus = [nodes[index * len(nodes) // self.workers]]
        elif isinstance(self.numa, BindFile):
            memory = _expanded([self.numa.memory_nodes.get(place, "")])
            cpus = _expanded([self.numa.cpu_nodes.get(place, "")])
        else:
            memory = cpus = _expanded(self.numa.get(place, []))
        named = sorted({*memory, *cpus})
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
        return ("numactl", *bound) if bound else ()


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


def _expanded(texts: Iterable[str]) -> list[int]:
    """`0-2,5`: 0, 1, 2, 5."""
    found: list[int] = []
    for part in (part for text in texts for part in text.split(",") if part):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _shown(cpus: Sequence[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
