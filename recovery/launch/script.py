"""What a script imports, found by reading it: does it recover by itself, and on which framework does it train?"""

from __future__ import annotations

import ast
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
    the files beside the script are left out."""
    files: tuple[Path, ...]
    """What was read."""
    entry_points: tuple[Path, ...]
    """What the command names."""


def imports_of(command: Sequence[str], directory: Path) -> frozenset[str]:
    """The top-level packages that a command's script names in an import, and that the files beside it name which it imports.

    Args:
        command: the words after the interpreter: a script, `-m` and a module, pytest's words.
        directory: where the command is started.
    """
    return read(command, directory).packages


def read(command: Sequence[str], directory: Path) -> Reading:
    """Read the script of a command, and the files beside it which it imports.

    Nothing is executed. What cannot be read or parsed imports nothing: starting it will say why. Arguments as `imports_of`.
    """
    entry_points = list(_entry_points(command, directory))
    pending = list(entry_points)
    files: dict[Path, None] = {}
    packages: set[str] = set()
    modules: dict[str, None] = {}
    while pending and len(files) < _FILES_MAX:
        path = pending.pop()
        if path in files:
            continue
        files[path] = None
        for module, at_once in _modules_of(path):
            packages.add(module.partition(".")[0])
            beside = [file for root in {path.parent, directory} for file in _files_of(root, module)]
            pending += beside
            if at_once and not _is_beside(module, {path.parent, directory}):
                modules[module] = None
    return Reading(frozenset(packages), tuple(modules), tuple(files), tuple(entry_points))


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


def _modules_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Each with whether it is imported when the file is."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    at_once = {id(node) for node in _at_once(tree.body)}
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in sorted(imports, key=lambda node: node.lineno):
        if isinstance(node, ast.Import):
            yield from ((name.name, id(node) in at_once) for name in node.names)
        else:
            base = node.module or ""
            own = node.level > 0
            if base:
                yield base, id(node) in at_once and not own
            yield from (
                (f"{base}.{name.name}".lstrip("."), id(node) in at_once and not own and name.name != "*")
                for name in node.names
                if node.level or base
            )


def _at_once(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a file is imported or started, whatever its conditions say; not those for type checkers."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from _at_once(statement.orelse)
        elif isinstance(statement, (ast.If, ast.With, ast.Try, ast.For, ast.While, ast.ClassDef)):
            for _, field in ast.iter_fields(statement):
                if isinstance(field, list):
                    yield from _at_once(part for part in field if isinstance(part, ast.stmt))
                    for handler in field:
                        if isinstance(handler, ast.ExceptHandler):
                            yield from _at_once(handler.body)
