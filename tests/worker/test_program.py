"""What a process says that it runs: bytes of the script, its arguments within bounds, and settings that decide what training does."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import msgspec
import pytest

from recovery import config
from recovery.core.programs import Program
from recovery.worker.program import program

SETTINGS = {
    "MS_ROLE": "MS_WORKER",
    "MS_NODE_ID": "0",
    "MS_WORKER_NUM": "1",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
    "MS_ENABLE_RECOVERY": "1",
}


def of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *argv: str) -> Program:
    monkeypatch.setattr(sys, "argv", list(argv))
    said = program(config.load({**SETTINGS, "MS_RECOVERY_PATH": str(tmp_path), "MS_ROLLBACK": "live"}))
    # As the decoder of the scheduler takes it.
    return msgspec.json.decode(msgspec.json.encode(said), type=Program)


def test_script_arguments_and_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"pass\n")
    said = of(monkeypatch, tmp_path, str(script), "--lr", "0.1")
    assert said == Program(
        script="train.py",
        digest=hashlib.sha256(b"pass\n").hexdigest(),
        arguments=("--lr", "0.1"),
        settings=("MS_ROLLBACK=live", "MS_MEMORY_CHECKPOINT_STEPS=0", "MS_CHECKPOINT_STORE="),
    )


@pytest.mark.parametrize("argv", [(), ("",), ("-c",), ("gone.py",), ("\0.py",)])
def test_what_is_no_file_has_no_digest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert of(monkeypatch, tmp_path, *argv).digest == ""


def test_what_is_long_or_no_text_keeps_its_differences_within_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = "x" * 100_000
    first, second = (
        of(monkeypatch, tmp_path, "t.py", f"{long}{end}", "\udcff", *["many"] * 500, end) for end in "ab"
    )
    assert len(first.arguments) == 64
    assert [one != other for one, other in zip(first.arguments, second.arguments, strict=True)] == [
        True,
        *[False] * 62,
        True,
    ]
