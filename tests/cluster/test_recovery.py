"""Whatever dies, training ends with the same bits, every sample used once, every step counted once."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

SHORT_LEASE = {"MS_NODE_TIMEOUT": "6", "MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
"""Where the end of a lease is waited for."""


def held(step: int) -> dict[str, str]:
    """Variables of a job that does not end before the test says so; a step before its last one, the 80th."""
    return {"JOB_HELD_STEP": str(step)}


def pids(cluster: Cluster) -> dict[str, int]:
    return {name: process.pid for name, process in cluster.processes.items() if process.poll() is None}


@pytest.mark.parametrize("victims", [("worker_2",), ("worker_0",), ("worker_1", "worker_3")], ids="+".join)
def test_killed_workers_come_back_with_their_rank(
    tmp_path: Path, undisturbed: Undisturbed, victims: tuple[str, ...]
) -> None:
    with Cluster(tmp_path, environment=held(60)) as cluster:
        cluster.start()
        cluster.wait_step({"worker_2": 13, "worker_0": 20, "worker_1": 37}[victims[0]])
        survivors = {name: pid for name, pid in pids(cluster).items() if name not in victims}

        cluster.kill_and_relaunch(*victims)
        cluster.wait_step(45, generation=2)

        assert survivors.items() <= pids(cluster).items(), "a survivor was replaced"
        for victim in victims:
            admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, victim)]
            assert [(event.incarnation, event.rank) for event in admitted[1:]] == [(2, int(victim[-1]))]
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed())


def test_three_of_eight_workers_come_back_together(tmp_path: Path, undisturbed: Undisturbed) -> None:
    victims = ("worker_0", "worker_3", "worker_7")
    with Cluster(tmp_path, workers=8, environment=held(25)) as cluster:
        cluster.start()
        cluster.wait_step(15)
        cluster.kill_and_relaunch(*victims)
        cluster.go_on()
        cluster.wait_end()
        assert len({line["incarnation"] for line in _steps(cluster) if line["rank"] in (0, 3, 7)}) == 2
        assert {line["incarnation"] for line in _steps(cluster) if line["rank"] not in (0, 3, 7)} == {1}
        cluster.check_same_as(undisturbed(workers=8))


def test_training_goes_on_without_a_scheduler_and_no_step_is_lost_when_it_comes_back(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, environment=held(15)) as cluster:
        cluster.start()
        cluster.wait_step(14)
        cluster.kill("sched")
        cluster.go_on()
        cluster.wait_step(45)
        cluster.launch("sched")
        cluster.wait_event(EventKind.NODE_RESUMED, count=cluster.workers)

        cluster.wait_end()
        assert not cluster.events(EventKind.GENERATION_INTERRUPTED)
        assert {(line["generation"], line["incarnation"]) for line in _steps(cluster)} == {(1, 1)}
        cluster.check_same_as(undisturbed())


@pytest.mark.slow
@pytest.mark.cold_start(reason="one recovery of torch processes with nothing imported before")
def test_scheduler_and_a_worker_die_together(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, environment=held(40)) as cluster:
        cluster.start()
        cluster.wait_step(25)
        cluster.kill_and_relaunch("sched", "worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed())


def test_everything_dies_at_once_and_resumes_once(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, environment=held(36)) as cluster:
        cluster.start()
        cluster.wait_step(35)
        cluster.wait_commit(20)
        cluster.kill_and_relaunch("sched", *cluster.names)
        cluster.go_on()
        cluster.wait_end()
        assert len(cluster.events(EventKind.PLAN_MADE)) == 2
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step in (20, 30)
        cluster.check_same_as(undisturbed())


def test_three_kills_in_a_row(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, environment=held(50)) as cluster:
        cluster.start()
        for generation, victim in enumerate(("worker_1", "worker_2", "worker_0"), start=1):
            cluster.wait_step(10 + 10 * generation, generation=generation)
            cluster.kill_and_relaunch(victim)
        cluster.go_on()
        cluster.wait_end()
        assert len(cluster.events(EventKind.PLAN_MADE)) == 4
        cluster.check_same_as(undisturbed())


def test_kill_during_a_save_leaves_the_older_checkpoint(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_HELD_SAVE": "2"} if name == "worker_1" else {}))
        cluster.wait((tmp_path / "saving_worker_1").exists, "second save")
        # The others hold the step of the first one by then, and it is known of all.
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.kill("worker_1")
        cluster.launch("worker_1")
        cluster.wait_end()
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == 10
        cluster.check_same_as(undisturbed())


def test_kill_while_the_writer_writes_leaves_the_older_checkpoint_and_no_writer(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, environment=held(65)) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        worker = cluster.processes["worker_1"].pid
        [writer] = [one for one in psutil.Process(worker).children() if "writer_program" in one.cmdline()[-3]]
        writer.suspend()
        cluster.wait(lambda: any(tmp_path.glob(f"ckpt/*/.train-*.{worker}-*.tmp")), "a save that stands")
        cluster.kill("worker_1")
        writer.wait(60)
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step
        cluster.check_same_as(undisturbed())


def test_kill_during_a_rollback(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, environment=held(40)) as cluster:
        cluster.start()
        cluster.wait_step(25)
        cluster.kill("worker_1")
        # Far longer than the test needs to kill it.
        cluster.launch("worker_1", JOB_LOAD_DELAY_MS="120000")
        cluster.wait((tmp_path / "loading_worker_1").exists, "load")
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert len(cluster.events(EventKind.PLAN_MADE)) == 3
        cluster.check_same_as(undisturbed())


def test_hit_while_two_worlds_in_a_row_are_formed(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, environment=SHORT_LEASE) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.PLAN_MADE)
        # The others are left in the middle of it, this one before it.
        cluster.signal("worker_2", signal.SIGSTOP)
        cluster.wait_event(EventKind.NODE_LOST, "worker_2")
        cluster.signal("worker_2", signal.SIGCONT)
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        cluster.kill_and_relaunch("worker_0")
        cluster.wait_end()
        cluster.check_same_as(undisturbed())


def test_stopped_worker_whose_place_is_free_joins_the_next_generation(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, environment={**SHORT_LEASE, **held(60)}) as cluster:
        cluster.start()
        cluster.wait_step(20)
        before = pids(cluster)
        cluster.signal("worker_1", signal.SIGSTOP)
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        cluster.signal("worker_1", signal.SIGCONT)
        cluster.wait_step(50, generation=2)
        assert pids(cluster) == before
        assert cluster.events(EventKind.NODE_RESUMED, "worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed())


def test_stopped_worker_whose_place_was_taken_ends_itself(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Cluster(tmp_path, environment={**SHORT_LEASE, **held(60)}) as cluster:
        cluster.start()
        cluster.wait_step(20)
        old = cluster.processes["worker_1"]
        cluster.signal("worker_1", signal.SIGSTOP)
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        cluster.launch("worker_1")
        cluster.wait_step(45, generation=2)
        old.send_signal(signal.SIGCONT)
        cluster.wait(lambda: old.poll() is not None, "end of the fenced process")
        assert old.returncode == 76
        assert "FENCED" in cluster.log("worker_1")
        cluster.go_on()
        cluster.wait_end()
        # Its checker also proves that the fenced incarnation neither stepped nor saved.
        cluster.check_same_as(undisturbed())


def test_damaged_checkpoint_sends_everybody_to_the_older_one(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    # Before the next save: none is under way when the files are looked at.
    with Cluster(tmp_path, environment=held(35)) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=3)
        cluster.kill("worker_3")
        cluster.wait_event(EventKind.NODE_LOST, "worker_3")
        saved = [checker.saved(tmp_path / "ckpt" / str(rank)) for rank in range(4)]
        common = max(set.intersection(*(set(one) for one in saved)))
        file = saved[2][common]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        cluster.launch("worker_3")
        cluster.go_on()
        cluster.wait_end()
        plan = cluster.events(EventKind.PLAN_MADE)[-1].event.step
        assert plan == common - 10, "not the one before the damaged one"
        # Found damaged when it was loaded, or before that: it may still have looked for its files.
        kinds = EventKind.CHECKPOINT_INVALID, EventKind.CHECKPOINT_PASSED_OVER
        assert any(cluster.events(kind, "worker_2") for kind in kinds)
        cluster.check_same_as(undisturbed())


def _steps(cluster: Cluster) -> list[dict[str, int]]:
    return checker.lines(cluster.directory / "steps.jsonl")
