"""CIFAR-10's binary files: real ones through DATA_PATH, or a small generated set in the same format.

A record is one label byte and 3,072 bytes of pixels: 32 x 32 red, then green, then blue. Nothing is downloaded. Without DATA_PATH (or
--data) a set is generated once, in the user's cache directory: each class is a pattern of its own, under noise. MindSpore reads files of
10,000 records only, as CIFAR-10's are, so that is its size.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

SIZE = 32
CLASSES = 10
RECORD_BYTES = 1 + 3 * SIZE * SIZE
_BATCH = "data_batch_*.bin"
_FIRST = "data_batch_1.bin"
_RECORDS = 10_000
_NOISE = 40.0


def find(directory: str) -> Path:
    """The directory with data_batch_*.bin: what --data or DATA_PATH names; empty: the generated set's."""
    if directory:
        return Path(directory)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    generated = cache / "recovery-examples" / "cifar-10-generated"
    if not (generated / _FIRST).exists():
        generate(generated)
    return generated


def read(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, 3, 32, 32] and labels uint8 [N] of all training files."""
    files = sorted(directory.glob(_BATCH))
    if not files:
        raise SystemExit(
            f"DATA_PATH={directory}: no {_BATCH} is there; it must be the folder cifar-10-batches-bin of cifar-10-binary.tar.gz"
        )
    records = np.concatenate([_records(file) for file in files])
    return records[:, 1:].reshape(-1, 3, SIZE, SIZE), records[:, 0]


def generate(directory: Path) -> None:
    """Write a training file. Every process may do it at once: the file appears whole or not at all."""
    draw = np.random.default_rng(10)
    patterns = draw.uniform(0, 255, (CLASSES, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3).astype(np.float32)
    labels = np.arange(_RECORDS, dtype=np.uint8) % CLASSES
    images = patterns[labels]
    images += _NOISE * draw.standard_normal(images.shape, dtype=np.float32)
    pixels = images.round().clip(0, 255).astype(np.uint8).reshape(_RECORDS, -1)
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory / f".{_FIRST}.{os.getpid()}"
    draft.write_bytes(np.concatenate([labels[:, None], pixels], axis=1).tobytes())
    draft.replace(directory / _FIRST)


def _records(file: Path) -> np.ndarray:
    """uint8 [N, 3073]."""
    content = np.frombuffer(file.read_bytes(), dtype=np.uint8)
    if not content.size or content.size % RECORD_BYTES:
        raise SystemExit(
            f"{file}: holds {content.size} bytes, which are no whole records of {RECORD_BYTES}; it is cut short or damaged"
        )
    return content.reshape(-1, RECORD_BYTES)
