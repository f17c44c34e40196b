"""Before a job begins at step 0: does another one have checkpoints where it wants to save, and does anybody here know that one?"""

from __future__ import annotations

from pathlib import Path

from recovery.checkpoint import jobs
from recovery.errors import CheckpointError
from recovery.training.session import Session


def check(session: Session, directory: Path, prefix: str) -> None:
    """Refuse to begin beside the checkpoints of a job whose stores are lost. One that `recovery reset` has archived may lie there.

    Args:
        session: at its step; behind step 0 it has begun.
        directory: that training saves in.
        prefix: of the names; `catalogue.FOLDERS`: folders.

    Raises:
        CheckpointError: there are some.
    """
    if session.recovery_path is not None and not session.step:
        check_directory(directory, prefix, job=session.job, recovery_path=session.recovery_path)


def check_directory(directory: Path, prefix: str, *, job: str, recovery_path: Path) -> None:
    """As `check`, at step 0."""
    if not jobs.unknown(directory, prefix, job=job, known=()):
        return
    from recovery.store.archive import archived_jobs  # noqa: PLC0415 - SQLAlchemy costs 0.2 s, and hardly any job comes here

    archived, _ = archived_jobs(recovery_path)
    for other in jobs.unknown(directory, prefix, job=job, known=archived)[:1]:
        raise CheckpointError(
            "CHECKPOINTS_UNKNOWN",
            directory=directory,
            count=other.count,
            other=other.job,
            step=other.newest_step,
            job=job,
            path=recovery_path,
        )
