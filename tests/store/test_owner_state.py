"""Whether the owner of a store runs: only this host's locks are seen, so an owner elsewhere is unknown, never dead."""

from __future__ import annotations

import json
import os
from pathlib import Path

from recovery.store.lock import OwnerState, held_locks, owner_of, owner_state
from recovery.store.paths import worker_path
from recovery.store.repository import WorkerStore


def test_a_store_shows_whether_its_owner_runs_here(tmp_path: Path) -> None:
    file = worker_path(tmp_path, "w")
    assert owner_state(file, held_locks()) is OwnerState.UNKNOWN, "nobody has opened it yet"
    store = WorkerStore.open(tmp_path, "w")
    held = held_locks()
    assert owner_state(file, held) is OwnerState.RUNNING
    owner = owner_of(file)
    assert owner is not None
    assert (owner.pid, owner.pid in (held or {}).values()) == (os.getpid(), True)
    store.close()
    assert owner_state(file, held_locks()) is OwnerState.NOT_RUNNING
    assert owner_state(file, None) is OwnerState.UNKNOWN, "who may not look at the locks cannot know"

    note = tmp_path / "workers" / "w.db.lock.holder"
    note.write_text(json.dumps({"pid": 1, "host": "another"}))
    assert owner_state(file, held_locks()) is OwnerState.UNKNOWN, (
        "it ran on another host that shares the directory"
    )
    note.write_text("half a no")
    assert owner_state(file, held_locks()) is OwnerState.UNKNOWN


def test_locks_that_cannot_be_read_are_no_answer(tmp_path: Path) -> None:
    assert owner_of(tmp_path / "absent.db") is None
    assert held_locks(tmp_path / "absent") is None
    assert held_locks(tmp_path) is None
