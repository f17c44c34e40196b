"""Every command of `recovery` has its file, which is imported when the command is called and not before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from recovery.cli.main import COMMANDS, load
from tests.house.files import ROOT, Finding, parsed, report

FOLDER = ROOT / "recovery" / "cli"


def test_a_command_is_the_function_of_its_name_in_the_file_of_its_name() -> None:
    report(
        Finding(path, 1, f"no function {command.identifier}", f"define the command {command.name} here")
        for command in COMMANDS
        for path in [FOLDER / f"{command.identifier}.py"]
        if command.identifier not in _functions(path)
    )
    assert [command.name for command in COMMANDS if load(command.name).name != command.name] == []


def _functions(path: Path) -> dict[str, int]:
    """The functions of a file with their lines."""
    return {node.name: node.lineno for node in parsed(path).body if isinstance(node, ast.FunctionDef)}


def test_no_file_holds_the_command_of_another() -> None:
    names = {command.identifier for command in COMMANDS}

    report(
        Finding(path, line, f"the command {name}", f"move it to {name}.py")
        for path in FOLDER.glob("*.py")
        for name, line in _functions(path).items()
        if name in names and name != path.stem
    )


def test_help_imports_no_command() -> None:
    code = "import sys, recovery.cli.main; print(*(name for name in sys.modules if name.startswith('recovery.cli.')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["recovery.cli.main"]
