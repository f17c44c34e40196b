"""Whatever dies under MindSpore, training ends with the same bits, every sample used once, every step counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.undisturbed import Undisturbed
from tests.mindspore.mindspore_cluster import MindSporeCluster, held

pytestmark = pytest.mark.mindspore


def test_two_undisturbed_runs_end_with_the_same_bits(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with MindSporeCluster(tmp_path, workers=2) as cluster:
        cluster.run()
        cluster.check_same_as(undisturbed(workers=2))


@pytest.mark.parametrize(
    "victims",
    [("worker_2",), ("worker_1", "worker_0"), ("sched", "worker_1")],
    ids="+".join,
)
def test_killed_processes_come_back(
    tmp_path: Path, undisturbed: Undisturbed, victims: tuple[str, ...]
) -> None:
    with MindSporeCluster(tmp_path, environment=held(29)) as cluster:
        cluster.start()
        cluster.wait_step(23)
        cluster.wait_commit(20)
        survivors = {name: process for name, process in cluster.processes.items() if name not in victims}

        cluster.kill_and_relaunch(*victims)
        cluster.go_on()
        cluster.wait_step(35, generation=2)

        assert survivors.items() <= cluster.processes.items(), "a survivor was replaced"
        for victim in victims:
            admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, victim)]
            if victim != "sched":
                assert [(event.incarnation, event.rank) for event in admitted[1:]] == [(2, int(victim[-1]))]
        cluster.wait_end()
        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, 20]
        cluster.check_same_as(undisturbed())


def test_scheduler_comes_back_and_no_world_is_formed_again(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with MindSporeCluster(tmp_path, workers=2, environment=held(16)) as cluster:
        cluster.start()
        cluster.wait_step(15)
        cluster.kill("sched")
        cluster.go_on()
        # Training needs no scheduler.
        cluster.wait_step(30)
        cluster.launch("sched")
        cluster.wait_event(EventKind.NODE_RESUMED, count=cluster.workers)

        cluster.wait_end()
        assert cluster.generations() == {1}
        cluster.check_same_as(undisturbed(workers=2))


def test_everything_dies_at_once(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with MindSporeCluster(tmp_path, workers=2, environment=held(36)) as cluster:
        cluster.start()
        cluster.wait_step(35)
        cluster.wait_commit(20)
        cluster.kill_and_relaunch("sched", *cluster.names)
        cluster.go_on()
        cluster.wait_end()
        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] in ([0, 30], [0, 20])
        cluster.check_same_as(undisturbed(workers=2))


def test_killed_in_the_first_epoch_before_any_checkpoint_and_again_in_the_last(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    for_the_first = {"JOB_HELD_STEP": "5"}
    with MindSporeCluster(tmp_path, workers=2, environment=held(66)) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **(for_the_first if name == "worker_1" else {}))
        cluster.wait_step(4)
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_step(65, generation=2)
        cluster.kill_and_relaunch("worker_0")
        cluster.go_on()
        cluster.wait_end()
        steps = [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)]
        assert steps in ([0, 0, 60], [0, 0, 70])
        cluster.check_same_as(undisturbed(workers=2))


def test_killed_after_the_last_step_only_the_end_is_done_again(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with MindSporeCluster(tmp_path, workers=2) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_ENDS_AFTER": "go"} if name == "worker_1" else {}))
        cluster.wait((cluster.directory / "digest_0").exists, "the first who is done")
        cluster.kill_and_relaunch("worker_0")
        cluster.wait_event(EventKind.NODE_LOST, "worker_0")
        # Only now may the other be done: before the loss the job would be finished.
        (cluster.directory / "go").touch()
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=2))


def test_killed_during_a_save_nothing_half_done_is_used(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with MindSporeCluster(tmp_path, workers=2, environment=held(25)) as cluster:
        cluster.start()
        folder = cluster.directory / "ckpt" / "1"
        cluster.wait(lambda: list(folder.glob("train-1_20.*")), "the file of step 20")
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step in (10, 20)
        cluster.check_same_as(undisturbed(workers=2))


def test_eight_workers(tmp_path: Path, undisturbed: Undisturbed) -> None:
    epochs = "6"
    with MindSporeCluster(tmp_path, workers=8, environment={"JOB_EPOCHS": epochs, **held(20)}) as cluster:
        cluster.start()
        cluster.wait_step(15)
        cluster.kill_and_relaunch("worker_5")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=8, JOB_EPOCHS=epochs))


def test_a_loop_of_its_own(tmp_path: Path, undisturbed: Undisturbed) -> None:
    loop = "own"
    with MindSporeCluster(tmp_path, workers=2, environment={"JOB_LOOP": loop, **held(29)}) as cluster:
        cluster.start()
        cluster.wait_step(27)
        cluster.wait_commit(20)
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == 20
        cluster.check_same_as(undisturbed(workers=2, JOB_LOOP=loop))


def test_a_mistake_of_the_user_is_reported_and_corrected_by_a_relaunch(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with MindSporeCluster(tmp_path, workers=2) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_RAISE_AT": "32"} if name == "worker_1" else {}))
        cluster.wait(lambda: cluster.processes["worker_1"].poll() is not None, "its end")

        assert cluster.processes["worker_1"].returncode == 1
        [failed] = cluster.events(EventKind.NODE_FAILED, "worker_1")
        assert failed.event.reason == "ZeroDivisionError: a mistake in the user's own code"
        assert "on_train_step_begin" in failed.event.details
        cluster.launch("worker_1")
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=2))
