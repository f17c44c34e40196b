"""What a script imports, by the names in it: does it recover by itself, on which framework does it train, what can be imported before it runs?"""

from __future__ import annotations

import ast
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from recovery.launch.python_command import Runs, parse_python_command

_FILES_MAX = 1_000
"""A script with more files of its own beside it says by then what it imports."""
_PERHAPS = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.If, ast.For, ast.AsyncFor, ast.While, ast.Match, ast.ExceptHandler,
)  # fmt: skip
"""What is in these does not run whenever the file does."""


class Reading(NamedTuple):
    """What a script and the files beside it say."""

    packages: frozenset[str]
    """Top-level packages that an import names anywhere."""
    modules: tuple[str, ...]
    """Modules, and names that may be modules, that are imported whenever the files are, in that order. Those of the files beside the
    script are left out: each process runs them itself, and they may look at its rank."""
    files: tuple[Path, ...]
    """What was read."""
    entry_points: tuple[Path, ...]
    """What the command names, as far as it is text: no archive."""


def parse_script(command: Sequence[str], directory: Path) -> Reading:
    """Read the script of a command, and the files beside it which it imports.

    Nothing is executed. What cannot be looked at, read or parsed imports nothing: starting it will say why.

    Args:
        command: the words after the interpreter: a script, `-m` and a module, pytest's words.
        directory: where the command is started.
    """
    entry_points = tuple(_entry_points(command, directory))
    files: dict[Path, bool] = {}
    packages: set[str] = set()
    modules: dict[str, None] = {}
    pending: list[tuple[str, bool, Path]] = []

    def read(paths: Iterable[Path], is_run: bool) -> None:
        for path in paths:
            if len(files) < _FILES_MAX and files.get(path, -1) < is_run:
                files[path] = is_run
                pending.extend((name, is_run and at_once, path) for name, at_once in _imports_of(path)[::-1])

    read(entry_points[::-1], True)
    while pending:
        module, is_run, path = pending.pop()
        absolute, roots = module.lstrip("."), (path.parent, directory)
        package = absolute.partition(".")[0]
        packages.add(package)
        if is_run and absolute == module and not any(_files_of(roots, package)):
            modules[module] = None
        read(_files_of(roots, absolute), is_run)
    texts = tuple(path for path in entry_points if not zipfile.is_zipfile(path))
    return Reading(frozenset(packages), tuple(modules), tuple(files), texts)


def _entry_points(command: Sequence[str], directory: Path) -> Iterator[Path]:
    """The script, whatever its name ends with; every word that names a Python file; and the module behind `-m`."""
    program = parse_python_command(["python", *command])
    if program is not None and program.runs is Runs.SCRIPT and not program.target.endswith(".py"):
        yield from _program_at(directory / program.target)
    for word, following in zip(command, [*command[1:], ""], strict=False):
        script = word.partition("::")[0]
        if script.endswith(".py") and os.path.isfile(directory / script):  # noqa: PTH113 - see _files_of
            # Where its link leads, as the interpreter does.
            yield Path(os.path.realpath(directory / script))
        if word == "-m" and following:
            yield from _files_of([directory], following)


def _program_at(path: Path) -> Iterator[Path]:
    """The file that Python runs there: a directory is a program by its `__main__.py`, an archive by the one in it."""
    for file in (path, path / "__main__.py"):
        if os.path.isfile(file):  # noqa: PTH113 - see _files_of
            yield Path(os.path.realpath(file))
            return


def _files_of(roots: Iterable[Path], module: str) -> Iterator[Path]:
    """Where a module would lie below the directories: its file, or its package's files that run."""
    for place in (root.joinpath(*module.split(".")) for root in roots):
        for path in (place.with_suffix(".py"), place / "__init__.py", place / "__main__.py"):
            # Path.is_file raises for a directory of somebody else, or a dead mount.
            if os.path.isfile(path):  # noqa: PTH113 - see above
                yield path


def _imports_of(path: Path) -> list[tuple[str, bool]]:
    """Each name, relative ones behind a dot, with whether it is imported whenever the file is."""
    try:
        return _imports_in_archive(path) if zipfile.is_zipfile(path) else _imports_in(path.read_bytes())
    except (OSError, zipfile.BadZipFile):
        return []


def _imports_in_archive(path: Path) -> list[tuple[str, bool]]:
    """Of all that is in a program that is an archive. What it brings along itself is not looked for beside it."""
    with zipfile.ZipFile(path) as archive:
        own = {name.partition("/")[0].removesuffix(".py") for name in archive.namelist()}
        sources = [name for name in archive.namelist() if name.endswith(".py")][:_FILES_MAX]
        return [
            (module, at_once and name == "__main__.py")
            for name in sorted(sources, key=lambda name: name != "__main__.py")
            for module, at_once in _imports_in(archive.read(name))
            if not module.startswith(".") and module.partition(".")[0] not in own
        ]


def _imports_in(source: bytes) -> list[tuple[str, bool]]:
    try:
        pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), True)]
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    while pending:
        node, at_once = pending.pop()
        at_once = at_once and not isinstance(node, _PERHAPS)
        pending += [(child, at_once) for child in ast.iter_child_nodes(node)][::-1]
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom):
            base = "." * bool(node.level) + (node.module or "")
            below = f"{base}." if node.module else base
            names = [*([base] if node.module else []), *(below + name for name in names if name != "*")]
        found += [(name, at_once) for name in names]
    return found
