"""A rendered job runs as its pods are killed, made again and preempted, and ends with the bits of one that nothing happened to. Real processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kubernetes.pods import ROOT, Cluster, Pod, running
from tests.kubernetes.rendered import run

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.root, pytest.mark.slow]

STEPS = (25, 45, 65, 85)
FLAGS = ("--name=tiny", "--image=a", "--nnodes=2", "--grace=60", "--wait=300")
SCRIPT = Path(__file__).with_name("tiny_training.py")


def job(folder: Path, *flags: str) -> Cluster:
    image = folder / "image"
    image.mkdir(parents=True)
    shutil.copy(SCRIPT, image)
    task = (SCRIPT.name, str(folder / "state/checkpoints"), *map(str, STEPS))
    return Cluster(folder, image, run(*FLAGS, *flags, task=task).text)


def go(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"go-{step}").touch()


def digests(text: str) -> set[str]:
    return set(re.findall(r"final weights (\w+)", text))


def left_behind(pod: Pod) -> list[str]:
    """The step that a host says it has left behind, saved."""
    return re.findall(r"^left behind step (\d+)", pod.log.read_text(), re.MULTILINE)


def final(cluster: Cluster) -> set[str]:
    return digests("".join(pod.log.read_text() for pod in cluster.pods))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final weights of a run on one host."""
    folder = tmp_path_factory.mktemp("undisturbed")
    go(folder, *STEPS)
    command = (sys.executable, "-m", "recovery", "run", "--standalone", "--nproc_per_node=2", str(SCRIPT))
    done = subprocess.run(
        (*command, str(folder), *map(str, STEPS)),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    [digest] = digests(done.stdout)
    return digest


def test_spares_take_the_ranks_of_pods_that_are_gone_or_preempted(tmp_path: Path, undisturbed: str) -> None:
    cluster = job(tmp_path, "--storage=shared", "--spares=1")
    shared = tmp_path / "volumes" / "tiny-checkpoints"
    with running(cluster):
        scheduler, first = cluster.start("scheduler"), cluster.start("host", 0)
        second, spare = cluster.start("host", 1), cluster.start("host", 2)
        cluster.wait("held at 25")
        # A node that is gone: the spare has its rank.
        second.kill()
        go(shared, 25)
        cluster.wait("event=rank_taken_over node=standby_0 rank=1")

        # Its pod again, elsewhere: it waits. Then the scheduler's, with its volume.
        cluster.wait("held at 45")
        second = cluster.start("host", 1)
        cluster.wait("event=node_admitted node=1.2 incarnation=1")
        scheduler.kill()
        scheduler = cluster.start("scheduler")
        cluster.wait("event=scheduler_restarted incarnation=2")
        go(shared, 45)

        # The spare's, whose rank goes to the host that waits.
        cluster.wait("held at 65")
        spare.kill()
        spare = cluster.start("host", 2)
        go(shared, 65)
        cluster.wait("event=rank_taken_over node=1.2 rank=1")

        # A preemption: no step is lost to it.
        cluster.wait("held at 85")
        cluster.wait("event=node_admitted node=standby_0.2 incarnation=1")

        def go_on() -> None:
            cluster.wait("event=drain_begun")
            go(shared, 85)

        assert first.preempt(go_on) == 143
        assert cluster.said("handed over at step"), cluster.logs()
        assert cluster.said("no step is lost")

        # The host need not come back: the scheduler says that training is done.
        assert [pod.ended() for pod in (scheduler, second, spare)] == [0, 0, 0], cluster.logs()
        assert final(cluster) == {undisturbed}


def test_hosts_come_back_to_their_volumes_and_a_job_that_was_deleted_goes_on(
    tmp_path: Path, undisturbed: str
) -> None:
    cluster = job(tmp_path, "--storage=claims")
    held = tmp_path / "volumes" / "tiny-host-0" / "checkpoints"
    with running(cluster):
        scheduler, first = cluster.start("scheduler"), cluster.start("host", 0)
        second = cluster.start("host", 1)
        cluster.wait("held at 25")
        second.kill()
        go(held, 25)
        second = cluster.start("host", 1)

        # `kubectl delete jobset`: all hosts are asked at once, the scheduler's pod stays until they have saved.
        cluster.wait("held at 45")

        def go_on() -> None:
            cluster.wait("event=drain_begun")
            go(held, 45)

        with ThreadPoolExecutor(2) as both:
            ends = list(both.map(lambda pod: pod.preempt(go_on), (first, second)))
        assert ends == [143, 143], cluster.logs()
        [step] = {one for pod in (first, second) for one in left_behind(pod)}
        assert scheduler.terminate() == 143

        # Applied again: with its claims it goes on.
        go(held, 65, 85)
        pods = [cluster.start(*one) for one in (("scheduler", 0), ("host", 0), ("host", 1))]
        assert [pod.ended() for pod in pods] == [0, 0, 0], cluster.logs()
        assert final(cluster) == {undisturbed}
        for rank, pod in enumerate(pods[1:]):
            # No step is done again.
            assert re.search(rf"event=restored rank={rank} generation=\d+ step={step} ", pod.log.read_text())
