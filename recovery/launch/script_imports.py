"""What a script imports, by the names in it: does it recover by itself, on which framework does it train, what can be imported before it runs?"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_FILES_MAX = 1_000
"""A script with more files of its own beside it says by then what it imports."""


class Reading(NamedTuple):
    """What a script and the files beside it say."""

    packages: frozenset[str]
    """Top-level packages that an import names anywhere."""
    modules: tuple[str, ...]
    """Modules, and names that may be modules, that are imported when the files are, in the order in which they were found. Those of
    the files beside the script are left out: each process runs them itself, and they may look at its rank."""
    files: tuple[Path, ...]
    """What was read."""
    entry_points: tuple[Path, ...]
    """What the command names."""


def parse_script(command: Sequence[str], directory: Path) -> Reading:
    """Read the script of a command, and the files beside it which it imports.

    Nothing is executed. What cannot be looked at, read or parsed imports nothing: starting it will say why.

    Args:
        command: the words after the interpreter: a script, `-m` and a module, pytest's words.
        directory: where the command is started.
    """
    entry_points = tuple(_entry_points(command, directory))
    pending = [(path, True) for path in entry_points]
    files: dict[Path, bool] = {}
    packages: set[str] = set()
    modules: dict[str, None] = {}
    while pending and len(files) < _FILES_MAX:
        path, is_run = pending.pop()
        if path in files and files[path] >= is_run:
            continue
        files[path] = is_run
        roots = {path.parent, directory}
        for module, at_once in _imports_of(path):
            package = module.lstrip(".").partition(".")[0]
            packages.add(package)
            pending += ((file, is_run and at_once) for file in _files_of(roots, module.lstrip(".")))
            if is_run and at_once and module[0] != "." and not any(_files_of(roots, package)):
                modules[module] = None
    return Reading(frozenset(packages), tuple(modules), tuple(files), entry_points)


def _entry_points(command: Sequence[str], directory: Path) -> Iterator[Path]:
    """Every word that names a Python file, where its link leads as the interpreter does; and the module behind `-m`."""
    for word, following in zip(command, [*command[1:], ""], strict=False):
        script = word.partition("::")[0]
        if script.endswith(".py") and os.path.isfile(directory / script):  # noqa: PTH113 - see _files_of
            yield Path(os.path.realpath(directory / script))
        if word == "-m" and following:
            yield from _files_of([directory], following)


def _files_of(roots: Iterable[Path], module: str) -> Iterator[Path]:
    """Where a module would lie below the directories: its file, or its package's files that run. Not what cannot be looked at."""
    for root in roots:
        place = root.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py", place / "__main__.py"):
            # Path.is_file raises for a directory of somebody else, or a dead mount.
            if os.path.isfile(path):  # noqa: PTH113 - see above
                yield path


def _imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Each name, relative ones behind a dot, with whether it is imported when the file is."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    run = {id(node) for node in _at_once(tree.body)}
    imports = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    for node in sorted(imports, key=lambda node: node.lineno):
        names = [alias.name for alias in node.names if alias.name != "*"]
        if isinstance(node, ast.ImportFrom):
            base = "." * bool(node.level) + (node.module or "")
            joined = base + "." if node.module else base
            names = [*([base] if node.module else []), *(joined + name for name in names)]
        yield from ((name, id(node) in run) for name in names)


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
