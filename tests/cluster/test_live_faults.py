"""Live rollback under faults that come together: who gives dies, several die, the scheduler too, one is stopped, one dies before the plan."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.made_once import made_once
from tests.faults import live_expected
from tests.faults.live_events import EventCluster, cluster_of, disturb, undisturbed_of
from tests.faults.live_events_cases import Case
from tests.faults.live_strikes import HOLD, Strike, write_strikes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LEASE = {"MS_NODE_TIMEOUT": "3", "MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
DIES_AT = 10
"""Behind the save of step 7."""


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> EventCluster:
    def run(directory: Path) -> None:
        undisturbed_of(directory / "job", 3)

    return EventCluster(made_once(tmp_path_factory, "undisturbed-live-events", run) / "job", workers=3)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[EventCluster]:
    """A job whose rank 0 waits in a step for the end of its generation, so that the others wait for it in theirs."""
    strikes = write_strikes([Strike(0, "backward begins", DIES_AT, HOLD)])
    with cluster_of(tmp_path / "job", 3, JOB_STRIKES=strikes, **LEASE) as cluster:
        cluster.start()
        cluster.wait((cluster.directory / "struck_0").exists, "rank 0 to wait in its step")
        yield cluster


def newest_plan(cluster: EventCluster) -> tuple[int | None, str]:
    event = cluster.events(EventKind.PLAN_MADE)[-1].event
    return event.step, event.reason


@pytest.mark.parametrize(
    ("dead", "source"), [([0], 1), ([0, 1], 2), ([1, 2], 0)], ids=["rank-0", "all-but-2", "all-but-0"]
)
def test_who_is_left_gives_its_memory(
    waiting: EventCluster, undisturbed: EventCluster, dead: list[int], source: int
) -> None:
    waiting.kill_and_relaunch(*(f"worker_{rank}" for rank in dead))
    waiting.go_to_end()
    last = DIES_AT - 1
    assert newest_plan(waiting) == (
        last,
        f"rank {source} holds step {last} in its memory, and gives it to all",
    )
    waiting.check_same_as(undisturbed, live=True)


def test_the_one_that_gives_dies_while_it_gives(tmp_path: Path, undisturbed: EventCluster) -> None:
    strikes = (Strike(2, "backward begins", DIES_AT), Strike(0, "piece 4", follows=True))
    ended = disturb(undisturbed, tmp_path / "job", Case(strikes))
    assert not ended.fault, ended.fault
    assert [plan.step for plan in ended.plans] == [DIES_AT - 1, DIES_AT - 1]
    assert ended.plans[-1].reason.startswith("rank 1 holds")


def test_all_die(waiting: EventCluster, undisturbed: EventCluster) -> None:
    # Its files are written beside the training, and three steps are soon over.
    waiting.wait_event(EventKind.CHECKPOINT_COMMITTED)
    waiting.kill_and_relaunch(*waiting.names)
    waiting.go_to_end()
    step, reason = newest_plan(waiting)
    assert step == 7, "the newest checkpoint"
    assert "no live rollback: " in reason
    waiting.check_same_as(undisturbed, live=True)


@pytest.mark.parametrize("together", [True, False], ids=["with-a-rank", "behind-it"])
def test_the_scheduler_dies_too(waiting: EventCluster, undisturbed: EventCluster, together: bool) -> None:
    if together:
        waiting.kill_and_relaunch("worker_2", "sched")
    else:
        waiting.kill("worker_2")
        waiting.wait_event(EventKind.GENERATION_INTERRUPTED)
        waiting.kill_and_relaunch("sched")
        waiting.launch("worker_2")
    waiting.go_to_end()
    step, reason = newest_plan(waiting)
    assert step == DIES_AT - 1, reason
    assert "in its memory" in reason
    waiting.check_same_as(undisturbed, live=True)


def test_another_dies_before_the_plan_is_made(waiting: EventCluster, undisturbed: EventCluster) -> None:
    waiting.kill("worker_2")
    waiting.wait_event(EventKind.NODE_READY, "worker_0", count=2)
    waiting.kill_and_relaunch("worker_0")
    waiting.launch("worker_2")
    waiting.go_to_end()
    assert newest_plan(waiting) == (
        DIES_AT - 1,
        f"rank 1 holds step {DIES_AT - 1} in its memory, and gives it to all",
    )
    waiting.check_same_as(undisturbed, live=True)


def test_a_survivor_is_stopped_beyond_its_lease(waiting: EventCluster, undisturbed: EventCluster) -> None:
    waiting.signal("worker_1", signal.SIGSTOP)
    waiting.kill_and_relaunch("worker_2")
    waiting.wait_event(EventKind.NODE_LOST, "worker_1")
    waiting.signal("worker_1", signal.SIGCONT)
    waiting.go_to_end()
    step, reason = newest_plan(waiting)
    assert step == DIES_AT - 1, reason
    assert "in its memory" in reason
    assert all(plan.lost == 0 for plan in live_expected.plans(waiting))
    waiting.check_same_as(undisturbed, live=True)
