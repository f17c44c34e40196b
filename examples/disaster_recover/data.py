"""MNIST from IDX files: real ones through DATA_PATH, or a real set of handwritten digits written in the same format.

Without DATA_PATH the digits that scikit-learn brings along (1,797 scans of 8x8, UCI "Optical Recognition of Handwritten Digits")
are scaled to 28x28 and written once as train-images-idx3-ubyte and train-labels-idx1-ubyte. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_IMAGES_MAGIC, _LABELS_MAGIC = 0x803, 0x801
_MEAN, _DEVIATION = 0.1307, 0.3081


class Digits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images as float32 [1, 28, 28], scaled to 0..1 and normalised, with labels int64 []."""

    def __init__(self, directory: Path) -> None:
        """Read both files of a directory."""
        pixels = torch.from_numpy(_read(directory, IMAGES, _IMAGES_MAGIC, dimensions=3)).to(torch.float32)
        self._images = ((pixels / 255.0 - _MEAN) / _DEVIATION).unsqueeze(1)
        self._labels = torch.from_numpy(_read(directory, LABELS, _LABELS_MAGIC, dimensions=1)).to(torch.int64)
        if len(self._images) != len(self._labels):
            raise SystemExit(
                f"{directory}: {len(self._images)} images but {len(self._labels)} labels; the files do not belong together"
            )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._images[index], self._labels[index]


def load() -> Digits:
    """The data set: DATA_PATH's if that is set, else the bundled digits beside the working directory."""
    given = os.environ.get("DATA_PATH")
    directory = Path(given) if given else Path("MNIST_Data/train")
    if given is None and not (directory / LABELS).exists():
        write_digits(directory)
    return Digits(directory)


def write_digits(directory: Path) -> None:
    """Write scikit-learn's digits as IDX files. Every process may do it at once: each file appears whole or not at all."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - not needed where real MNIST is given

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).unsqueeze(1)
    scaled = torch.nn.functional.interpolate(
        images, size=(28, 28), mode="bilinear", align_corners=False
    ).squeeze(1)
    pixels = (scaled * (255.0 / 16.0)).round().clamp(0, 255).to(torch.uint8).numpy()
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / IMAGES, _IMAGES_MAGIC, pixels)
    _write(directory / LABELS, _LABELS_MAGIC, bunch.target.astype(np.uint8))


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
