"""What the views say of nodes without a rank: standbys, and those whose rank was taken over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from recovery.core.ids import Generation, NodeId, Rank
from recovery.core.records import EventKind, EventRecord, JobState, NodeState, SlotRecord
from recovery.report import stored
from recovery.report.plan import plan
from recovery.report.status import status, status_of_view
from recovery.store.repository import SchedulerStore
from tests.store.any_records import WALL_MS, generation, job, node


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of two ranks one is lost, the other was taken over by a fresh id; one standby is there, one was lost."""
    store = SchedulerStore.open(tmp_path)
    taken = {"rank": None, "state": NodeState.LOST, "generation": Generation(1)}
    store.apply(
        [
            msgspec.structs.replace(job(2), worker_count=2, state=JobState.INTERRUPTED),
            generation(1),
            generation(2),
            node("worker_0", rank=Rank(0), state=NodeState.LOST, generation=Generation(2)),
            node("worker_1", **taken),
            node("worker_1.2", rank=Rank(1), generation=Generation(2)),
            node("standby_0", rank=None),
            node("standby_1", rank=None, state=NodeState.LOST),
            SlotRecord(node_id=NodeId("worker_1"), slot=""),
            SlotRecord(node_id=NodeId("worker_1.2"), slot="worker_1"),
            SlotRecord(node_id=NodeId("standby_0"), slot=""),
            SlotRecord(node_id=NodeId("standby_1"), slot=""),
        ],
        wall_ms=WALL_MS,
    )
    store.close()
    return tmp_path


def test_the_world_is_who_holds_a_place_in_it(path: Path) -> None:
    state = stored.read_stored(path)
    assert [one.node_id for one in state.workers] == ["worker_0", "worker_1.2"]
    assert [one.node_id for one in state.standbys] == ["standby_0", "standby_1"]

    found = status(state)
    assert sum(found["workers_by_state"].values()) == 2
    assert [row["node_id"] for row in found["standbys"]] == ["standby_0", "standby_1"]
    assert [row["node_id"] for row in found["lost"]] == ["worker_0"]
    assert [row["node_id"] for row in found["ranks"]] == ["worker_0", "worker_1.2"]


def test_a_refused_id_whose_rank_another_has_taken_is_said_to_be_waited_for_by_nobody(path: Path) -> None:
    state = stored.read_stored(path)
    refused = tuple(
        msgspec.structs.replace(one, rejoin_left_ms=29_000) if one.state is NodeState.LOST else one
        for one in state.nodes
    )
    found = plan(msgspec.structs.replace(state, nodes=refused)).refused
    assert {one["node_id"]: one["rank_taken_by"] for one in found} == {
        "worker_0": None,
        "worker_1": "worker_1.2",
        "standby_1": None,
    }


def test_a_plan_names_who_is_asked_first_for_the_lost_rank(path: Path) -> None:
    found = plan(stored.read_stored(path))
    assert found.standbys == ({"node_id": "standby_0", "takes_rank": 0},), "standby_1 is lost"


def test_a_running_scheduler_shows_the_same(path: Path) -> None:
    slots = {"worker_1": "", "worker_1.2": "worker_1", "standby_0": "", "standby_1": ""}
    nodes = [
        {
            "node_id": str(one.node_id),
            "role": "worker",
            "rank": one.rank,
            "state": one.state.value,
            "seat": slots.get(str(one.node_id), str(one.node_id)),
            "generation": one.generation,
            "step": one.step,
            "rejoin_left_ms": 0,
        }
        for one in stored.read_stored(path).nodes
    ]
    facts = {"job": "j", "run": 1, "state": "interrupted", "reason": "", "generation": 2, "world_size": 2}
    view = {**facts, "scheduler_incarnation": 1, "committed_step": 0, "nodes": nodes}

    found = status_of_view(view, [], place="here")
    assert [row["node_id"] for row in found["standbys"]] == ["standby_0", "standby_1"]
    assert [row["node_id"] for row in found["lost"]] == ["worker_0"]
    assert [row["node_id"] for row in found["ranks"]] == ["worker_0", "worker_1.2"]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("status", ("standbys    2: standby_0", "standby_1 (lost)")),
        ("nodes", ("standby", "replaced")),
        ("plan", ("standby_0 is asked first to take rank 0",)),
    ],
)
def test_people_see_it(path: Path, command: str, shown: tuple[str, ...]) -> None:
    words = [sys.executable, "-m", "recovery", command, str(path)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    assert all(one in said for one in shown), said


# --- who is warming up --------------------------------------------------------------------------------------------------


@pytest.fixture
def running(path: Path) -> Iterator[Path]:
    """The same while its scheduler runs. A standby more is ready; of standby_0, which was, there is another process now."""
    store = SchedulerStore.open(path)
    standby = (node("standby_2", rank=None), SlotRecord(node_id=NodeId("standby_2"), slot=""))
    happened = (
        ("worker_1.2", EventKind.NODE_ADMITTED),
        ("standby_1", EventKind.NODE_ADMITTED),
        ("standby_2", EventKind.NODE_ADMITTED),
        ("standby_0", EventKind.NODE_ADMITTED),
        ("standby_0", EventKind.NODE_READY),
        ("standby_2", EventKind.NODE_READY),
        ("standby_0", EventKind.NODE_ADMITTED),
    )
    events = [EventRecord(kind=kind, node_id=NodeId(name)) for name, kind in happened]
    store.apply((*standby, *events), wall_ms=WALL_MS)
    yield path
    store.close()


def test_who_cannot_follow_a_plan_yet_is_warming_up(running: Path) -> None:
    found = status(stored.read_stored(running))
    assert found["warming_up"] == ["standby_0"], (
        "worker_1.2 has a plan, standby_2 is ready, standby_1 is lost"
    )
    states = {row["node_id"]: (row["state"], row["warming_up"]) for row in found["standbys"]}
    assert states == {
        "standby_0": ("live", True),
        "standby_1": ("lost", False),
        "standby_2": ("live", False),
    }


def test_a_plan_asks_who_is_ready_before_who_is_warming_up(running: Path) -> None:
    asked = {one["node_id"]: one["takes_rank"] for one in plan(stored.read_stored(running)).standbys}
    assert asked == {"standby_0": None, "standby_2": 0}


def test_nobody_is_said_to_warm_up_where_no_scheduler_hears_it(path: Path) -> None:
    assert status(stored.read_stored(path))["warming_up"] == []


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("status", ("standby_0 (warming up)", "standby_2 (live)", "warming up  standby_0\n")),
        ("nodes", ("warming up",)),
    ],
)
def test_people_see_who_is_warming_up(running: Path, command: str, shown: tuple[str, ...]) -> None:
    words = [sys.executable, "-m", "recovery", command, str(running)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    assert all(one in said for one in shown), said


def test_an_older_scheduler_that_does_not_say_who_is_warming_up_is_shown_all_the_same(path: Path) -> None:
    one = {
        "node_id": "s0",
        "role": "worker",
        "rank": None,
        "state": "live",
        "seat": "",
        "generation": 0,
        "step": 0,
        "rejoin_left_ms": 0,
    }
    facts = {"job": "j", "run": 1, "state": "running", "reason": "", "generation": 2, "world_size": 2}
    view = {**facts, "scheduler_incarnation": 1, "committed_step": 0, "nodes": [one]}
    found = status_of_view(view, [], place="here")
    assert (found["warming_up"], found["standbys"][0]["warming_up"]) == ([], None)
    new = status_of_view({**view, "nodes": [{**one, "warming_up": True}]}, [], place="here")
    assert new["warming_up"] == ["s0"]
