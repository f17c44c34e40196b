"""Every inspecting command on every kind of damage: one clear line, never a traceback, never a write."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from recovery.store.repository import SchedulerStore
from tests.cluster.inspected import contents, finished_job, job_to_damage, run
from tests.needs import needs_tool
from tests.store import samples

pytestmark = pytest.mark.cluster

COMMANDS = ("status", "nodes", "steps", "checkpoints", "generations", "events", "plan", "verify", "timeline")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_job(tmp_path_factory).parent


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody else looks at it meanwhile."""
    return job_to_damage(tmp_path_factory).parent


@pytest.fixture
def job(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage; what it says of checkpoints still points to the original."""
    shutil.copytree(finished / "recovery", tmp_path / "recovery")
    return tmp_path / "recovery"


def empty(path: Path) -> None:
    (path / "scheduler.db").write_bytes(b"")


def truncated(path: Path) -> None:
    content = (path / "scheduler.db").read_bytes()
    (path / "scheduler.db").write_bytes(content[: len(content) // 3])


def noise(path: Path) -> None:
    (path / "scheduler.db").write_bytes(random.Random(1).randbytes(4096))


def foreign(path: Path) -> None:
    (path / "scheduler.db").unlink()
    with closing(sqlite3.connect(path / "scheduler.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.commit()


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path / "scheduler.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()


def changed_row(path: Path) -> None:
    with closing(sqlite3.connect(path / "scheduler.db")) as connection:
        connection.execute("UPDATE job SET worker_count = 3")
        connection.commit()


def gone(path: Path) -> None:
    for file in path.glob("scheduler.db*"):
        file.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (empty, "STORE_CORRUPT"),
    "truncated": (truncated, "STORE_CORRUPT"),
    "noise": (noise, "STORE_NOT_OURS"),
    "foreign": (foreign, "STORE_NOT_OURS"),
    "newer": (newer, "STORE_VERSION"),
    "changed_row": (changed_row, "STORE_CORRUPT"),
    "gone": (gone, "RECOVERY_PATH"),
}


def is_one_clear_line(done: subprocess.CompletedProcess[str], code: str) -> None:
    said = done.stderr.strip() or done.stdout.strip()
    assert done.returncode != 0, done
    assert code in said, said
    assert "Traceback" not in done.stderr + done.stdout
    assert len(said.splitlines()) <= 2, said


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_named_and_left_alone(job: Path, damage: str) -> None:
    spoil, code = DAMAGES[damage]
    spoil(job)
    before = contents(job)
    # A changed row leaves the event log whole.
    readable = ("events",) if damage == "changed_row" else ()
    for command in COMMANDS:
        if command in readable:
            continue
        is_one_clear_line(run(command, str(job)), code)
    assert contents(job) == before


@pytest.mark.parametrize("command", ["nodes", "verify"])
def test_a_damaged_workers_file_is_named(job: Path, command: str) -> None:
    (job / "workers" / "worker_1.db").write_bytes(
        b"not a database, although it is long enough to be read" * 9
    )
    done = run("steps" if command == "nodes" else command, str(job))
    assert done.returncode == 1
    assert "worker_1.db" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["with space", "what?", "100%", "quote'd", 'double"', "a#b", "ünï", "-dash"])
def test_any_name_of_a_path_is_read(finished: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    shutil.copytree(finished / "recovery", place)
    done = run("status", str(place), "--json")
    assert done.returncode == 0, done.stderr
    assert run("events", str(place), "--limit=3").returncode == 0


def test_a_path_that_is_no_text_is_read(finished: Path, tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"byte \xff")
    shutil.copytree(finished / "recovery", place)
    for command in COMMANDS:
        for form in ((), ("--json",)):
            done = run(command, str(place), *form)
            assert done.returncode == 0, (command, form, done.stderr)
    assert run("export", str(place), str(tmp_path / "export.json")).returncode == 0
    assert json.loads((tmp_path / "export.json").read_text())["path"] == f"{tmp_path}/byte ?"
    assert "Traceback" not in run("reset", str(place), "--yes").stderr


def no_privilege() -> list[str]:
    """How to run as somebody whom permissions bind; root is bound without two of its capabilities (capabilities(7))."""
    if os.geteuid():
        return []
    return [needs_tool("setpriv", "util-linux"), "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.parametrize("closed", [".", "scheduler.db", "workers"])
def test_a_path_without_permission_is_named_and_left_alone(job: Path, closed: str) -> None:
    under, before, file = no_privilege(), contents(job), job.parent / "export.json"
    reading_workers: list[tuple[str, ...]] = [
        ("steps",),
        ("verify",),
        ("export", str(file)),
        ("reset", "--yes"),
    ]
    others: list[tuple[str, ...]] = [(name,) for name in COMMANDS if (name,) not in reading_workers]
    others.append(("forget", "worker_1", "--yes"))
    rights = (job / closed).stat().st_mode
    (job / closed).chmod(0)
    try:
        for command, *rest in reading_workers if closed == "workers" else reading_workers + others:
            done = run(command, str(job), *rest, under=under)
            is_one_clear_line(done, "RECOVERY_PATH")
            assert "Permission denied" in done.stderr + done.stdout
    finally:
        (job / closed).chmod(rights)
    assert contents(job) == before
    assert not file.exists()


def test_forgetting_and_resetting_make_nothing_where_nothing_is(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        is_one_clear_line(run("forget", str(place), "worker_0", "--yes"), "RECOVERY_PATH")
        is_one_clear_line(run("reset", str(place), "--yes"), "RECOVERY_PATH")
    is_one_clear_line(run("reset", str(tmp_path / ("x" * 300)), "--yes"), "RECOVERY_PATH")
    assert list(tmp_path.iterdir()) == []


def test_no_path_and_no_directory(tmp_path: Path) -> None:
    is_one_clear_line(run("status", str(tmp_path / "none")), "RECOVERY_PATH")
    (tmp_path / "file").write_text("x")
    is_one_clear_line(run("status", str(tmp_path / "file")), "RECOVERY_PATH")
    is_one_clear_line(run("status"), "RECOVERY_PATH")
    is_one_clear_line(run("nodes", "--connect=127.0.0.1:1"), "USAGE")
    is_one_clear_line(run("nodes", "--connect=nowhere"), "SETTING_TYPE")


def test_an_empty_event_log_is_one(job: Path) -> None:
    with closing(sqlite3.connect(job / "scheduler.db")) as connection:
        connection.execute("DELETE FROM events")
        connection.commit()
    for words in (("events",), ("timeline",), ("status",)):
        assert run(*words, str(job)).returncode == 0


def test_what_a_peer_said_cannot_steer_a_terminal(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path / "recovery")
    said = samples.event("a \x1b[2J screen \x07 \u202e turned \n line")
    store.apply([msgspec.structs.replace(samples.job(), reason=said.reason), said], wall_ms=1)
    store.close()
    for command in ("status", "events"):
        shown = run(command, str(tmp_path / "recovery")).stdout
        assert "a \\x1b[2J screen \\x07 \\u202e turned \\n line" in shown
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.mark.parametrize(
    "node", ["x'; DROP TABLE nodes;--", '"worker_0" OR 1=1', "%", "worker_%", "a\nb", "../worker_0"]
)
def test_a_name_that_is_typed_is_a_name_and_nothing_else(job: Path, node: str) -> None:
    path = str(job)
    before = run("events", path).stdout
    only = run("events", path, f"--node={node}", "--format=json")
    assert (only.returncode, json.loads(only.stdout)) == (0, [])
    forgotten = run("forget", path, node, "--yes")
    assert forgotten.returncode == 64
    assert f"{node!r}: is no node of this job" in forgotten.stderr
    assert run("events", path).stdout == before


# --- checkpoints ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(own: Path) -> Path:
    """The newest checkpoint of rank 1, put back after the test."""
    return max((own / "ckpt/1").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)


def test_verify_names_every_checkpoint_that_is_not_what_it_was(own: Path, saved: Path) -> None:
    path, whole, manifest = str(own / "recovery"), saved.read_bytes(), saved.with_suffix(".json")
    described = manifest.read_bytes()
    try:
        for content in (whole[:-1] + b"?", whole[:-5]):
            saved.write_bytes(content)
            done = run("verify", path)
            assert done.returncode == 1
            [line] = done.stdout.splitlines()
            assert line.startswith(f"{saved}: CHECKPOINT_DIGEST")
        saved.write_bytes(whole)
        manifest.write_bytes(described.replace(b'"rank": 1', b'"rank": 0'))
        assert "CHECKPOINT_MANIFEST" in run("verify", path).stdout
        saved.unlink()
        manifest.write_bytes(described)
        assert "a manifest without its checkpoint file" in run("verify", path).stdout
    finally:
        saved.write_bytes(whole)
        manifest.write_bytes(described)
    assert run("verify", path).returncode == 0


def test_verify_names_what_a_save_that_was_cut_off_has_left(own: Path) -> None:
    left = own / "ckpt/1" / ".small-1_5.ckpt.77-0123456789abcdef.tmp"
    left.write_bytes(b"half")
    try:
        assert run("verify", str(own / "recovery")).returncode == 0, "it may be a save under way"
        os.utime(left, (1, 1))
        done = run("verify", str(own / "recovery"))
        assert done.stdout == f"{left}: left over from a save that was cut off; no checkpoint needs it\n"
    finally:
        left.unlink()
