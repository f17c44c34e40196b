"""Where a command looks that was given no path, and what it says of many commits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recovery.cli.source import path_of, source_of
from recovery.core.records import EventKind
from recovery.errors import CheckpointStateError, UsageError
from recovery.report.status import LAST_EVENTS, status
from recovery.report.stored import read_stored
from recovery.store.repository import SchedulerStore
from tests.store.any_records import WALL_MS, event, job


def test_a_job_is_looked_at_where_recovery_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MS_RECOVERY_PATH", raising=False)
    with pytest.raises(UsageError, match="is not given, and recovery is not there"):
        path_of(None)
    (tmp_path / "recovery").mkdir()
    assert source_of(None, None) == Path("recovery")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("MS_RECOVERY_PATH", "elsewhere")
    assert source_of(None, None) == Path("elsewhere")
    assert source_of(Path("typed"), None) == Path("typed"), "whether it is there is said when it is read"


def test_commits_do_not_hide_what_has_happened(tmp_path: Path) -> None:
    with_commits = [
        msgspec.structs.replace(event(step), kind=EventKind.CHECKPOINT_COMMITTED) for step in range(20)
    ]
    store = SchedulerStore.open(tmp_path)
    lost = msgspec.structs.replace(event(3), kind=EventKind.NODE_LOST)
    store.apply([job(), *with_commits[:10], lost, *with_commits[10:]], wall_ms=WALL_MS)
    store.close()
    shown = [(row["kind"], row["step"]) for row in status(read_stored(tmp_path))["shown_events"]]
    assert len(shown) <= LAST_EVENTS
    assert shown[-2:] == [("node_lost", 3), ("checkpoint_committed", 19)]


def test_an_error_of_several_lines_is_a_clause_of_one() -> None:
    error = CheckpointStateError(
        field="model", reason="Error(s) in loading:\n\tsize mismatch.", next_step="Build it again."
    )
    assert str(error) == "CHECKPOINT_STATE: model: Error(s) in loading: size mismatch. Build it again."
