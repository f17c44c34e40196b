"""`recovery plan` says where a script has ended training, as the scheduler's own plan will."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.rules import Rules
from recovery.report import stored
from recovery.report.plan import plan
from recovery.store.repository import SchedulerStore
from tests.core.test_training_stop import WHY, Ended

WALL_MS = 1_700_000_000_000


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
    store = SchedulerStore.open(tmp_path)
    store.apply([*ended.desk.rows.values(), *ended.desk.events], wall_ms=WALL_MS)
    store.close()

    found = plan(stored.read_stored(tmp_path))

    assert found.action == ("new_run" if finished else "resume")
    assert ("training ends at step 14 (worker_0: " + WHY + ")" in found.reason) is not finished
