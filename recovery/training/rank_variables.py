"""Which rank a process is, in the variables that torchrun sets: scripts and trainers read them there."""

from __future__ import annotations

from recovery.training.session import Session


def rank_variables(session: Session) -> dict[str, str]:
    """Of this entry.

    Args:
        session: whose rank another process may have had before.
    """
    return {
        "RANK": str(session.rank),
        "WORLD_SIZE": str(session.world_size),
        "LOCAL_RANK": str(session.local_rank),
        "LOCAL_WORLD_SIZE": str(session.local_world_size),
    }
