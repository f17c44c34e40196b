"""Files and functions keep their size, names keep to the words of the house, nothing is left over."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.files import ROOT, definitions, name_of, parsed, python_files, tracked_files

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LONGER_FILES: dict[str, str] = {
    "tests/simulation/promises.py": "every promise looks at the same record of what was said; apart they would share all of it",
}
"""File -> why it is one file and not two."""
LONGER_FUNCTIONS: dict[str, str] = {}
"""File:function -> why it does not fit on one screen."""
BANNED_WORDS = frozenset({"master", "slave", "ghost", "zombie", "heal", "manager", "utils", "helpers"})
SYSTEM_DIRECTORIES = frozenset(
    {"/", "/tmp", "/home", "/root", "/opt", "/srv", "/mnt", "/usr", "/var", "/workspace"}
)


def _words(name: str) -> set[str]:
    """The words of an identifier: `NodeManager` and `node_manager` hold the same two."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)}


def test_no_python_file_is_longer_than_400_lines() -> None:
    long = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}

    assert {
        name: lines for name, lines in long.items() if lines > FILE_LINES_MAX and name not in LONGER_FILES
    } == {}


def test_no_function_is_longer_than_70_lines() -> None:
    long = [
        f"{name_of(path)}:{node.name} {node.end_lineno - node.lineno + 1}"
        for path in python_files()
        for node in definitions(parsed(path))
        if not isinstance(node, ast.ClassDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
        and f"{name_of(path)}:{node.name}" not in LONGER_FUNCTIONS
    ]

    assert long == []


def test_names_do_not_use_the_banned_words() -> None:
    used = [
        f"{name_of(path)}: {name}"
        for path in python_files()
        for name in [
            *path.relative_to(ROOT).with_suffix("").parts,
            *(node.name for node in definitions(parsed(path))),
        ]
        if _words(name) & BANNED_WORDS and not name.startswith("test_")
    ]

    assert used == []


def test_nothing_is_left_over_to_be_done() -> None:
    marks = re.compile(r"\b(" + "|".join(("FIX" + "ME", "TO" + "DO", "X" + "XX", "HA" + "CK")) + r")\b")
    left = [
        f"{name_of(path)}:{number}"
        for path in tracked_files()
        if path.suffix in {".py", ".sh", ".md", ".toml", ".yaml", ".yml"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if marks.search(line)
    ]

    assert left == []


def test_no_tracked_file_names_a_place_of_the_machine_it_was_written_on() -> None:
    places = {str(ROOT), str(ROOT.parent), str(Path.home())} - SYSTEM_DIRECTORIES
    found = [
        f"{name_of(path)} holds {place}/"
        for path in tracked_files()
        for place in places
        if f"{place}/".encode() in path.read_bytes()
    ]

    assert found == []


def test_nothing_inside_imports_the_package_root() -> None:
    importing = [
        f"{name_of(path)}: {ast.unparse(node)}"
        for path in python_files()
        if path.is_relative_to(ROOT / "recovery")
        for node in ast.walk(parsed(path))
        if _imports_the_root(node)
    ]

    assert importing == []


def _imports_the_root(node: ast.AST) -> bool:
    """True for `import recovery` and for `from recovery import <public name>`."""
    if isinstance(node, ast.Import):
        return any(alias.name == "recovery" for alias in node.names)
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "recovery"
        and any(_is_public_name(alias.name) for alias in node.names)
    )


def _is_public_name(name: str) -> bool:
    """True for a name of the root that is no room and no module."""
    return not ((ROOT / "recovery" / name).is_dir() or (ROOT / "recovery" / f"{name}.py").is_file())
