"""`recovery plan` says before a death what live rollback would do about it."""

from __future__ import annotations

from pathlib import Path

from recovery.core import messages as m
from recovery.core.rules import Rules
from recovery.report import stored
from recovery.report.plan import plan
from recovery.store.repository import SchedulerStore
from tests.core.desk import Desk, running_workers

WALL_MS = 1_700_000_000_000


def said(tmp_path: Path, *, live: bool = True, not_live: str = "") -> str:
    """What a plan of a job of two workers says, of which the second gave this reason."""
    desk = Desk(Rules(worker_count=2, live_rollback=live))
    workers = running_workers(desk, "worker_0", "worker_1")
    for worker, reason in zip(workers, ("", not_live), strict=True):
        worker.send(m.StateLoaded(generation=worker.generation, step=0, not_live=reason))
    store = SchedulerStore.open(tmp_path)
    store.apply([*desk.rows.values(), *desk.events], wall_ms=WALL_MS)
    store.close()
    return plan(stored.read_stored(tmp_path)).live


def test_a_job_that_can_go_on_from_memory_says_so(tmp_path: Path) -> None:
    assert "a death costs no step" in said(tmp_path)


def test_what_stands_in_its_way_is_named_by_rank(tmp_path: Path) -> None:
    text = said(tmp_path, not_live="Part own differs between the ranks")
    assert text.startswith("not possible")
    assert text.endswith("rank 1: Part own differs between the ranks")


def test_a_job_that_does_not_ask_for_it_says_nothing(tmp_path: Path) -> None:
    assert said(tmp_path, live=False) == ""


def test_a_job_that_does_not_train_says_nothing(tmp_path: Path) -> None:
    desk = Desk(Rules(worker_count=2, live_rollback=True))
    store = SchedulerStore.open(tmp_path)
    store.apply([*desk.rows.values(), *desk.events], wall_ms=WALL_MS)
    store.close()
    assert plan(stored.read_stored(tmp_path)).live == ""
