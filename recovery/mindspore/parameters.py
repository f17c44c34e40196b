"""Parameters from MindSpore's checkpoint files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore

from recovery.errors import CheckpointStateError


def load(path: Path, network: Any, *, key: bytes | None = None, mode: str = "AES-GCM") -> dict[str, Any]:
    """Load a .ckpt or .safetensors file into every parameter of `network`.

    Args:
        path: of a file whose digest has been checked.
        network: a cell; in training the one with the optimizer in it.
        key: of an encrypted file.
        mode: how it is encrypted.

    Returns:
        What the file holds besides, by name.

    Raises:
        CheckpointStateError: it cannot be read, or lacks a parameter.
    """
    options = (
        {"format": "safetensors"} if path.suffix == ".safetensors" else {"dec_key": key, "dec_mode": mode}
    )
    try:
        held = mindspore.load_checkpoint(str(path), **options)
        missing, extra = mindspore.load_param_into_net(network, held, strict_load=True)
    except Exception as error:
        # MindSpore raises half a dozen types for what is no file of its own.
        raise _unfit(path, f"cannot be loaded ({error})") from error
    if missing:
        raise _unfit(path, f"the checkpoint lacks {', '.join(sorted(missing)[:5])}")
    return {name: held[name] for name in extra}


def versions() -> dict[str, str]:
    """For the manifest."""
    return {"mindspore": str(mindspore.__version__)}


def _unfit(path: Path, reason: str) -> CheckpointStateError:
    return CheckpointStateError(
        field=str(path),
        reason=reason,
        next_step="Give the network and the optimizer that it was saved from.",
    )
