"""What the releases before have left is read, gone on with and answered by this one. tests/golden/make.py made it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recovery.checkpoint import manifest
from recovery.core.messages import FromNode, FromScheduler
from recovery.core.records import CheckpointRecord, DirectoryRecord, EventKind
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import next_incarnation
from recovery.core.scheduler.machine import SchedulerMachine
from recovery.store.reader import read_checkpoints, read_scheduler, read_worker, stored_workers
from recovery.store.repository import SchedulerStore, WorkerStore
from recovery.transport import codec
from tests.cluster.small_cluster import SmallCluster
from tests.golden.messages import SENDERS, classes, examples
from tests.golden.views import EXPORT, JOB, VIEWS, export, inspected, unpacked, view
from tests.golden.words import words
from tests.store.any_records import files

HERE = Path(__file__).parent
RELEASES = sorted(path.parent.name for path in HERE.glob("*/words.json"))
JOBS = ("ended", "killed")
WALL_MS = 1_800_000_000_000
GONE: dict[str, str] = {}
"""Words that are gone on purpose, with the reason: nobody can have met them."""
CHANGING = {"written"}
"""Keys whose values are of the moment of asking."""

pytestmark = pytest.mark.parametrize("release", RELEASES)


def contents(path: Path) -> dict[str, bytes]:
    """Every file that is ours; SQLite marks in its index of the -wal who reads."""
    return {name: content for name, content in files(path).items() if not name.endswith("-shm")}


def rows(release: str, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / release / name).read_text().splitlines()]


def lacking(old: Any, new: Any, place: str = "") -> list[str]:
    """What of `old` is not in `new`, or differs there. A mapping may have gained keys, nothing else may differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for key, value in old.items()
            for found in (
                [f"{place}/{key} is gone"]
                if key not in new
                else []
                if key in CHANGING
                else lacking(value, new[key], f"{place}/{key}")
            )
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [found for number, pair in pairs for found in lacking(*pair, f"{place}/{number}")]
    return [] if old == new else [f"{place} was {old!r}, is {new!r}"]


# --- words ----------------------------------------------------------------------------------------------------------------


def test_no_word_of_an_earlier_release_is_gone_or_means_something_else(release: str) -> None:
    old = json.loads((HERE / release / "words.json").read_text())
    found = lacking(_by_word(old), _by_word(words()))
    assert [one for one in found if one.removesuffix(" is gone") not in GONE] == []


def _by_word(found: Any) -> Any:
    """Lists of words as mappings: they may have gained some."""
    if isinstance(found, dict):
        return {key: _by_word(value) for key, value in found.items()}
    return {word: {} for word in found} if isinstance(found, list) else found


# --- messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["messages.jsonl", "conversation.jsonl"])
def test_every_message_is_understood_and_said_so_that_the_earlier_release_understands_it(
    release: str, name: str
) -> None:
    found = rows(release, name)
    assert found
    for row in found:
        message = decoded(row)
        assert lacking(row["content"], json.loads(msgspec.json.encode(message))) == []
        again = msgspec.msgpack.decode(codec.encode(message))
        assert lacking(row["content"], again) == []
        assert again["type"] == row["content"]["type"]


def decoded(row: dict[str, Any]) -> FromNode | FromScheduler:
    frame = bytes.fromhex(row["frame"])
    if row["sender"] == "node":
        return codec.decode_from_node(frame, frame_bytes_max=1 << 20)
    return codec.decode_from_scheduler(frame, peer="scheduler")


def test_todays_messages_have_the_fields_and_types_that_the_earlier_release_reads(release: str) -> None:
    today = {
        (row["sender"], row["content"]["type"]): row["content"]
        for row in examples()
        if row["fields"] == "all"
    }
    for row in rows(release, "messages.jsonl"):
        said = today[row["sender"], row["content"]["type"]]
        assert lacking(row["content"] if row["fields"] == "all" else {}, said) == []


def test_the_golden_messages_are_all_that_there_were(release: str) -> None:
    found = {(row["sender"], row["content"]["type"]) for row in rows(release, "messages.jsonl")}
    assert found <= {(sender, tag) for sender in SENDERS for tag in classes(sender)}
    assert {"register", "ready", "done"} < {
        row["content"]["type"] for row in rows(release, "conversation.jsonl")
    }


# --- stores, looked at ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS)
def test_every_view_of_an_earlier_releases_job_says_the_same_and_changes_nothing(
    release: str, job: str, tmp_path: Path
) -> None:
    path = unpacked(HERE / release / f"{job}.tar.xz", tmp_path)
    before = contents(path)
    for name in VIEWS.keys() - {"plan", "verify"}:
        old = json.loads((HERE / release / job / f"{name}.json").read_text())
        assert lacking(old, as_in_its_place(view(name, path), tmp_path), name) == []
    old = json.loads((HERE / release / job / EXPORT).read_text())
    assert lacking(old, as_in_its_place(export(path, tmp_path), tmp_path), EXPORT) == []
    assert contents(path) == before


@pytest.mark.parametrize("job", JOBS)
def test_what_a_restart_would_do_is_what_the_earlier_release_would_have_done(
    release: str, job: str, tmp_path: Path
) -> None:
    path = unpacked(HERE / release / f"{job}.tar.xz", tmp_path)
    moved(path, tmp_path)
    for name in ("plan", "verify"):
        old = json.loads((HERE / release / job / f"{name}.json").read_text())
        assert lacking(old, as_in_its_place(view(name, path), tmp_path), name) == []


def as_in_its_place(found: Any, directory: Path) -> Any:
    """The answer with the paths that the job had where it ran."""
    return json.loads(json.dumps(found).replace(str(directory), str(JOB)))


@pytest.mark.parametrize("job", JOBS)
def test_every_manifest_of_an_earlier_release_is_read_and_says_the_same_in_today_s_format(
    release: str, job: str, tmp_path: Path
) -> None:
    unpacked(HERE / release / f"{job}.tar.xz", tmp_path)
    found = sorted(tmp_path.glob("ckpt/*/*.json"))
    assert found
    for path in found:
        one = manifest.read_manifest(path)
        [file] = one.files
        assert hashlib.sha256(path.with_suffix(".ckpt").read_bytes()).hexdigest() == file.digest
        old, new = json.loads(path.read_bytes()), json.loads(manifest.seal(one)[1])
        assert old.keys() == new.keys()
        assert new["manifest"].pop("format") >= old["manifest"].pop("format")
        if "file" in old["manifest"]:
            # Format 1: what it said of its one file is said in the list now, and the checkpoint was named by that file's digest.
            said = {key: old["manifest"].pop(key) for key in ("file", "digest", "file_bytes")}
            assert said == {"file": file.name, "digest": file.digest, "file_bytes": file.file_bytes}
            assert one.digest == file.digest
        assert lacking(old["manifest"], new["manifest"]) == []


@pytest.mark.cluster
def test_a_scheduler_answers_with_every_key_that_it_had(release: str, tmp_path: Path) -> None:
    old = json.loads((HERE / release / "inspection.json").read_text())
    assert lacking(shape_of(old), shape_of(inspected(tmp_path))) == []


def shape_of(found: Any) -> Any:
    """The keys of an answer, without its values: every row of a list counts."""
    if isinstance(found, dict):
        return {key: shape_of(value) for key, value in found.items()}
    if isinstance(found, list):
        shapes = [shape_of(one) for one in found]
        return {f"[]{key}": shape for one in shapes if isinstance(one, dict) for key, shape in one.items()}
    return {}


# --- stores, gone on with -------------------------------------------------------------------------------------------------


def moved(path: Path, directory: Path) -> None:
    """Let each owner write where its checkpoints lie now: the files name the place where the job ran."""
    everything = read_checkpoints(path)
    store = SchedulerStore.open(path)
    store.apply([placed(one, directory) for one in everything], wall_ms=WALL_MS)
    store.close()
    for node_id in stored_workers(path):
        worker = WorkerStore.open(path, node_id)
        found = worker.load()
        worker.apply(
            [placed(one, directory) for one in (*found.directories, *found.checkpoints)], wall_ms=WALL_MS
        )
        worker.close()


def placed(record: Any, directory: Path) -> CheckpointRecord | DirectoryRecord:
    found: CheckpointRecord | DirectoryRecord = msgspec.structs.replace(
        record, path=record.path.replace(str(JOB), str(directory))
    )
    return found


@pytest.mark.parametrize("job", JOBS)
def test_an_owner_opens_the_stores_with_every_row_and_writes_on(
    release: str, job: str, tmp_path: Path
) -> None:
    path = unpacked(HERE / release / f"{job}.tar.xz", tmp_path)
    scheduler, workers = (
        read_scheduler(path),
        {name: read_worker(path, name) for name in stored_workers(path)},
    )
    assert scheduler.job is not None
    assert workers.keys() >= {"worker_0", "worker_1"}

    moved(path, tmp_path)

    after = read_scheduler(path)
    assert (after.job, after.runs, after.nodes, after.generations) == (
        scheduler.job,
        scheduler.runs,
        scheduler.nodes,
        scheduler.generations,
    )
    assert after.checkpoints == tuple(placed(one, tmp_path) for one in scheduler.checkpoints)
    for name, before in workers.items():
        now = read_worker(path, name)
        assert (now.step, now.node, now.job, now.generations) == (
            before.step,
            before.node,
            before.job,
            before.generations,
        )
        assert now.checkpoints == tuple(placed(one, tmp_path) for one in before.checkpoints)
        assert {placed(one, tmp_path) for one in before.directories} <= set(now.directories)


@pytest.mark.parametrize("job", JOBS)
def test_a_scheduler_that_starts_on_it_finds_nothing_that_cannot_be(
    release: str, job: str, tmp_path: Path
) -> None:
    stored = read_scheduler(unpacked(HERE / release / f"{job}.tar.xz", tmp_path))
    assert stored.job is not None
    rules = Rules(worker_count=stored.job.worker_count, server_count=stored.job.server_count)
    machine = SchedulerMachine(next_incarnation(stored.job), rules)
    machine.restore(
        stored.nodes,
        stored.generations,
        stored.checkpoints,
        stored.slots,
        stored.processes,
        stored.copies,
        live_sources=stored.live_sources,
        training_ends=stored.training_ends,
    )

    machine.start(0)

    machine.check()


@pytest.mark.cluster
def test_a_job_that_an_earlier_release_began_ends_with_the_same_bits(release: str, tmp_path: Path) -> None:
    moved(unpacked(HERE / release / "killed.tar.xz", tmp_path), tmp_path)
    plan = json.loads((HERE / release / "killed" / "plan.json").read_text())
    with SmallCluster(tmp_path) as cluster:
        cluster.start()
        cluster.wait_end()
        last = cluster.events(EventKind.PLAN_MADE)[-1].event
        assert (last.step, last.generation) == (plan["step"], 3)
        cluster.check_result()
