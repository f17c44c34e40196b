"""One way to make checkpoints for the tests of this package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from recovery.checkpoint import names
from recovery.checkpoint.manifest import FORMAT, Manifest
from recovery.checkpoint.publish import publish


class Save:
    """Publishes small checkpoints into one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def manifest(self, name: str = "train-1_1.ckpt", content: bytes = b"state", **fields: Any) -> Manifest:
        place = names.parse(name)
        epoch, step = (place.epoch, place.step_in_epoch) if place else (1, 1)
        facts: dict[str, Any] = {
            "format": FORMAT,
            "job": "job-a",
            "run": 1,
            "rank": 0,
            "world_size": 2,
            "incarnation": 1,
            "generation": 1,
            "step": (epoch - 1) * 100 + step,
            "epoch": epoch,
            "step_in_epoch": step,
            "file": name,
            "digest": hashlib.sha256(content).hexdigest(),
            "file_bytes": len(content),
            "versions": {"torch": "2.13.0"},
            "integrated": True,
        }
        return Manifest(**{**facts, **fields})

    def __call__(self, name: str = "train-1_1.ckpt", content: bytes = b"state", **fields: Any) -> Path:
        _, path = publish(
            self.directory,
            name,
            lambda stream: _write(stream, content),
            lambda digest, size: self.manifest(name, content, digest=digest, file_bytes=size, **fields),
        )
        return path


def _write(stream: Any, content: bytes) -> None:
    assert stream.write(content) == len(content)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    return Save(tmp_path / "ckpt")
