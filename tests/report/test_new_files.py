"""What a command writes into a new file is whole, or not there; and what cannot be read of a job is named in it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import timeline as timeline_command
from recovery.cli.export import export
from recovery.core.ids import RunId
from recovery.core.records import DirectoryRecord
from recovery.errors import StoreError
from recovery.file_systems import write_new
from recovery.report import timeline_image
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.report.test_audit import stored
from tests.store.any_records import WALL_MS, event
from tests.untraced import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A job of two workers."""
    place = tmp_path / "job"
    stored(place, [event(1)])
    for name in ("worker_0", "worker_1"):
        with closing(WorkerStore.open(place, name)) as store:
            store.apply([DirectoryRecord(path=f"/{name}", prefix="p", run=RunId(1))], wall_ms=WALL_MS)
    return place


def exported(path: Path) -> dict[str, Any]:
    file = path.parent / "export.json"
    export(path, file)
    document: dict[str, Any] = json.loads(file.read_bytes())
    return document


def test_a_job_that_is_whole_is_exported_whole(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = exported(path)

    assert document["directories"] == {"worker_0": ["/worker_0"], "worker_1": ["/worker_1"]}
    assert len(document["events"]) == 1
    assert "unreadable" not in document
    assert "not exported" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damaged", "lacks"),
    [("workers/worker_1.db", "worker_1"), ("scheduler.db", "job")],
)
def test_of_a_damaged_store_nothing_is_exported_but_its_damage(
    path: Path, capsys: pytest.CaptureFixture[str], damaged: str, lacks: str
) -> None:
    whole = exported(path)
    (path.parent / "export.json").unlink()
    (path / damaged).write_bytes(b"no database, although it is long enough to be one" * 9)

    document = exported(path)

    [sentence] = document["unreadable"]
    assert damaged in sentence
    assert f"not exported: {sentence}" in capsys.readouterr().err
    assert lacks not in {**document, **document["directories"]}
    assert document["directories"].items() <= whole["directories"].items()
    if lacks != "job":
        assert document["events"] == whole["events"]


def test_damage_in_the_event_log_costs_the_events(path: Path) -> None:
    with closing(SchedulerStore.open(path)) as store:
        store._database.connection.exec_driver_sql("UPDATE events SET reason = 'another'")
        store._database.connection.commit()

    document = exported(path)

    assert "events" not in document
    assert "table events" in document["unreadable"][0]
    assert document["job"]["worker_count"] == 2


def test_where_nothing_can_be_read_nothing_is_written(tmp_path: Path) -> None:
    stored(tmp_path / "job", [])
    (tmp_path / "job" / "scheduler.db").write_bytes(b"no database")
    with pytest.raises(StoreError, match="STORE_NOT_OURS"):
        exported(tmp_path / "job")
    assert not (tmp_path / "export.json").exists()


def test_a_file_that_cannot_be_written_whole_is_not_left_behind(tmp_path: Path) -> None:
    file = tmp_path / "file"
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096)); from pathlib import Path; from recovery.file_systems import write_new; write_new(Path(sys.argv[1]), bytes(10_000))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "File too large" in done.stderr
    assert not file.exists()

    write_new(file, b"whole")
    with pytest.raises(FileExistsError):
        write_new(file, b"another")
    assert file.read_bytes() == b"whole"


def test_a_process_that_is_killed_while_it_writes_leaves_no_half_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    code = "import resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096)); signal.signal(signal.SIGXFSZ, signal.SIG_DFL); from pathlib import Path; from recovery.file_systems import write_new; write_new(Path(sys.argv[1]), bytes(10_000))"
    done = subprocess.run([sys.executable, "-c", code, str(file)], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGXFSZ
    assert not file.exists()


def test_a_new_file_is_whole_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    write_new(tmp_path / "file", b"whole", 0o600)
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "file", b"another")
    assert [(path.name, path.read_bytes(), path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == [
        ("file", b"whole", 0o600)
    ]


@pytest.mark.parametrize("what", ["html", "png"])
def test_a_timeline_that_cannot_be_drawn_leaves_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise MemoryError

    monkeypatch.setattr(timeline_command, "page", broken)
    monkeypatch.setattr(timeline_image, "by_slot", broken)
    file = path.parent / f"timeline.{what}"
    with pytest.raises(MemoryError):
        timeline_command.timeline(
            path, html=file if what == "html" else None, png=file if what == "png" else None
        )
    assert not file.exists()
