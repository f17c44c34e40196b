"""How a store ends with its process: the end of a forked child is none of it, and a write that never returns holds none."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.errors import StoreError
from recovery.store import repository
from recovery.store.repository import SchedulerStore
from tests.store import any_records

_OWNER = """
import os, sys, threading
from pathlib import Path
from recovery.store.repository import SchedulerStore
from tests.store import any_records


def fork() -> None:
    child = os.fork()
    if not child:
        # The interpreter's end runs every handler that the parent has registered.
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0


def held(*arguments):
    begun.set()
    assert enough.wait(60)
    return thin(*arguments)


store = SchedulerStore.open(Path(sys.argv[1]))
store.apply([any_records.job(6)], wall_ms=1)
if sys.argv[2] == "in a write":
    begun, enough = threading.Event(), threading.Event()
    # It is called within the transaction.
    thin, store._thin = store._thin, held
    writing = threading.Thread(target=store.apply, args=([any_records.event(1)],), kwargs={"wall_ms": 1})
    writing.start()
    assert begun.wait(60)
    fork()
    enough.set()
    writing.join()
else:
    fork()
store.apply([any_records.job(7)], wall_ms=1)
os._exit(0)
"""


@pytest.mark.parametrize("moment", ["in a write", "between two"])
def test_a_child_that_is_forked_ends_at_once_and_leaves_the_store_alone(tmp_path: Path, moment: str) -> None:
    # coverage holds a lock of its own while a thread's calls are noted; a fork in between leaves it held in the child for ever.
    untraced = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), moment],
        cwd=Path(__file__).parents[2],
        env=untraced,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = owner.communicate(timeout=120)[1]
    finally:
        # A child that hangs outlives its parent.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()

    assert owner.returncode == 0, said
    # The write that its parent had under way is no business of the child's: it did not wait for it.
    assert "event=store_not_closed" not in said
    # The owner never closed it, so neither did a child in its place: without its -wal the file is still refused.
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy2(tmp_path / "scheduler.db", copy)
    with pytest.raises(StoreError, match="STORE_WAL_MISSING"):
        SchedulerStore.open(copy)
    again = SchedulerStore.open(tmp_path)
    assert again.load().job == any_records.job(7)
    again.close()


def test_the_end_of_a_store_in_another_process_than_its_owner_leaves_it_alone(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([any_records.job(7)], wall_ms=1)
    repository._end(store._database, store._lock, store._one_at_a_time, os.getpid() + 1)

    store.apply([any_records.job(8)], wall_ms=1)
    assert (tmp_path / "scheduler.db-wal").exists()
    store.close()


_STUCK = """
import sys, threading
from pathlib import Path
from recovery.errors import StoreError
from recovery.store import repository
from recovery.store.repository import SchedulerStore
from recovery.store.writer import Writer
from tests.store import any_records

store = SchedulerStore.open(Path(sys.argv[1]))
store.apply([any_records.job(7)], wall_ms=1)
stuck = threading.Event()
# As a disk that has stopped answering does.
store._write = lambda records, wall_ms: (stuck.set(), threading.Event().wait())
repository.END_S = 0.05
writer = Writer(store, on_durable=print, on_failure=print, wall_ms=lambda: 1)
writer.submit([any_records.job(8)], None)
assert stuck.wait(60)
assert not writer.close(0.05)
"""


def test_a_write_that_never_returns_does_not_hold_the_end_of_its_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STUCK, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0
    assert "event=store_not_closed" in done.stderr
    again = SchedulerStore.open(tmp_path)
    assert again.load().job == any_records.job(7)
    again.close()


def test_a_store_that_ends_in_the_middle_of_a_write_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(repository, "END_S", 0.01)
    store = SchedulerStore.open(tmp_path)
    with store._one_at_a_time:
        store.close()

    assert "event=store_not_closed" in caplog.text
    assert (tmp_path / "scheduler.db-wal").exists()
    store._database.close()
    store._lock.release()
