"""What the house looks at: the tracked files, and the functions and names in them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    """Every file that git tracks; without git (an unpacked archive), every file but hidden ones."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        return [
            path
            for path in ROOT.rglob("*")
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        ]
    names = listed.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def python_files() -> list[Path]:
    """The tracked Python files."""
    return [path for path in tracked_files() if path.suffix == ".py"]


def name_of(path: Path) -> str:
    """A file's path within the project."""
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Every function, method and class."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node
