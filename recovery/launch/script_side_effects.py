"""What a script changes before it imports something, found by reading it: a template that imports first would do so in another world."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
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
_READING = ("copy", "count", "get", "index", "items", "keys", "values")
"""Methods that change nothing."""
_PRELOADED = ("recovery", *(framework.name for framework in FRAMEWORKS))
"""Imported by a template wherever the script imports them, in a function too."""


def parsed(path: Path) -> ast.Module:
    """A Python file; an empty one where it cannot be read or parsed, as its own start will say."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


class _Found(NamedTuple):
    line: int
    changes: str
    """What is changed; empty: it is an import."""
    imports: str
    """Module; empty: it changes something."""
    at_once: bool


def acts_before_import(
    path: Path, is_beside: Callable[[str], bool], at_once: Callable[[ast.Module], set[int]]
) -> str:
    """Say which line changes what imports see, before which import; empty: none.

    Args:
        path: of a Python file. What cannot be parsed does nothing.
        is_beside: whether a module lies beside the script: each process imports that by itself.
        at_once: gives which nodes of a file run when it is imported, by `id`.
    """
    tree = parsed(path)
    run = at_once(tree)
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
            and not is_beside(action.imports)
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
        if not (isinstance(function, ast.Attribute) and function.attr in _READING):
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
