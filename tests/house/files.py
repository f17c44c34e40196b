"""The tracked files, their definitions, and how a rule reports what it finds in them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from typing_extensions import override

ROOT = Path(__file__).parents[2]


class Finding(NamedTuple):
    """One place that breaks a rule."""

    path: Path
    line: int
    what: str
    instead: str
    """What the author should do."""

    @override
    def __str__(self) -> str:
        """One line, which editors and terminals link to its place."""
        return f"{name_of(self.path)}:{self.line}: {self.what}; {self.instead}"


def report(findings: Iterable[Finding]) -> None:
    """Fail the test when there is a finding, and show each on a line of its own."""
    lines = [str(finding) for finding in findings]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


class Definition(NamedTuple):
    """A function, method or class."""

    name: str
    line: int
    lines: int
    """How many it has."""
    is_class: bool


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that git tracks; without git (an unpacked archive), every file but hidden ones."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        return tuple(
            path
            for path in ROOT.rglob("*")
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        )
    names = listed.stdout.decode().split("\0")
    return tuple(ROOT / name for name in names if name and (ROOT / name).is_file())


def python_files() -> list[Path]:
    """The tracked Python files."""
    return [path for path in tracked_files() if path.suffix == ".py"]


def program_files() -> list[Path]:
    """The Python files of the package."""
    return [path for path in python_files() if path.is_relative_to(ROOT / "recovery")]


def name_of(path: Path) -> str:
    """A file's path within the project."""
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    """What stands in a file."""
    return path.read_text(encoding="utf-8")


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers."""
    return enumerate(text_of(path).splitlines(), start=1)


def line_of(path: Path, text: str) -> int:
    """The first line that holds a text; 1 when none does."""
    return next((number for number, line in numbered(path) if text in line), 1)


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(text_of(path), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of the syntax tree of a file. Cached: ask only for files of the package."""
    return tuple(ast.walk(parsed(path)))


@cache
def definitions(path: Path) -> tuple[Definition, ...]:
    """Every function, method and class of a file."""
    return tuple(
        Definition(node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1, is_class)
        for node in ast.walk(parsed(path))
        if (is_class := isinstance(node, ast.ClassDef))
        or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
