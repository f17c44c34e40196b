"""What a script imports, without running it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from recovery.launch.script_imports import parse_script


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        path = directory.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "line",
    [
        "import recovery",
        "import recovery.torch as rt",
        "from recovery import run",
        "from recovery.torch import x",
    ],
)
def test_every_form_of_import_counts(tmp_path: Path, line: str) -> None:
    write(tmp_path, train=f"def main():\n    {line}\n")
    assert "recovery" in parse_script(["train.py", "--epochs", "3"], tmp_path).packages


def test_a_word_in_a_string_or_a_comment_does_not(tmp_path: Path) -> None:
    write(tmp_path, train='# import recovery\nx = "import recovery"\nimport torch.nn\n')
    assert parse_script(["train.py"], tmp_path).packages == {"torch"}


@pytest.mark.parametrize(
    "words",
    [["train.py"], ["-m", "train"], ["-m", "pytest", "-s", "train.py::test_train"], ["-u", "train.py"]],
)
def test_files_beside_the_script_are_read_too(tmp_path: Path, words: list[str]) -> None:
    write(
        tmp_path,
        train="import helper\n",
        helper="from package import deep\n",
        package__deep="import recovery\n",
    )
    assert "recovery" in parse_script(words, tmp_path).packages


def test_relative_imports_and_packages_that_run(tmp_path: Path) -> None:
    write(tmp_path, job____main__="", package__a="from . import b\n", package__b="import recovery\n")
    (tmp_path / "job").mkdir(exist_ok=True)
    (tmp_path / "job" / "__main__.py").write_text("import package.a\n")
    assert "recovery" in parse_script(["-m", "job"], tmp_path).packages


def test_a_script_in_another_directory_finds_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, src__train="import helper\n", src__helper="import mindspore\n")
    assert "mindspore" in parse_script(["src/train.py"], tmp_path).packages


@pytest.mark.parametrize("text", ["import (", "\0", ""])
def test_what_cannot_be_parsed_imports_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, train=text)
    assert parse_script(["train.py"], tmp_path).packages == frozenset()


def test_circles_end(tmp_path: Path) -> None:
    write(tmp_path, a="import b\n", b="import a\n")
    assert parse_script(["a.py"], tmp_path).packages == {"a", "b"}
    assert parse_script(["none.py"], tmp_path).packages == frozenset()


@pytest.mark.parametrize("target", ["train", "./train", "program", "linked"])
def test_a_script_counts_whatever_its_name_ends_with(tmp_path: Path, target: str) -> None:
    """It was taken for a plain program, which `recovery` then refused at each of its starts."""
    (tmp_path / "program").mkdir()
    for script in (tmp_path / "train", tmp_path / "program" / "__main__.py"):
        script.write_text("import recovery\n")
    (tmp_path / "linked").symlink_to("train")
    assert "recovery" in parse_script(["-u", target, "--epochs", "3"], tmp_path).packages


def test_an_archive_is_not_taken_for_text(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", "import recovery\n")
    assert parse_script(["train.pyz"], tmp_path).entry_points == ()


def test_an_archive_is_read_for_what_it_imports_but_not_for_what_it_brings_along(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", "import torch\nimport helper, requests\n")
        archive.writestr("helper.py", "import recovery.torch as rt\n")
        archive.writestr("requests/__init__.py", "from . import other\nimport numpy\n")
    read = parse_script(["train.pyz"], tmp_path)
    assert read.packages == {"torch", "recovery", "numpy"}
    assert read.modules == ("torch",)


def test_a_damaged_archive_imports_nothing(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", "import recovery\n" * 100)
    content = bytearray((tmp_path / "train.pyz").read_bytes())
    content[40:60] = bytes(20)
    (tmp_path / "train.pyz").write_bytes(content)
    assert parse_script(["train.pyz"], tmp_path).packages == frozenset()
