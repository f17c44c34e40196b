"""What a script imports, and what it changes before, found by reading it: does it recover by itself, and on which framework does it train?"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from recovery.frameworks import FRAMEWORKS

_OF_OS = ("environ", "environb", "putenv", "unsetenv")
_WATCHED = (
    *(("os", name) for name in _OF_OS),
    ("sys", "path"),
    ("sys", "modules"),
    ("sys", "meta_path"),
    ("site", "addsitedir"),
)
_READ_ONLY = ("copy", "count", "get", "index", "items", "keys", "values")
"""Methods that change nothing."""
_PRELOADED = ("recovery", *(framework.name for framework in FRAMEWORKS))
"""Imported by a template wherever the script imports them, in a function too."""
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
        acts = acts or _acts_before_import(path, {path.parent, directory})
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
    tree = _parsed(path)
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


def _parsed(path: Path) -> ast.Module:
    """A Python file; an empty one where it cannot be read or parsed, as its own start will say."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


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


class _Found(NamedTuple):
    line: int
    changes: str
    """What is changed; empty: it is an import."""
    imports: str
    """Module; empty: it changes something."""
    at_once: bool


def _acts_before_import(path: Path, roots: set[Path]) -> str:
    """Say which line changes what imports see, before which import; empty: none.

    A template that imports first would import in another world. Modules in the directories `roots` each process imports by itself.
    """
    tree = _parsed(path)
    run = _run_at_once(tree)
    found = sorted(
        (action for node in ast.walk(tree) for action in _of(node, run)), key=lambda action: action.line
    )
    change: _Found | None = None
    known = {*sys.stdlib_module_names, "__main__"}
    for action in found:
        package = action.imports.partition(".")[0]
        if action.changes:
            change = change or action
        elif change is None:
            known |= {package} if action.at_once else set()
        elif (
            (action.at_once or package in _PRELOADED)
            and package not in known
            and not _is_beside(action.imports, roots)
        ):
            return f"{path.name}, line {change.line}, changes {change.changes} before {package} is imported"
    return ""


def _of(node: ast.AST, run: set[int]) -> Iterator[_Found]:
    if isinstance(node, ast.Import):
        yield from (_Found(node.lineno, "", name.name, id(node) in run) for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.module and not node.level:
            yield _Found(node.lineno, "", node.module, id(node) in run)
    else:
        yield from (
            _Found(target.lineno, name, "", at_once=False)
            for target in _changed(node)
            if (name := _watched(target))
        )


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions whose value the node changes."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        yield from node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        yield node.target
    elif isinstance(node, ast.Call):
        function = node.func
        if not (isinstance(function, ast.Attribute) and function.attr in _READ_ONLY):
            yield function


def _watched(expression: ast.expr) -> str:
    """What of the watched is behind it: `os.environ` behind `os.environ["A"]` and `environ.update`."""
    while True:
        if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            pair = expression.value.id, expression.attr
            if pair in _WATCHED:
                return ".".join(pair)
        if isinstance(expression, ast.Name):
            return next((f"os.{name}" for name in _OF_OS if name == expression.id), "")
        if not isinstance(expression, (ast.Attribute, ast.Subscript)):
            return ""
        expression = expression.value
