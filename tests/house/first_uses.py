"""A process that reads everything we store for its first time, and prints what of it made msgspec build type information."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.contribution import FileRole, Manifest, ManifestFile
from recovery.cli import source
from recovery.config import rank_table
from recovery.core.ids import NodeId
from recovery.errors import StoreLockedError, UsageError
from recovery.launch import background
from recovery.store.lock import OwnerLock
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store import samples

_built: list[str] = []


def _note(frame: FrameType, event: str, argument: Any) -> None:
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        _built.append(Path(frame.f_code.co_filename).parent.name)


def _manifest(here: Path) -> None:
    file = ManifestFile(name="train-1_1.ckpt", role=FileRole.STATE, file_bytes=0, digest="0" * 64)
    one = Manifest(
        job="job",
        run=1,
        rank=0,
        world_size=1,
        incarnation=1,
        generation=1,
        step=1,
        epoch=1,
        step_in_epoch=1,
        files=(file,),
        versions={},
        integrated=True,
    )
    written = manifests.write(here / "train-1_1.json", one)
    assert manifests.read_manifest(here / "train-1_1.json") == written


def _rows(here: Path) -> None:
    for store in (SchedulerStore.open(here), WorkerStore.open(here, NodeId("worker_0"))):
        store.apply(samples.every_kind() if isinstance(store, SchedulerStore) else [], wall_ms=1)
        store.load()
        store.close()


def _lock(here: Path) -> None:
    lock = OwnerLock(here / "store.db")
    with pytest.raises(StoreLockedError, match=socket.gethostname()):
        OwnerLock(here / "store.db")
    lock.release()


def _rank_table(here: Path) -> None:
    path = here / "table.json"
    path.write_text(
        '{"version": "1.0", "server_count": "1", "status": "completed", "server_list": [{"server_id": "10.0.0.1", '
        '"device": [{"device_id": "0", "device_ip": "10.0.0.2", "rank_id": "0"}]}]}'
    )
    rank_table.read_rank_table(path, field="RANK_TABLE_FILE")


def _agent(here: Path) -> None:
    (here / "agent.json").write_text('{"pid": 0, "started_s": 0.0}')
    with pytest.raises(UsageError, match="no launcher runs"):
        background.stop(here)


def _view(here: Path) -> None:
    source.event_of({"wall_ms": 1, "event": {"kind": "plan_made"}})


def main() -> None:
    """Use each for the first time."""
    uses: tuple[Callable[[Path], None], ...] = (_manifest, _rows, _lock, _rank_table, _agent, _view)
    with tempfile.TemporaryDirectory() as directory:
        for use in uses:
            _built.clear()
            sys.setprofile(_note)
            use(Path(directory))
            sys.setprofile(None)
            if "msgspec" in _built:
                print(f"{use.__name__} builds", flush=True)
            else:
                print(f"{use.__name__} reads", flush=True)


if __name__ == "__main__":
    main()
