"""Can every worker run what was typed? Standard input and what one process has open are read once, and each worker would run nothing, with 0."""

from __future__ import annotations

import difflib
import os
import re
import sys
import zipfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from recovery.launch.presence import Kind, look_at
from recovery.launch.python_command import Runs, parse_python_command, takes_program_from_stdin

_OWN_DESCRIPTORS = re.compile(r"/proc/[^/]+(/task/[^/]+)?/fd")
_CHANGES_WHAT_IS_FOUND = re.compile(rb"__path__|\bmodules\b|meta_path|path_hooks")
"""What the code of a package names that has other modules in it than its directory has files."""
_LINKS_MAX = 40
"""As many as the kernel follows."""


class Fault(NamedTuple):
    """Why no worker could run it."""

    value: str
    rule: str
    next_step: str


def find_fault(command: Sequence[str], directory: Path) -> Fault | None:
    """What is wrong with a command; None: nothing that can be seen before it is started.

    Args:
        command: the interpreter and its words.
        directory: where it is started.
    """
    if takes_program_from_stdin(command):
        return _only_one_reads(" ".join(command[1:]) or "python", "standard input")
    read = parse_python_command(command)
    if read is None:
        return None
    if read.runs is Runs.SCRIPT:
        return _of_script(read.target, directory)
    return None if read.options else _of_module(read.target, directory)


def _of_script(script: str, directory: Path) -> Fault | None:
    path = directory / script
    if _is_descriptor(path):
        return _only_one_reads(script, "an open file of this process")
    kind, reason = look_at(path)
    match kind:
        case Kind.ABSENT if path.is_symlink():
            return Fault(
                script, "is a link to a file that is not there", "Fix the link, or give the script's path."
            )
        case Kind.ABSENT:
            return Fault(
                script, "there is no such file here", f"Give the path of the script{_like(script, path)}."
            )
        case Kind.FILE if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            return Fault(script, "this user may not read it", "Give a script that this user may read.")
        case Kind.UNKNOWN:
            return Fault(
                script, f"it cannot be looked at ({reason})", "Give a script that this user may read."
            )
        case Kind.OTHER:
            return _only_one_reads(script, "no plain file")
        case Kind.DIRECTORY | Kind.FILE if what := _without_main(kind, path):
            return Fault(script, f"is {what} without a __main__.py", "Give the path of the script.")
        case _:
            return None


def _without_main(kind: Kind, path: Path) -> str:
    """What it is that holds programs, and none that can be run; empty: it can, or is a script."""
    if kind is Kind.DIRECTORY:
        return "" if look_at(path / "__main__.py").may_be_there else "a directory"
    try:
        with zipfile.ZipFile(path) as archive:
            return "" if {"__main__.py", "__main__.pyc"} & {*archive.namelist()} else "an archive"
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return ""


def _only_one_reads(value: str, what: str) -> Fault:
    rule = f"is {what}, which one process can read, and every worker needs the program"
    return Fault(value, rule, "Save it as a file, and give its path.")


def _is_descriptor(path: Path) -> bool:
    """Does it lead through what this process has open (/dev/stdin, /dev/fd/63)? Another process finds other files there."""
    for _ in range(_LINKS_MAX):
        parent = Path(os.path.realpath(path.parent))
        if _OWN_DESCRIPTORS.fullmatch(str(parent)):
            return True
        try:
            path = parent / (parent / path.name).readlink()
        except (OSError, ValueError):
            return False
    return False


def _like(script: str, path: Path) -> str:
    """The script that was perhaps meant."""
    try:
        others = [other.name for other in path.parent.glob("*.py")]
    except (OSError, ValueError):
        return ""
    like = difflib.get_close_matches(path.name, others, 1)
    return f", perhaps {Path(script).with_name(like[0])}" if like else ""


def _of_module(name: str, directory: Path) -> Fault | None:
    """Asks the finders of this Python, which is the workers' own; nothing is imported."""
    parts, places = name.split("."), [str(directory)]
    try:
        for depth in range(1, len(parts) + 1):
            found = _find(".".join(parts[:depth]), places)
            if found is None or _has_no_other(found, parts[: depth + 1]):
                next_step = "Give the name of a module that this Python finds."
                return Fault(name, "there is no such module", next_step)
            is_package = found.submodule_search_locations is not None
            if (depth == len(parts) and not is_package) or _may_make_modules(found):
                return None
            places = list(found.submodule_search_locations or ())
        if _find(f"{name}.__main__", places) is None:
            next_step = "Give the name of a module that can be run."
            return Fault(name, "is a package without a __main__", next_step)
    except Exception:  # noqa: BLE001 - a finder of another package: the start itself says what is wrong
        return None
    return None


def _find(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """Where a module lies: in its package, or in the directory of the command; else where each finder looks by itself."""
    at_top = "." not in name
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    asked = (find(name, None if at_top else places) for find in finders if find is not None)
    return PathFinder.find_spec(name, places) or next(filter(None, asked), None)


def _has_no_other(found: ModuleSpec, parts: Sequence[str]) -> bool:
    """Is it no package, imported here too (os), and without the module that is looked for in it?"""
    is_looked_into = ".".join(parts[:-1]) == found.name and found.submodule_search_locations is None
    return is_looked_into and found.name in sys.modules and ".".join(parts) not in sys.modules


def _may_make_modules(found: ModuleSpec) -> bool:
    """May there be other modules in it, once it is imported, than its directories have files?"""
    if found.origin is None:
        # Several directories of one name, without code.
        return False
    try:
        return _CHANGES_WHAT_IS_FOUND.search(Path(found.origin).read_bytes()) is not None
    except OSError:
        return True
