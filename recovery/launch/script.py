"""What a script imports, found by reading it: does it recover by itself, and on which framework does it train?"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

_FILES_MAX = 1_000
"""A script with more files of its own beside it says by then what it imports."""


def imports_of(command: Sequence[str], directory: Path) -> frozenset[str]:
    """The top-level packages that a command's script names in an import, and that the files beside it name which it imports.

    Nothing is executed. What cannot be read or parsed imports nothing: starting it will say why.

    Args:
        command: the words after the interpreter: a script, `-m` and a module, pytest's words.
        directory: where the command is started.
    """
    pending = list(_entry_points(command, directory))
    read: set[Path] = set()
    found: set[str] = set()
    while pending and len(read) < _FILES_MAX:
        path = pending.pop()
        if path in read:
            continue
        read.add(path)
        for module in _modules_of(path):
            found.add(module.partition(".")[0])
            pending += [file for root in {path.parent, directory} for file in _files_of(root, module)]
    return frozenset(found)


def _entry_points(command: Sequence[str], directory: Path) -> Iterator[Path]:
    """Every word that names a Python file, and the module behind `-m`."""
    for number, word in enumerate(command):
        if word.partition("::")[0].endswith(".py"):
            path = directory / word.partition("::")[0]
            if path.is_file():
                yield path
        if word == "-m" and number + 1 < len(command):
            yield from _files_of(directory, command[number + 1])


def _files_of(root: Path, module: str) -> Iterator[Path]:
    """Where a module would lie below a directory: its file, or its package's files that run."""
    place = root.joinpath(*module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py", place / "__main__.py"):
        if path.is_file():
            yield path


def _modules_of(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if base:
                yield base
            yield from (f"{base}.{name.name}".lstrip(".") for name in node.names if node.level or base)
