"""Can every worker run what was typed? Standard input and what one process has open are read once, and each worker would run nothing, with 0."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from recovery.launch.presence import Kind, look_at
from recovery.launch.python_command import Runs, parse_python_command, takes_program_from_stdin

_OWN_DESCRIPTORS = re.compile(r"/proc/[^/]+(/task/[^/]+)?/fd")
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
    if read.options or _is_found(read.target.partition(".")[0], directory):
        return None
    return Fault(read.target, "there is no such module", "Give the name of a module that this Python finds.")


def _of_script(script: str, directory: Path) -> Fault | None:
    path = directory / script
    if _is_descriptor(path):
        return _only_one_reads(script, "an open file of this process")
    kind, reason = look_at(path)
    match kind:
        case Kind.ABSENT:
            return Fault(
                script, "there is no such file here", f"Give the path of the script{_like(script, path)}."
            )
        case Kind.UNKNOWN:
            return Fault(
                script, f"it cannot be looked at ({reason})", "Give a script that this user may read."
            )
        case Kind.OTHER:
            return _only_one_reads(script, "no plain file")
        case Kind.DIRECTORY if not look_at(path / "__main__.py").may_be_there:
            return Fault(script, "is a directory without a __main__.py", "Give the path of the script.")
        case _:
            return None


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


def _is_found(package: str, directory: Path) -> bool:
    """Asks the finders of this Python, which is the workers' own; nothing is imported."""
    try:
        if PathFinder.find_spec(package, [str(directory)]) is not None:
            return True
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        return any(find(package, None) is not None for find in finders if find is not None)
    except Exception:  # noqa: BLE001 - a finder of another package: the start itself says what is wrong
        return True
