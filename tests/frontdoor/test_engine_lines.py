"""The lines that the README and the pages of the engines print are taken as they are printed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recovery.cli.main import app
from tests.house.files import ROOT

PAGES = ("README.md", "README.zh-CN.md", "docs/howto/slurm.md", "docs/howto/kubernetes.md")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ENGINES = ("recovery slurm ", "recovery k8s ")


def lines_of(page: str) -> list[str]:
    """Commands for an engine, each on one line."""
    blocks = _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith(_ENGINES)]


ALL = [(page, line) for page in PAGES for line in lines_of(page)]


def test_each_page_has_one() -> None:
    assert {page for page, _ in ALL} == set(PAGES)


@pytest.mark.parametrize(("page", "line"), ALL, ids=[f"{page}: {line[:24]}" for page, line in ALL])
def test_it_gives_what_the_engine_is_given(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    line = line.replace("IMAGE", "registry.example/job:1").partition(" > ")[0]
    words = [word for word in shlex.split(line)[1:] if word != "--submit"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (page, done.output, done.exception)
    assert ("#SBATCH --nodes" if words[0] == "slurm" else "kind: JobSet") in done.stdout


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/howto/ray.md"])
def test_ray_is_asked_for_what_there_is(page: str) -> None:
    calls = re.findall(r"(?:recovery\.ray|\br)\.run\([^()]*\)", (ROOT / page).read_text(encoding="utf-8"))
    assert calls
    [run] = [
        node
        for node in ast.parse((ROOT / "recovery/ray/ray_job.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    ]
    known = {argument.arg for argument in run.args.kwonlyargs}
    for call in calls:
        [statement] = ast.parse(call).body
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        assert {word.arg for word in statement.value.keywords} <= known
