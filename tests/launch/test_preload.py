"""What a job's template imports, by what its script says."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from recovery import frameworks
from recovery.frameworks import Framework
from recovery.launch import python_command
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.preload import prepare_for, proxies_only
from recovery.launch.python_command import PythonCommand, Runs


def prepared(directory: Path, *words: str) -> Prepare:
    command = python_command.parse_python_command([sys.executable, *words])
    assert command is not None
    return prepare_for(command, words, directory)


@pytest.mark.parametrize(
    ("words", "options", "runs", "target", "arguments"),
    [
        (["train.py", "-u"], (), Runs.SCRIPT, "train.py", ("-u",)),
        (["-u", "-Wignore", "-X", "dev", "train.py"], ("-u", "-Wignore", "-X", "dev"), Runs.SCRIPT, "train.py", ()),
        (["-OO", "-m", "job", "-m"], ("-OO",), Runs.MODULE, "job", ("-m",)),
    ],
)  # fmt: skip
def test_a_command_is_taken_apart(
    words: list[str], options: tuple[str, ...], runs: Runs, target: str, arguments: tuple[str, ...]
) -> None:
    assert python_command.parse_python_command(["python", *words]) == PythonCommand(
        interpreter="python", options=options, runs=runs, target=target, arguments=arguments
    )


@pytest.mark.parametrize("words", [["-c", "1"], ["-i", "a.py"], ["-"], ["-m"], ["-X"], [], ["--version"]])
def test_a_command_that_starts_no_program_of_its_own(words: list[str]) -> None:
    assert python_command.parse_python_command(["python", *words]) is None


def test_a_script_of_ours_with_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch.nn as nn\nfrom recovery import run\nimport helper\n")
    (tmp_path / "helper.py").write_text("import numpy\nfrom PIL import Image\nfrom . import sibling\n")
    (tmp_path / "sibling.py").write_text("import colorsys\n")
    prepare = prepared(tmp_path, "train.py")
    assert {"torch._dynamo", "recovery.torch", "recovery.training.run", "aiohttp"} <= {*prepare.besides}
    assert {"torch.nn", "numpy", "PIL", "PIL.Image", "colorsys"} <= {*prepare.modules}
    assert "helper" not in prepare.modules, "each process runs what lies beside the script itself"
    assert "recovery.mindspore.world" not in prepare.besides
    assert prepare.compared == ("PIL", "numpy", "recovery", "torch"), "what the script names, and no more"
    assert prepare.argv == (b"train.py",)


def test_only_what_is_imported_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "try:\n    import c\nexcept ImportError:\n    import d\nfinally:\n    import e\n"
        "def f():\n    import g\n"
        "class H:\n    import h\n"
        "if __name__ == '__main__':\n    import i\n"
        "from j import *\nwith x:\n    import k\n"
        "if sys.argv[1:]:\n    import l\nelse:\n    import m\nfor x in ():\n    import n\n"
    )
    assert prepared(tmp_path, "train.py").modules == (
        "typing", "typing.TYPE_CHECKING", "c", "e", "h", "j", "k",
    )  # fmt: skip


def test_what_a_file_imports_that_is_imported_on_a_condition(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("if x:\n    import perhaps\nimport surely\n")
    (tmp_path / "perhaps.py").write_text("import a, both\n")
    (tmp_path / "surely.py").write_text("import b, both\n")
    assert set(prepared(tmp_path, "train.py").modules) == {"b", "both"}


PROXY = ("-m", "recovery.launch.worker_proxy")


def test_a_plain_program_behind_a_proxy(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("import torch, json\n")
    prepare = prepared(tmp_path, *PROXY, sys.executable, "src/train.py", "--epochs", "3")
    assert (prepare.programs, prepare.refusal) == (True, "")
    assert prepare.modules[:2] == ("torch", "json"), "the program's come first, as in a process of its own"
    assert {"torch._dynamo", "recovery.training.run", "psutil"} <= set(prepare.besides)
    assert prepare.compared == ("torch",)
    assert prepare.argv == (b"src/train.py", b"--epochs", b"3"), "of the program"
    assert {"RANK", "MASTER_PORT"} <= set(prepare.of_one)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((sys.executable, "-u", "train.py"), "other options"),
        (("python9", "train.py"), "another interpreter"),
        ((sys.executable, "-c", "1"), "not started as"),
        (("--mindspore", sys.executable, "train.py"), "MindSpore"),
        ((sys.executable, "ours.py"), "imports recovery itself"),
    ],
)
def test_a_plain_program_that_is_spawned(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    (tmp_path / "ours.py").write_text("def main():\n    import recovery\n")
    prepare = prepared(tmp_path, *PROXY, *words)
    assert prepare.programs
    assert reason in prepare.refusal
    proxies = proxies_only()
    assert "recovery.training.run" in proxies.besides
    assert (proxies.programs, proxies.refusal, proxies.compared) == (False, "", ())


def test_a_plain_program_whose_framework_forms_its_world_in_a_way_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    further = Framework(
        name="json",
        title="JSON",
        modules=(),
        with_recovery=(),
        program_world="recovery.launch.torchrun_world",
    )
    monkeypatch.setattr(frameworks, "FRAMEWORKS", (*frameworks.FRAMEWORKS, further))
    (tmp_path / "train.py").write_text("import json\n")
    prepare = prepared(tmp_path, *PROXY, "--json", sys.executable, "train.py", "--epochs", "3")
    assert (prepare.programs, prepare.refusal) == (True, "")
    assert prepare.modules[0] == "json"


def test_pytest_as_the_program(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("import recovery\n")
    prepare = prepared(tmp_path, "-m", "pytest", "-s", "src/train.py::test_it")
    assert prepare.besides[-1] == "pytest"
    assert prepare.compared == ("recovery",), "pytest runs before the script, whatever that changes"


def test_a_directory_that_is_no_package_hides_none(tmp_path: Path) -> None:
    """`./recovery` is where a job keeps its state."""
    (tmp_path / "recovery").mkdir()
    (tmp_path / "train.py").write_text("import recovery\nimport numpy\n")
    prepare = prepared(tmp_path, "train.py")
    assert {"recovery", "numpy"} <= {*prepare.modules}
    assert prepare.compared == ("numpy", "recovery")


def test_a_linked_script_is_read_where_its_link_leads(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("import helper\n")
    (tmp_path / "src" / "helper.py").write_text("import recovery, numpy\n")
    (tmp_path / "linked.py").symlink_to(tmp_path / "src" / "train.py")
    linked, direct = prepared(tmp_path, "linked.py"), prepared(tmp_path, "src/train.py")
    assert linked == msgspec.structs.replace(direct, argv=(b"linked.py",))
    assert "numpy" in linked.modules
