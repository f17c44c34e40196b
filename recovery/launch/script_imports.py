"""What a script imports, found by reading it: does it recover by itself, and on which framework does it train?"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from recovery.launch.script_side_effects import acts_before_import, parsed

_FILES_MAX = 1_000
"""A script with more files of its own beside it says by then what it imports."""


class Reading(NamedTuple):
    """What a script and the files beside it say."""

    packages: frozenset[str]
    """Top-level packages that an import names anywhere."""
    modules: tuple[str, ...]
    """Modules, and names that may be modules, that are imported when the files are, in the order in which they were found. Those of
    the files beside the script are left out."""
    files: tuple[Path, ...]
    """What was read."""
    entry_points: tuple[Path, ...]
    """What the command names."""
    acts: str
    """Which of their lines changes what a later import sees (the environment, the search path); empty: none."""


def parse_script(command: Sequence[str], directory: Path) -> Reading:
    """Read the script of a command, and the files beside it which it imports.

    Nothing is executed. What cannot be read or parsed imports nothing: starting it will say why.

    Args:
        command: the words after the interpreter: a script, `-m` and a module, pytest's words.
        directory: where the command is started.
    """
    entry_points = list(_entry_points(command, directory))
    pending = [(path, True) for path in entry_points]
    files: dict[Path, bool] = {}
    packages: set[str] = set()
    modules: dict[str, None] = {}
    while pending and len(files) < _FILES_MAX:
        path, is_run = pending.pop()
        if path in files and (files[path] or not is_run):
            continue
        files[path] = is_run
        for module, at_once, is_whole in _modules_of(path):
            packages.add(module.partition(".")[0])
            beside = [file for root in {path.parent, directory} for file in _files_of(root, module)]
            pending += ((file, is_run and at_once) for file in beside)
            if is_run and at_once and is_whole and not _is_beside(module, {path.parent, directory}):
                modules[module] = None
    acts = ""
    for path in files:
        roots = {path.parent, directory}
        acts = acts or acts_before_import(path, partial(_is_beside, roots=roots), _run_at_once)
    return Reading(frozenset(packages), tuple(modules), tuple(files), tuple(entry_points), acts)


def _is_beside(module: str, roots: set[Path]) -> bool:
    """Does its package lie beside the script? Whatever that imports is done by each process for itself: it may look at its environment."""
    package = module.partition(".")[0]
    return any(any(True for _ in _files_of(root, package)) or (root / package).is_dir() for root in roots)


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


def _modules_of(path: Path) -> Iterator[tuple[str, bool, bool]]:
    """Each with whether it is imported when the file is, and whether its name says all: a relative one's does not, nor does `*`."""
    tree = parsed(path)
    run = _run_at_once(tree)
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in sorted(imports, key=lambda node: node.lineno):
        at_once = id(node) in run
        if isinstance(node, ast.Import):
            yield from ((name.name, at_once, True) for name in node.names)
        else:
            base = node.module or ""
            whole = node.level == 0
            if base:
                yield base, at_once, whole
            yield from (
                (f"{base}.{name.name}".lstrip("."), at_once, whole and name.name != "*")
                for name in node.names
                if node.level or base
            )


def _run_at_once(tree: ast.Module) -> set[int]:
    """The `id` of each statement that runs when the file is started."""
    return {id(node) for node in _at_once(tree.body)}


def _at_once(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a file is started, whatever it finds: none behind a condition, a loop or an error."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If):
            if "TYPE_CHECKING" in (condition := ast.unparse(statement.test)):
                yield from _at_once(statement.orelse)
            elif condition == "__name__ == '__main__'":
                yield from _at_once(statement.body)
        elif isinstance(statement, (ast.With, ast.Try, ast.ClassDef)):
            yield from _at_once(statement.body)
        if isinstance(statement, ast.Try):
            yield from _at_once((*statement.orelse, *statement.finalbody))
