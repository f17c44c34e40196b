"""Which folders hold the best model of a training, as the folders know it that training may go back to."""

from __future__ import annotations

import json
from pathlib import Path


def is_named(folder: Path) -> bool:
    """Does a folder beside it, or itself, name it as its best model? Then it stays: whoever goes back there needs it in the end.

    Args:
        folder: of a step.
    """
    return any(_best_of(other) == folder.name for other in folder.parent.glob("checkpoint-*"))


def _best_of(folder: Path) -> str:
    """Empty: it names none, or is being removed or written."""
    try:
        state = json.loads((folder / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return ""
    best = state.get("best_model_checkpoint") if isinstance(state, dict) else None
    return Path(best).name if isinstance(best, str) else ""
