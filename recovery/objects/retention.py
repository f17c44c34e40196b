"""Removes older steps from object storage: first the commit object, so that nobody believes a step of which a part is gone."""

from __future__ import annotations

from recovery.core.policy.retention import OBJECT_STEPS
from recovery.objects import commits
from recovery.objects.commits import At
from recovery.objects.store import ObjectStore


def retain(store: ObjectStore, job: str, run: int, *, kept: int = OBJECT_STEPS) -> tuple[At, ...]:
    """Remove what is older than the newest committed steps, committed or not. May be called by several ranks at a time.

    Args:
        store: where.
        job: whose.
        run: of which run; others are not looked at.
        kept: how many committed steps stay.

    Returns:
        The committed steps that were removed.

    Raises:
        CheckpointError: some may still be there; the next call goes on.
    """
    committed = commits.steps(store, job, run)
    if len(committed) < kept:
        return ()
    base, oldest = commits.base_of(job, run), committed[kept - 1]
    for at in committed[kept:]:
        store.remove(commits.commit_key(base, at))
    for name in store.names(f"{base}/steps"):
        # A step that never was committed, or whose upload was cut off, goes as well.
        if name < oldest.name:
            store.remove_all(f"{base}/steps/{name}")
    return committed[kept:]
