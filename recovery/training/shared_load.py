"""A state that the ranks share is loaded from all their parts, when every part belongs to it."""

from __future__ import annotations

from pathlib import Path

from recovery.checkpoint import verify
from recovery.checkpoint.contribution import FileRole, Manifest
from recovery.errors import CheckpointManifestError, CheckpointStateError
from recovery.training import shared_names
from recovery.training.state import RestorableState, SharesState


def checked_parts(path: Path, own: Manifest) -> tuple[Path, ...]:
    """Compare all ranks' parts with their manifests, and those with a rank's own.

    Args:
        path: of this rank's part, which is checked already.
        own: its manifest.

    Returns:
        The parts, by rank.

    Raises:
        CheckpointError: one is absent, not what its manifest says, or of another history.

    Cost: reads the parts of the other ranks once.
    """
    return tuple(path if rank == own.rank else _checked(path, rank, own) for rank in range(own.world_size))


def load_shared(state: RestorableState, path: Path, parts: tuple[Path, ...], replicated: str) -> None:
    """Load a state from the parts of all ranks and what only this one has.

    Args:
        state: what the checkpoint fits into.
        path: of this rank's part.
        parts: checked, by rank.
        replicated: SHA-256 of what the ranks share, as the manifests say it.

    Raises:
        CheckpointStateError: it does not fit the state, or the state cannot be read from parts.
        CheckpointManifestError: the parts are not of this state.
    """
    if not isinstance(state, SharesState):
        raise CheckpointStateError(
            field=str(path),
            reason=f"is a part of a state that ranks share, and {type(state).__name__} cannot read one",
            next_step="Give the state that the program has saved.",
        )
    state.read_shared(shared_names.side_path(path), parts, replicated)


def _checked(path: Path, rank: int, own: Manifest) -> Path:
    other = shared_names.of_rank(path, rank, own_rank=own.rank)
    if other is None:
        raise CheckpointManifestError(
            path=path, reason=f"its name is not of rank {own.rank} in a shared directory"
        )
    manifest = verify.check(other, only=FileRole.PART)
    for field, found, wanted in (
        ("rank", manifest.rank, rank),
        ("job", manifest.job, own.job),
        ("run", manifest.run, own.run),
        ("step", manifest.step, own.step),
        ("world_size", manifest.world_size, own.world_size),
        ("layout", manifest.layout.value, own.layout.value),
        ("replicated", manifest.replicated[:12], own.replicated[:12]),
    ):
        if found != wanted:
            raise CheckpointManifestError(
                path=other, reason=f"it does not belong to {path.name}: {field} is {found!r}, not {wanted!r}"
            )
    return other
