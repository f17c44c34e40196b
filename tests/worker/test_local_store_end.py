"""How a worker's own store ends: with its process, or before it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.effects import Persist
from recovery.core.ids import NodeId
from recovery.errors import RecoveryError
from recovery.store.reader import read_notes, read_worker
from recovery.worker.local_store import LocalStore
from tests.store import samples
from tests.transport.wire import run, until
from tests.untraced import ROOT
from tests.worker.local_store_child import BATCHES
from tests.worker.test_local_store import _report


def test_a_process_that_ends_lets_its_writer_finish_first(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.local_store_child", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    steps = {noted.record.step for noted in read_notes(tmp_path, "w0").checkpoints}
    assert set(range(1, BATCHES + 1)) - steps == set()


def test_a_report_leaves_without_its_row_when_the_store_fails_under_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on without the store, so what waited for it must not wait for ever."""
    released: list[Persist] = []
    failures: list[RecoveryError] = []

    async def main() -> None:
        local_store = LocalStore(tmp_path, NodeId("w0"), accept_without_wal=False)
        local_store.attach(asyncio.get_running_loop(), released.append, failures.append)
        local_store.open()
        await until(lambda: len(released) == 1, "the directories")
        (tmp_path / "workers/w0.db.lock").unlink()
        reports = [Persist((samples.checkpoint(step),), (_report(),)) for step in (1, 2, 3)]
        for report in reports:
            local_store.submit(report)
        # In the same turn of the loop.
        await until(lambda: failures, "the failure")
        assert released[1:] == reports
        local_store.open()
        assert local_store._writer is None, "what has failed is not written again"
        local_store.close()

    run(main())

    assert len(failures) == 1
    assert "store_locked" not in caplog.text, "by this very process"
    assert read_worker(tmp_path, "w0").checkpoints == ()


def test_what_comes_after_the_end_is_released_and_not_written(tmp_path: Path) -> None:
    released: list[Persist] = []

    async def main() -> None:
        local_store = LocalStore(tmp_path, NodeId("w0"), accept_without_wal=False)
        local_store.attach(asyncio.get_running_loop(), released.append, lambda error: None)
        local_store.open()
        await until(lambda: len(released) == 1, "the directories")
        local_store.close()
        late = Persist((samples.checkpoint(),), (_report(),))
        local_store.submit(late)
        assert released[-1] == late
        local_store.open()
        assert local_store._writer is None, "a closed store stays closed"

    run(main())

    assert read_worker(tmp_path, "w0").checkpoints == ()
