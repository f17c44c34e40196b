"""The JSON file of --bind_numa: processors, their nodes and memory nodes by process.

    {"bind_config": {"bind_cpu_mode": "cpu", "bind_memory_mode": "numa"},
     "bind_cpu": {"device0": {"main": "0-3"}}, "bind_memory": {"device0": 0}}

With bind_cpu_mode "numa" a device has a node instead, {"device0": 0}; "none" is the default of both. A device's other processor lists are
for MindSpore's own threads, which finds the file by MSRUN_BIND_FILE. Source: MindSpore 2.10, parallel/cluster/process_entity/_bind.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from recovery.errors import SettingError

PLACE = re.compile(r"scheduler|device[0-9]+", re.ASCII)
"""What a process is called in a binding."""
NUMBERS = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", re.ASCII)
"""Processors or nodes: `0-3,5`."""
_FIELD = "--bind_numa"


class BindFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. Keys are `scheduler` and `device<n>`, values lists as `NUMBERS` has them."""

    path: Path
    sha256: str
    cpus: dict[str, str]
    cpu_nodes: dict[str, str]
    memory_nodes: dict[str, str]


def read_binding_file(path: Path) -> BindFile:
    """Read and check a file.

    Raises:
        SettingError: it is no such file; names the key.
    """
    try:
        content = path.read_bytes()
        given = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise _refuse(path, "", f"a JSON file that can be read ({error})") from error
    keys = _object(path, "the file", given)
    modes = _object(path, "bind_config", keys.get("bind_config", {}))
    cpu_mode = _mode(path, modes, "bind_cpu_mode", ("cpu", "numa", "none"))
    memory_mode = _mode(path, modes, "bind_memory_mode", ("numa", "none"))
    cpus = _object(path, "bind_cpu", keys.get("bind_cpu", {}))
    memory = _object(path, "bind_memory", keys.get("bind_memory", {}))
    return BindFile(
        path=path.absolute(),
        sha256=hashlib.sha256(content).hexdigest(),
        cpus=_by_place(path, "bind_cpu", cpus, _main) if cpu_mode == "cpu" else {},
        cpu_nodes=_by_place(path, "bind_cpu", cpus, _node) if cpu_mode == "numa" else {},
        memory_nodes=_by_place(path, "bind_memory", memory, _node) if memory_mode == "numa" else {},
    )


def _by_place(
    path: Path, name: str, given: Mapping[str, Any], listed: Callable[[Any], str | None]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, value in given.items():
        if PLACE.fullmatch(place) is None:
            raise _refuse(path, f"{name}: {place}", "keyed by scheduler or device<n>")
        if value is None:
            continue
        numbers = listed(value)
        if numbers is None:
            rule = '{"main": "0-3"} for processors, or a node as 0 or "0,1"'
            raise _refuse(path, f"{name}: {place}: {json.dumps(value)}", rule)
        if numbers:
            found[place] = numbers
    return found


def _main(value: Any) -> str | None:
    """The main thread's processors; empty: anywhere."""
    return _node(value.get("main") or "") if isinstance(value, dict) else None


def _node(value: Any) -> str | None:
    text = "".join(str(value).split()) if isinstance(value, (int, str)) else "?"
    return text if not text or NUMBERS.fullmatch(text) else None


def _object(path: Path, name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _refuse(path, name, "a JSON object")
    return given


def _mode(path: Path, modes: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    mode = str(modes.get(name, "none")).lower()
    if mode not in known:
        raise _refuse(path, f"{name}: {mode}", f"one of {', '.join(known)}")
    return mode


def _refuse(path: Path, what: str, rule: str) -> SettingError:
    return SettingError(
        "SETTING_RANGE",
        field=_FIELD,
        value=f"{path}: {what}" if what else str(path),
        rule=f"must be {rule}",
        next_step="docs/launcher.md shows such a file.",
    )
