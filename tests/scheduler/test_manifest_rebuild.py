"""Nothing is left of a job but its checkpoints: the stores that are made of their manifests, and who refuses to begin beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.ids import NodeId
from recovery.core.rules import Rules
from recovery.errors import CheckpointError, RecoveryPathError, UsageError
from recovery.scheduler import manifest_rebuild, store_rebuild
from recovery.store.archive import archive_stores
from recovery.store.paths import RESET
from recovery.store.reader import read_job, read_worker, stored_workers
from recovery.store.repository import SchedulerStore
from recovery.training import earlier_jobs
from tests.scheduler.test_rebuild import JOB, generation, job, node, save, saved, worker_store


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Two ranks have saved steps 10 and 20."""
    directory = tmp_path / "ckpt"
    for rank in range(2):
        for step in (10, 20):
            save(directory / str(rank), rank, step)
    return directory


def rebuilt(path: Path, *below: Path, name: str = "") -> Path | None:
    """As `recovery rebuild PATH --checkpoints DIR`."""
    archived = manifest_rebuild.write(manifest_rebuild.look(path, below, job=name))
    return store_rebuild.ask_workers(path, Rules(worker_count=2)) or archived


def known(path: Path) -> dict[str, tuple[str, int, int, list[int]]]:
    """What the workers of this path report: job, rank, generation, steps held."""
    traces = store_rebuild.lost_in(path)
    assert traces is not None
    assert traces.is_asked_for
    return {
        str(name): (past.job, past.rank, past.generation, sorted(one.step for one in past.held))
        for name, past in traces.pasts.items()
    }


def test_stores_of_scheduler_and_workers_are_made_of_manifests_alone(
    tmp_path: Path, checkpoints: Path
) -> None:
    path = tmp_path / "gone" / "recovery"

    assert rebuilt(path, checkpoints) is None, "there was nothing to lay aside"

    assert known(path) == {"0": (JOB, 0, 2, [10, 20]), "1": (JOB, 1, 2, [10, 20])}
    stored = read_worker(path, NodeId("0"))
    assert stored.node is not None
    assert stored.node.incarnation == 3, "numbers only rise"
    assert [one.step for one in stored.checkpoints] == [20], "noted as saved, whether the file stays or not"


def test_what_a_workers_own_store_knows_goes_before_its_manifests(tmp_path: Path, checkpoints: Path) -> None:
    path = tmp_path / "recovery"
    worker_store(path, 0, job(), node(0), generation(2, 10))

    assert rebuilt(path, checkpoints) is None

    assert known(path) == {"worker_0": (JOB, 0, 2, []), "1": (JOB, 1, 2, [10, 20])}


def test_job_that_was_refused_beside_them_is_laid_aside(tmp_path: Path, checkpoints: Path) -> None:
    path = tmp_path / "recovery"
    store = SchedulerStore.open(path)
    store.apply((job("refused", generation=1),), wall_ms=1)
    store.close()
    worker_store(path, 0, job("refused", generation=1), node(0))

    archived = rebuilt(path, checkpoints)

    assert archived is not None
    before = read_job(archived)
    assert before is not None
    assert before.job == "refused"
    assert set(stored_workers(path)) == {"0", "1"}


def test_store_that_knows_checkpoints_is_not_laid_aside(tmp_path: Path, checkpoints: Path) -> None:
    path = tmp_path / "recovery"
    store = SchedulerStore.open(path)
    store.apply((job(), saved(20)), wall_ms=1)
    store.close()

    with pytest.raises(RecoveryPathError, match=f"job {JOB}, which knows checkpoints up to step 20"):
        rebuilt(path, checkpoints)


def test_of_several_jobs_one_must_be_named(tmp_path: Path, checkpoints: Path) -> None:
    for rank in range(2):
        save(checkpoints / f"later_{rank}", rank, 5, name="later")

    with pytest.raises(
        UsageError, match=rf"2 jobs. Name .*--job later \(up to step 5\); --job {JOB} \(up to"
    ):
        rebuilt(tmp_path / "recovery", checkpoints)
    with pytest.raises(UsageError, match=r"--job other: has left no checkpoints there"):
        rebuilt(tmp_path / "recovery", checkpoints, name="other")

    rebuilt(tmp_path / "recovery", checkpoints, name="later")
    assert [(one[0], one[3]) for one in known(tmp_path / "recovery").values()] == [("later", [5])] * 2


def test_a_rank_that_nothing_is_known_of_is_named(tmp_path: Path, checkpoints: Path) -> None:
    path = tmp_path / "recovery"
    with pytest.raises(UsageError, match="holds no checkpoint of rank 1 of run 1"):
        rebuilt(path, checkpoints / "0")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no manifest of a checkpoint"):
        rebuilt(path, tmp_path / "empty")
    assert not path.exists(), "a refusal made something"

    rebuilt(path, checkpoints / "0", checkpoints / "1")
    assert set(known(path)) == {"0", "1"}


def test_without_a_terminal_no_question_is_asked(tmp_path: Path, checkpoints: Path) -> None:
    command = [sys.executable, "-m", "recovery", "rebuild", str(tmp_path / "recovery")]
    command += ["--checkpoints", str(checkpoints)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("USAGE: --yes: is missing, and without a terminal nobody is asked: Rebuild")
    assert not (tmp_path / "recovery").exists()


def test_a_job_does_not_begin_beside_checkpoints_of_one_that_nobody_knows(
    tmp_path: Path, checkpoints: Path
) -> None:
    path, directory = tmp_path / "recovery", checkpoints / "0"

    with pytest.raises(
        CheckpointError, match=rf"{directory} holds 2 checkpoints of job {JOB} up to step 20"
    ) as refused:
        earlier_jobs.check_directory(directory, "small", job="new", recovery_path=path)
    assert refused.value.code == "CHECKPOINTS_UNKNOWN"

    earlier_jobs.check_directory(directory, "other", job="new", recovery_path=path)
    earlier_jobs.check_directory(tmp_path / "absent", "small", job="new", recovery_path=path)
    earlier_jobs.check_directory(directory, "small", job=JOB, recovery_path=path)


def test_a_job_that_was_archived_by_a_person_may_lie_there(tmp_path: Path, checkpoints: Path) -> None:
    path = tmp_path / "recovery"
    rebuilt(path, checkpoints)
    archive_stores(path, f"{RESET}1")

    earlier_jobs.check_directory(checkpoints / "0", "small", job="new", recovery_path=path)
