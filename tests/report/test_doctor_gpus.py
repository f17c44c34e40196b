"""Which GPUs the doctor names, by torch and by nvidia-smi, each replaced by a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recovery.frameworks import Framework
from recovery.report import doctor_devices

_SEES = """
class cuda:
    is_available = staticmethod(lambda: {count} > 0)
    device_count = staticmethod(lambda: {count})
    get_device_name = staticmethod(lambda number: "H100")
"""
_RAISES = """
def refuse():
    raise RuntimeError("no driver")
class cuda:
    is_available = staticmethod(refuse)
"""
_WARNS = """
import warnings
class cuda:
    is_available = staticmethod(lambda: bool(warnings.warn("the driver is too old")))
"""


def tool(directory: Path, *lines: str) -> None:
    path = directory / "nvidia-smi"
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)


def told(directory: Path, torch: str) -> dict[str, Any]:
    """By the command, in a process that finds this torch."""
    (directory / "torch.py").write_text(torch)
    done = subprocess.run(
        [sys.executable, "-m", "recovery", "doctor", "--json"],
        env={"PATH": str(directory), "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    [found] = [check for check in json.loads(done.stdout) if check["name"] == "GPUs"]
    return dict(found)


@pytest.mark.parametrize(
    ("torch", "found", "ok"),
    [
        (_SEES.format(count=2), "2 x H100", True),
        (_SEES.format(count=0), "none", True),
        (_WARNS, "none that torch can use: the driver is too old", False),
        (_RAISES, "cannot be looked at: RuntimeError: no driver", False),
    ],
)
def test_those_that_torch_sees_are_named(tmp_path: Path, torch: str, found: str, ok: bool) -> None:
    said = told(tmp_path, torch)
    assert (said["found"], said["ok"], bool(said["next_step"])) == (found, ok, not ok)


def test_those_that_torch_does_not_see_are_named_by_the_tool(tmp_path: Path) -> None:
    tool(tmp_path, "echo A100", "echo H100", "echo H100")
    said = told(tmp_path, _SEES.format(count=0))
    assert (said["found"], said["ok"]) == ("1 x A100, 2 x H100, by nvidia-smi; torch sees none", True)


@pytest.mark.parametrize(
    ("lines", "found", "ok"),
    [
        (("echo H100",), "1 x H100, by nvidia-smi", True),
        (("echo No devices were found", "exit 6"), "none", True),
        (("exit 0",), "none", True),
        (("echo NVIDIA-SMI has failed", "exit 9"), "nvidia-smi names none: NVIDIA-SMI has failed", False),
        (("printf '\\377'", "exit 9"), "nvidia-smi names none: \N{REPLACEMENT CHARACTER}", False),
    ],
)
def test_without_torch_the_tool_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], found: str, ok: bool
) -> None:
    # So Python says of a module that it is not installed.
    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor_devices.gpus({"PATH": str(tmp_path)}).found == "none"
    tool(tmp_path, *lines)
    said = doctor_devices.gpus({"PATH": str(tmp_path)})
    assert (said.found, said.ok) == (found, ok)


def test_a_further_framework_is_asked_where_those_before_see_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first_of_two.py").write_text("GPUS = []")
    (tmp_path / "second_of_two.py").write_text("GPUS = ['H100']")
    monkeypatch.syspath_prepend(tmp_path)
    rows = [
        Framework(name=name, title=name, modules=(), with_recovery=(), gpus=lambda module: module.GPUS)
        for name in ("first_of_two", "second_of_two")
    ]
    monkeypatch.setattr(doctor_devices, "FRAMEWORKS", rows)
    environ = {"PATH": str(tmp_path)}
    assert doctor_devices.gpus(environ).found == "1 x H100"

    tool(tmp_path, "echo H100")
    monkeypatch.setattr(doctor_devices, "FRAMEWORKS", rows[:1])
    assert doctor_devices.gpus(environ).found == "1 x H100, by nvidia-smi; first_of_two sees none"
