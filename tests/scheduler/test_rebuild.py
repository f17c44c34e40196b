"""What a recovery path still shows of a job whose scheduler's store is lost, and the store that is made of it again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recovery import config
from recovery.checkpoint.contribution import Manifest
from recovery.checkpoint.publish import Content, publish
from recovery.config import Settings
from recovery.core.causes import Cause
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import Role
from recovery.core.policy.live import LiveSource
from recovery.core.records import (
    CheckpointRecord,
    CheckpointState,
    DirectoryRecord,
    GenerationRecord,
    JobRecord,
    JobState,
    LiveSourceRecord,
    NodeRecord,
    NodeState,
    Record,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import new_job
from recovery.core.scheduler.membership.lost_scheduler_store import REBUILDING
from recovery.errors import StoreLostError
from recovery.scheduler import store_rebuild
from recovery.scheduler.startup import load_machine, open_store
from recovery.store.archive import archive_stores
from recovery.store.reader import read_job
from recovery.store.repository import SchedulerStore, WorkerStore

JOB = "the-old-job"


def settings(path: Path, **environment: str) -> Settings:
    return config.load(
        {
            "MS_ROLE": "MS_SCHED",
            "MS_WORKER_NUM": "2",
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": "0",
            "MS_ENABLE_RECOVERY": "1",
            "MS_RECOVERY_PATH": str(path),
            **environment,
        }
    )


def job(name: str = JOB, generation: int = 2) -> JobRecord:
    fresh = new_job(name, Rules(worker_count=2))
    return msgspec.structs.replace(fresh, state=JobState.RUNNING, generation=Generation(generation))


def node(rank: int) -> NodeRecord:
    return NodeRecord(
        node_id=NodeId(f"worker_{rank}"),
        role=Role.WORKER,
        rank=Rank(rank),
        incarnation=Incarnation(3),
        state=NodeState.LIVE,
        token_digest="ab" * 32,
        admission_request="r",
        host="10.0.0.1",
        pid=4711,
    )


def generation(number: int, step: int) -> GenerationRecord:
    return GenerationRecord(
        run=RunId(1), generation=Generation(number), step=step, epoch=0, step_in_epoch=0, because=""
    )


def save(directory: Path, rank: int, step: int, *, name: str = JOB) -> None:
    """A checkpoint as a worker publishes it."""
    manifest = Manifest(
        job=name, run=1, rank=rank, world_size=2, incarnation=3, generation=2, step=step, epoch=1,
        step_in_epoch=step, files=(), versions={}, integrated=True,
    )  # fmt: skip
    publish(
        directory,
        [Content(f"small-1_{step}.ckpt", lambda stream: stream.writelines([b"state"]))],
        lambda files: msgspec.structs.replace(manifest, files=files),
    )


def saved(step: int) -> CheckpointRecord:
    """That rank 0 has saved a step."""
    return CheckpointRecord(
        run=RunId(1), step=step, rank=Rank(0), generation=Generation(2), epoch=1, step_in_epoch=step,
        path="", digest="ab" * 32, file_bytes=5, state=CheckpointState.PUBLISHED,
    )  # fmt: skip


def worker_store(path: Path, rank: int, *records: Record, scheduler: tuple[str, int] | None = None) -> None:
    store = WorkerStore.open(path, f"worker_{rank}", scheduler=scheduler)
    store.apply(records, wall_ms=1)
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A job of two workers that have saved steps 10 and 20, without its scheduler's store."""
    path = tmp_path / "recovery"
    for rank in range(2):
        directory = tmp_path / "ckpt" / str(rank)
        for step in (10, 20):
            save(directory, rank, step)
        where = DirectoryRecord(path=str(directory), prefix="small", run=RunId(1))
        worker_store(path, rank, job(), node(rank), generation(1, 0), generation(2, 10), where)
    return path


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()
    }


def test_a_scheduler_refuses_by_name_and_leaves_everything_as_it_is(path: Path) -> None:
    before = files(path.parent)

    with pytest.raises(StoreLostError) as refused:
        open_store(settings(path))

    assert files(path.parent) == before
    said = str(refused.value)
    assert "worker_1 (rank 1, run 1, generation 2, job the-old-job, 2 checkpoints, newest step 20)" in said
    assert f"recovery rebuild {path}" in said
    assert refused.value.exit_code == 39


def test_a_scheduler_that_is_told_to_asks_the_workers_and_touches_nothing_else(path: Path) -> None:
    others = {name: content for name, content in files(path.parent).items() if "lock" not in name}

    store = open_store(settings(path, MS_REBUILD_STORE="1"))

    assert store is not None
    machine = load_machine(store, settings(path))
    store.close()
    state = machine.state
    assert (state.job.state, state.job.cause, state.job.generation) == (
        JobState.FORMING,
        Cause.STORE_REBUILT,
        0,
    )
    assert state.builds_again, "also where this process is not told to: an earlier one was, or a person has"
    after = files(path.parent)
    assert {name: after[name] for name in others} == others, "something else was touched"


def test_settings_of_a_scheduler_that_asks_are_compared_with_what_the_workers_say(path: Path) -> None:
    store_rebuild.ask_workers(path, Rules(worker_count=1))
    store = open_store(settings(path))
    assert store is not None
    machine = load_machine(store, settings(path))
    store.close()
    assert machine.state.job.worker_count == 2


def test_a_job_that_its_store_knows_and_a_path_without_a_job_are_not_lost(path: Path, tmp_path: Path) -> None:
    assert store_rebuild.lost_in(tmp_path / "nothing") is None
    WorkerStore.open(tmp_path / "early", "worker_0").close()
    assert store_rebuild.lost_in(tmp_path / "early") is None, "a worker was there before the scheduler"
    forming = SchedulerStore.open(tmp_path / "early")
    forming.close()
    assert store_rebuild.lost_in(tmp_path / "early") is None
    forming = SchedulerStore.open(tmp_path / "early")
    forming.apply([new_job("new", Rules(worker_count=2))], wall_ms=1)
    forming.close()
    assert store_rebuild.lost_in(tmp_path / "early") is None

    known = SchedulerStore.open(path)
    known.apply([job()], wall_ms=1)
    known.close()
    assert store_rebuild.lost_in(path) is None


def test_a_new_store_beside_old_workers_stores_is_as_good_as_none(path: Path) -> None:
    """An earlier release has begun a job of its own there; what it wrote is archived, not written over."""
    fresh = SchedulerStore.open(path)
    fresh.apply([new_job("new", Rules(worker_count=2))], wall_ms=1)
    fresh.close()

    with pytest.raises(StoreLostError, match="the-old-job"):
        open_store(settings(path))
    store = open_store(settings(path, MS_REBUILD_STORE="1"))

    assert store is not None
    store.close()
    [archived] = path.glob("lost-*")
    before = read_job(archived)
    after = read_job(path)
    assert before is not None
    assert after is not None
    assert before.job == "new"
    assert after.cause is Cause.STORE_REBUILT


@pytest.mark.parametrize("part", ["-wal", ".commits"])
def test_what_is_left_of_a_lost_store_shows_a_job_and_is_archived(tmp_path: Path, part: str) -> None:
    (tmp_path / f"scheduler.db{part}").write_bytes(b"left")
    with pytest.raises(StoreLostError, match=rf"scheduler\.db{part} of its scheduler is left"):
        open_store(settings(tmp_path))

    store = open_store(settings(tmp_path, MS_REBUILD_STORE="1"))

    assert store is not None
    waiting = store.load().job
    store.close()
    assert waiting is not None
    assert (waiting.state, waiting.reason) == (JobState.FORMING, REBUILDING)
    [archived] = tmp_path.glob("lost-*")
    assert (archived / f"scheduler.db{part}").read_bytes() == b"left"
    again = open_store(settings(tmp_path, MS_REBUILD_STORE="1"))
    assert again is not None
    again.close()
    assert read_job(tmp_path) == waiting, "the workers are asked already"
    without = open_store(settings(tmp_path))
    assert without is not None
    without.close()
    assert read_job(tmp_path) == waiting


def test_a_store_that_cannot_be_read_is_named(path: Path) -> None:
    (path / "workers/worker_7.db").write_bytes(b"")
    traces = store_rebuild.lost_in(path)
    assert traces is not None
    assert "not readable: STORE_CORRUPT" in traces.description


def test_jobs_that_a_person_has_archived_are_known_to_the_machine(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(settings(path, MS_REBUILD_STORE="1"))
    assert store is not None
    store.close()
    archive_stores(path, "reset-1")
    (path / "reset-2").mkdir()

    store = open_store(settings(path))
    machine = load_machine(store, settings(path))
    assert store is not None
    store.close()

    assert JOB in machine.state.archived_jobs
    assert "reset-2" in caplog.text


def test_what_is_left_of_a_lost_job_can_be_archived(path: Path) -> None:
    archive_stores(path, "reset-1")
    store = open_store(settings(path))
    assert store is not None
    assert store.load().job is None
    store.close()


def test_a_machine_knows_again_in_whose_memory_its_newest_plan_found_the_state(tmp_path: Path) -> None:
    older, newest = (
        LiveSourceRecord(
            run=RunId(1), generation=Generation(number), rank=Rank(number - 1), structure="0f" * 32
        )
        for number in (1, 2)
    )
    store = SchedulerStore.open(tmp_path)
    store.apply([job(), generation(1, 5), generation(2, 10), node(0), older, newest], wall_ms=1)
    store.close()

    again = open_store(settings(tmp_path))
    machine = load_machine(again, settings(tmp_path))
    assert again is not None
    again.close()

    assert machine.state.live.sources == (LiveSource(newest.rank, newest.structure),)


@pytest.mark.parametrize(("machine", "left_s"), [("the same", 4), ("another", 10)])
def test_an_open_window_runs_on_while_no_scheduler_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, left_s: int
) -> None:
    from recovery import clock

    now_ms = clock.boot_ms()
    monkeypatch.setattr(clock, "boot_ms", lambda: now_ms)
    store = SchedulerStore.open(tmp_path)
    lost = msgspec.structs.replace(node(0), state=NodeState.LOST, rejoin_left_ms=10_000)
    store.apply([job(), generation(2, 10), lost], wall_ms=1)
    store.close()
    monkeypatch.setattr(clock, "boot_ms", lambda: now_ms + 6_000)
    if machine == "another":
        monkeypatch.setattr(clock, "boot_id", lambda: "another")

    again = open_store(settings(tmp_path))
    assert again is not None
    restarted = load_machine(again, settings(tmp_path))
    again.close()

    [known] = restarted.state.nodes.values()
    assert known.record.rejoin_left_ms == left_s * 1_000
