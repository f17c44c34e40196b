"""Files and functions keep their size, nothing is left over, and no part imports the whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.files import (
    ROOT,
    Finding,
    definitions,
    name_of,
    nodes_of,
    numbered,
    program_files,
    python_files,
    report,
    text_of,
    tracked_files,
)

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LONGER_FILES: dict[str, str] = {
    "tests/simulation/promises.py": "every promise looks at the same record of what was said; apart they would share all of it",
}
"""File -> why it is one file and not two."""
SYSTEM_DIRECTORIES = frozenset(
    {"/", "/tmp", "/home", "/root", "/opt", "/srv", "/mnt", "/usr", "/var", "/workspace"}
)


def test_no_python_file_is_longer_than_400_lines() -> None:
    report(
        Finding(path, FILE_LINES_MAX + 1, f"the file has {lines} lines", "make it two files")
        for path in python_files()
        if (lines := len(text_of(path).splitlines())) > FILE_LINES_MAX and name_of(path) not in LONGER_FILES
    )


def test_no_function_is_longer_than_70_lines() -> None:
    report(
        Finding(path, one.line, f"{one.name} has {one.lines} lines", "make it two functions")
        for path in python_files()
        for one in definitions(path)
        if not one.is_class and one.lines > FUNCTION_LINES_MAX
    )


def test_nothing_is_left_over_to_be_done() -> None:
    marks = re.compile(r"\b(" + "|".join(("FIX" + "ME", "TO" + "DO", "X" + "XX", "HA" + "CK")) + r")\b")
    report(
        Finding(path, number, f"{found[0]} is left over", "do it, or open an issue")
        for path in tracked_files()
        if path.suffix in {".py", ".sh", ".md", ".toml", ".yaml", ".yml"} and marks.search(text_of(path))
        for number, line in numbered(path)
        if (found := marks.search(line))
    )


def test_no_tracked_file_names_a_place_of_the_machine_it_was_written_on() -> None:
    places = {str(ROOT), str(ROOT.parent), str(Path.home())} - SYSTEM_DIRECTORIES
    report(
        Finding(path, content[:at].count(b"\n") + 1, f"{place}/ is a place of this machine", "name none")
        for path in tracked_files()
        for content in [path.read_bytes()]
        for place in places
        if (at := content.find(f"{place}/".encode())) >= 0
    )


def test_nothing_inside_imports_the_package_root() -> None:
    report(
        Finding(path, node.lineno, ast.unparse(node), "import the module that defines the name")
        for path in program_files()
        for node in nodes_of(path)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and _imports_the_root(node)
    )


def _imports_the_root(node: ast.Import | ast.ImportFrom) -> bool:
    """True for `import recovery` and for `from recovery import <public name>`."""
    if isinstance(node, ast.Import):
        return any(alias.name == "recovery" for alias in node.names)
    return node.module == "recovery" and any(_is_public_name(alias.name) for alias in node.names)


def _is_public_name(name: str) -> bool:
    """True for a name of the root that is no package and no module."""
    return not ((ROOT / "recovery" / name).is_dir() or (ROOT / "recovery" / f"{name}.py").is_file())
