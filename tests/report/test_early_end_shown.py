"""Where a script has ended training: `recovery plan` says it as the scheduler's own plan will, and the launcher's last lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core import messages as m
from recovery.core.rules import Rules
from recovery.report import stored
from recovery.report.job_summary import lines_of
from recovery.report.plan import plan
from recovery.store.repository import SchedulerStore
from tests.core.desk import Desk, running_workers
from tests.core.test_training_stop import WHY, Ended

WALL_MS = 1_700_000_000_000


def write(desk: Desk, path: Path) -> None:
    store = SchedulerStore.open(path)
    store.apply([*desk.rows.values(), *desk.events], wall_ms=WALL_MS)
    store.close()


@pytest.mark.parametrize("finished", [False, True])
def test_a_plan_says_where_training_ends_unless_the_next_run_begins(tmp_path: Path, finished: bool) -> None:
    ended = Ended(standbys=0, rules=Rules(worker_count=2))
    ended.ask(ended.zero, 14)
    for worker in ended.workers:
        ended.answer(worker, 13)
    if finished:
        for worker in ended.workers:
            worker.save(14)
            worker.done(14)
    write(ended.desk, tmp_path)

    found = plan(stored.read_stored(tmp_path))

    assert found.action == ("new_run" if finished else "resume")
    assert ("training ends at step 14 (worker_0: " + WHY + ")" in found.reason) is not finished


def test_the_end_is_told_with_the_step_where_it_came_and_not_with_one_that_was_rolled_back(
    tmp_path: Path,
) -> None:
    desk = Desk(Rules(worker_count=2))
    workers = running_workers(desk)
    broke = m.CollectiveFailed(generation=workers[0].generation, step=40, reason="reset")
    for worker in workers:
        worker.send(m.Heartbeat(sequence=1, generation=worker.generation, step=40))
    workers[0].send(broke)
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.follow()
        worker.done(9)
    write(desk, tmp_path)

    said = lines_of(tmp_path, tmp_path)[0]

    assert "finished at step 9 after" in said
    assert "40 steps done again" in said
