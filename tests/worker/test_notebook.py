"""What a worker reports stands in its own store first."""

from __future__ import annotations

import asyncio
from pathlib import Path

from recovery.core.effects import Persist, Report
from recovery.core.ids import Generation, NodeId, RequestId, RunId
from recovery.core.messages import CheckpointReport, HeldCheckpoint
from recovery.errors import RecoveryError
from recovery.store.reader import read_worker
from recovery.worker.notebook import Notebook
from tests.store import samples
from tests.transport.wire import run, until


def _report() -> Report:
    held = HeldCheckpoint(
        run=RunId(1),
        generation=Generation(1),
        step=10,
        epoch=1,
        step_in_epoch=10,
        path="/checkpoints/a-1_10.ckpt",
        digest="ab" * 32,
        file_bytes=100,
    )
    return Report(CheckpointReport(request_id=RequestId("r"), checkpoint=held))


def test_a_report_is_released_when_its_row_can_be_read_and_not_before(tmp_path: Path) -> None:
    rows_at_release: list[int] = []
    failures: list[RecoveryError] = []

    def release(persist: Persist) -> None:
        if persist.then:
            rows_at_release.append(len(read_worker(tmp_path, "w0").checkpoints))

    async def main() -> None:
        notebook = Notebook(tmp_path, NodeId("w0"), accept_without_wal=False)
        notebook.attach(asyncio.get_running_loop(), release, failures.append)
        notebook.open()
        notebook.submit(Persist((samples.checkpoint(),), (_report(),)))
        assert rows_at_release == [], "it was released before anybody could have written it"
        await until(lambda: rows_at_release, "the release")
        assert notebook._writer is not None
        assert notebook._store is not None
        assert notebook._writer.close(10.0)
        notebook._store.close()

    run(main())

    assert rows_at_release == [1]
    assert failures == []
