"""A process with an open store forks (a DataLoader's worker, a helper): the child's end is no end of the store."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from recovery.store.repository import SchedulerStore
from tests.store import any_records

_OWNER = """
import os, sys, threading
from pathlib import Path
from recovery.store.repository import SchedulerStore
from tests.store import any_records

store = SchedulerStore.open(Path(sys.argv[1]))
rows = [any_records.event(number) for number in range(100)]
enough = threading.Event()


def write() -> None:
    while not enough.is_set():
        store.apply(rows, wall_ms=1)


writing = threading.Thread(target=write)
writing.start()
for _ in range(3):
    child = os.fork()
    if not child:
        # The interpreter's end runs every handler that the parent has registered.
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
enough.set()
writing.join()
store.apply([any_records.job(7)], wall_ms=1)
os._exit(0)
"""


def test_a_child_that_is_forked_in_the_middle_of_a_write_ends_and_leaves_the_store_alone(
    tmp_path: Path,
) -> None:
    # A measurement of coverage writes into SQLite at a child's end, and waits for ever for a lock of SQLite that was held at the fork.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=kept,
        start_new_session=True,
    )
    try:
        assert owner.wait(120) == 0
    finally:
        # A child that hangs outlives its parent.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()

    # The owner never closed it, so neither did a child in its place.
    assert (tmp_path / "scheduler.db-wal").exists()
    again = SchedulerStore.open(tmp_path)
    assert again.load().job == any_records.job(7)
    again.close()


def test_a_child_s_end_does_not_close_its_parent_s_store(tmp_path: Path) -> None:
    owner = """
import os, sys
from pathlib import Path
from recovery.store.repository import SchedulerStore

store = SchedulerStore.open(Path(sys.argv[1]))
child = os.fork()
if not child:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert Path(sys.argv[1], "scheduler.db-wal").exists()
store.close()
"""
    subprocess.run([sys.executable, "-c", owner, str(tmp_path)], cwd=Path(__file__).parents[2], check=True)
