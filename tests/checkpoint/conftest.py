"""One way to make checkpoints for the tests of this package."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recovery.checkpoint import names
from recovery.checkpoint.contribution import FileRole, Manifest, ManifestFile
from recovery.checkpoint.publish import Content, publish


class Save:
    """Publishes small checkpoints into one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def manifest(self, name: str = "train-1_1.ckpt", content: bytes = b"state", **fields: Any) -> Manifest:
        place = names.parse(name)
        epoch, step = (place.epoch, place.step_in_epoch) if place else (1, 1)
        facts: dict[str, Any] = {
            "job": "job-a",
            "run": 1,
            "rank": 0,
            "world_size": 2,
            "incarnation": 1,
            "generation": 1,
            "step": (epoch - 1) * 100 + step,
            "epoch": epoch,
            "step_in_epoch": step,
            "files": (listed(name, content),),
            "versions": {"torch": "2.13.0"},
            "integrated": True,
        }
        return Manifest(**{**facts, **fields})

    def __call__(self, name: str = "train-1_1.ckpt", content: bytes = b"state", **fields: Any) -> Path:
        _, path = publish(
            self.directory,
            [Content(name, lambda stream: _write(stream, content))],
            lambda files: self.manifest(name, content, **{"files": files, **fields}),
        )
        return path

    def set(self, name: str, others: Mapping[str, bytes], **fields: Any) -> Path:
        """A checkpoint of several files."""
        contents = [Content(name, lambda stream: _write(stream, b"state"))]
        contents += [
            Content(other, functools.partial(_write, content=content), FileRole.SIDE)
            for other, content in others.items()
        ]
        _, path = publish(
            self.directory, contents, lambda files: self.manifest(name, **{"files": files, **fields})
        )
        return path


def listed(name: str, content: bytes, role: FileRole = FileRole.STATE) -> ManifestFile:
    digest = hashlib.sha256(content).hexdigest()
    return ManifestFile(name=name, role=role, file_bytes=len(content), digest=digest)


def _write(stream: Any, content: bytes) -> None:
    assert stream.write(content) == len(content)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    return Save(tmp_path / "ckpt")
