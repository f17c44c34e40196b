"""MNIST's IDX files: real ones through DATA_PATH, or a real set of handwritten digits written in the same format.

Without DATA_PATH the digits that scikit-learn brings along (1,797 scans of 8x8, UCI "Optical Recognition of Handwritten Digits")
are scaled to 28x28 and written once as train-images-idx3-ubyte and train-labels-idx1-ubyte. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_IMAGES_MAGIC, _LABELS_MAGIC = 0x803, 0x801
_SIZE = 28


def find() -> Path:
    """The directory with both files: DATA_PATH's if that is set, else the bundled digits beside the working directory."""
    given = os.environ.get("DATA_PATH")
    directory = Path(given) if given else Path("MNIST_Data/train")
    if given is None and not (directory / LABELS).exists():
        write(directory)
    return directory


def read(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, 28, 28] and labels uint8 [N]."""
    images = _read(directory, IMAGES, _IMAGES_MAGIC, dimensions=3)
    labels = _read(directory, LABELS, _LABELS_MAGIC, dimensions=1)
    if len(images) != len(labels):
        raise SystemExit(
            f"{directory}: {len(images)} images but {len(labels)} labels; the files do not belong together"
        )
    return images, labels


def write(directory: Path) -> None:
    """Write scikit-learn's digits as IDX files. Every process may do it at once: each file appears whole or not at all."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - not needed where real MNIST is given

    bunch = load_digits()
    weights = _bilinear(bunch.images.shape[1])
    scaled = weights @ bunch.images.astype(np.float32) @ weights.T
    pixels = (scaled * np.float32(255.0 / 16.0)).round().clip(0, 255).astype(np.uint8)
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / IMAGES, _IMAGES_MAGIC, pixels)
    _write(directory / LABELS, _LABELS_MAGIC, bunch.target.astype(np.uint8))


def _bilinear(size: int) -> np.ndarray:
    """Weights float32 [28, size] of a bilinear enlargement: both images cover the same square, pixels have a width."""
    centres = ((np.arange(_SIZE) + 0.5) * size / _SIZE - 0.5).clip(0, size - 1)
    lower = np.floor(centres).astype(int).clip(0, size - 2)
    share = (centres - lower).astype(np.float32)
    weights = np.zeros((_SIZE, size), np.float32)
    weights[np.arange(_SIZE), lower] = 1 - share
    weights[np.arange(_SIZE), lower + 1] = share
    return weights


def _write(path: Path, magic: int, values: np.ndarray) -> None:
    header = np.array([magic, *values.shape], dtype=">u4").tobytes()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(header + values.tobytes())
    draft.replace(path)


def _read(directory: Path, name: str, magic: int, *, dimensions: int) -> np.ndarray:
    plain, packed = directory / name, directory / f"{name}.gz"
    if plain.exists():
        content = plain.read_bytes()
    elif packed.exists():
        content = gzip.decompress(packed.read_bytes())
    else:
        raise SystemExit(
            f"DATA_PATH={directory}: neither {name} nor {name}.gz is there; it must be the folder with MNIST's IDX files"
        )
    header = np.frombuffer(content[: 4 * (1 + dimensions)], dtype=">u4")
    if len(header) != 1 + dimensions or header[0] != magic:
        raise SystemExit(
            f"{directory / name}: is no IDX file of this kind (it begins with {content[:4].hex()}, not {magic:08x})"
        )
    shape = tuple(int(size) for size in header[1:])
    values = np.frombuffer(content, dtype=np.uint8, offset=4 * (1 + dimensions))
    if values.size != int(np.prod(shape)):
        raise SystemExit(
            f"{directory / name}: holds {values.size} values, its header says {shape}; it is cut short or damaged"
        )
    return values.reshape(shape).copy()
