"""Every command of `recovery` has its file, which is imported when the command is called and not before."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from recovery.cli.main import COMMANDS, Command, load
from tests.house.files import ROOT, parsed

FOLDER = ROOT / "recovery" / "cli"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_is_the_function_of_its_name_in_the_file_of_its_name(command: Command) -> None:
    functions = [
        node.name
        for node in parsed(FOLDER / f"{command.identifier}.py").body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]

    assert command.identifier in functions
    assert load(command.name).name == command.name


def test_no_file_holds_the_command_of_another() -> None:
    names = {command.identifier for command in COMMANDS}
    files = {path.stem: parsed(path) for path in FOLDER.glob("*.py")}

    assert names <= set(files)
    assert [
        f"{file}.py: {node.name}"
        for file, tree in files.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in names and node.name != file
    ] == []


def test_help_imports_no_command() -> None:
    code = "import sys, recovery.cli.main; print(*(name for name in sys.modules if name.startswith('recovery.cli.')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["recovery.cli.main"]
