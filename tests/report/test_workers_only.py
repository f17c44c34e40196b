"""A path of which this host has the workers' part alone is told from one whose scheduler's store is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from recovery.core.ids import Generation, RunId
from recovery.core.records import DirectoryRecord, JobRecord
from recovery.errors import ROWS, RecoveryPathError, StoreLostError
from recovery.report import stored
from recovery.report.doctor import examine
from tests.report.saved_steps import copies_of_rank_1, copy_step
from tests.report.test_lost_store import _environment
from tests.scheduler.test_rebuild import generation, job, node, save, worker_store

# Of a network for documents: no host has it.
ELSEWHERE = ("192.0.2.7", 8118)
HERE = ("127.0.0.1", 8118)


def made(tmp_path: Path, *addresses: tuple[str, int] | None, jobs: tuple[JobRecord, ...] = ()) -> Path:
    """Workers' stores that have noted these, and no scheduler's."""
    path = tmp_path / "recovery"
    for rank, address in enumerate(addresses):
        directory = tmp_path / "ckpt" / str(rank)
        save(directory, rank, 10)
        where = DirectoryRecord(path=str(directory), prefix="small", run=RunId(1))
        of_job = jobs[rank] if jobs else job()
        worker_store(path, rank, of_job, node(rank), generation(2, 0), where, scheduler=address)
    return path


def ran(path: Path, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "recovery", command, str(path), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def verified(path: Path) -> subprocess.CompletedProcess[str]:
    return ran(path, "verify")


def test_where_to_look_is_said_when_the_scheduler_is_on_another_host(tmp_path: Path) -> None:
    path = made(tmp_path, ELSEWHERE, None)
    with pytest.raises(RecoveryPathError) as refused:
        stored.read_stored(path)
    assert "holds workers' stores only (worker_0, worker_1)" in str(refused.value)
    assert "recovery status --connect 192.0.2.7:8118" in str(refused.value)
    assert "rebuild" not in str(refused.value)


@pytest.mark.parametrize("command", [["events"], ["events", "--follow"], ["checkpoints", "--all"]])
def test_what_reads_single_tables_says_it_too(tmp_path: Path, command: list[str]) -> None:
    found = ran(made(tmp_path / "a", ELSEWHERE), *command)
    assert found.returncode == ROWS["RECOVERY_PATH"].exit_code
    assert "recovery status --connect 192.0.2.7:8118" in found.stderr
    lost = ran(made(tmp_path / "b", HERE), *command)
    assert lost.returncode == ROWS["STORE_LOST"].exit_code


def test_who_rebuilds_the_store_of_a_healthy_job_is_told_where_it_is(tmp_path: Path) -> None:
    asked = ran(made(tmp_path, ELSEWHERE, ELSEWHERE), "rebuild")
    assert asked.returncode != 0
    assert "on another host, at 192.0.2.7:8118: make its store here only if it is lost there" in asked.stderr
    assert not (tmp_path / "recovery/scheduler.db").exists()


@pytest.mark.parametrize("address", [HERE, None])
def test_a_store_of_this_host_that_is_gone_is_lost(tmp_path: Path, address: tuple[str, int] | None) -> None:
    path = made(tmp_path, address, address)
    with pytest.raises(StoreLostError):
        stored.read_stored(path)


def test_a_rest_of_the_schedulers_store_says_that_it_was_here(tmp_path: Path) -> None:
    path = made(tmp_path, ELSEWHERE, ELSEWHERE)
    (path / "scheduler.db-wal").write_bytes(b"")
    with pytest.raises(StoreLostError):
        stored.read_stored(path)


def test_the_worker_of_the_newest_plan_knows_where_the_scheduler_is(tmp_path: Path) -> None:
    newest = msgspec.structs.replace(job(), generation=Generation(9))
    with pytest.raises(StoreLostError):
        stored.read_stored(made(tmp_path / "a", ELSEWHERE, HERE, jobs=(job(), newest)))
    with pytest.raises(RecoveryPathError):
        stored.read_stored(made(tmp_path / "b", HERE, ELSEWHERE, jobs=(job(), newest)))


def test_verify_checks_what_is_here(tmp_path: Path) -> None:
    path = made(tmp_path, ELSEWHERE, ELSEWHERE)
    whole = verified(path)
    assert (whole.returncode, whole.stdout) == (0, "all is as it was written\n")
    assert "on another host, at 192.0.2.7:8118" in whole.stderr

    (tmp_path / "ckpt/0/small-1_10.ckpt").write_bytes(b"other")
    found = verified(path)
    assert found.returncode == 1
    assert "small-1_10.ckpt does not match its manifest" in found.stdout


def test_verify_checks_the_copies_that_this_host_holds_for_others(tmp_path: Path) -> None:
    path = made(tmp_path, ELSEWHERE, ELSEWHERE)
    copy_step(path, 5)
    assert verified(path).returncode == 0
    [copy] = copies_of_rank_1(path).glob("*.side")
    copy.write_bytes(b"other")
    found = verified(path)
    assert found.returncode == 1
    assert f"{copy} does not match its manifest" in found.stdout


def test_verify_names_a_worker_s_store_that_is_damaged(tmp_path: Path) -> None:
    path = made(tmp_path, ELSEWHERE, ELSEWHERE)
    (path / "workers/worker_1.db").write_bytes(b"not a database, whatever its name says" * 99)
    found = verified(path)
    assert found.returncode == 1
    assert "worker_1.db: STORE_" in found.stdout


def test_verify_says_of_a_lost_store_that_it_is(tmp_path: Path) -> None:
    found = verified(made(tmp_path, HERE, HERE))
    assert found.returncode == ROWS["STORE_LOST"].exit_code
    assert "recovery rebuild" in found.stderr


def test_doctor_does_not_advise_to_rebuild_what_is_elsewhere(tmp_path: Path) -> None:
    path = made(tmp_path, ELSEWHERE, ELSEWHERE)
    environment = {**_environment(path), "MS_ROLE": "MS_WORKER", "MS_NODE_ID": "worker_0"}
    environment["MS_SCHED_HOST"] = ELSEWHERE[0]
    [check] = [check for check in examine(environment) if check.name == "store"]
    assert check.ok
    assert "at 192.0.2.7:8118" in check.found
    # A scheduler that is to start here would be refused.
    [check] = [check for check in examine(_environment(path)) if check.name == "store"]
    assert not check.ok


def test_a_reset_says_that_the_job_stays_on_its_schedulers_host(tmp_path: Path) -> None:
    path = made(tmp_path, ELSEWHERE, None)
    asked = ran(path, "reset")
    assert "Archive the stores of worker_0, worker_1 in" in asked.stderr
    assert "step 0" not in asked.stderr
    done = ran(path, "reset", "--yes")
    assert (done.returncode, "step 0" in done.stdout) == (0, False)
    assert "at 192.0.2.7:8118. Run `recovery reset` there, too" in done.stdout

    [archived] = path.glob("reset-*")
    for command in ("status", "reset"):
        options = ["--yes"] if command == "reset" else []
        after = ran(path, command, *options)
        assert after.returncode == ROWS["RECOVERY_PATH"].exit_code
        assert f"were archived as {archived.name}" in after.stderr
        assert f"`recovery status {archived}`" in after.stderr
    assert "recovery status --connect 192.0.2.7:8118" in ran(archived, "status").stderr
