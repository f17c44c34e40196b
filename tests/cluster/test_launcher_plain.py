"""Scripts that import nothing of ours under `recovery msrun`: a failure starts the whole world again, on fresh addresses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster import plain_ddp, plain_saving, plain_sockets
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.made_once import made_once
from tests.cluster.test_launcher import assert_nothing_left
from tests.faults.hosts import Host, host
from tests.warm.process import PLAIN, TORCH

__all__ = ["host"]

pytestmark = pytest.mark.cluster

SCRIPT = "plain.py"
HELD = {"JOB_HELD_STEP": "25"}


class PlainCluster(LaunchedCluster):
    """The training is plain_ddp.py."""

    training = plain_ddp
    script_imports: tuple[str, ...] = TORCH

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, imports=self.script_imports, **options)

    def begin(self, *flags: str, **options: object) -> None:
        """Start a launcher for it."""
        shutil.copy(str(self.training.__file__), self.directory / SCRIPT)
        self.start(*flags, script=SCRIPT, **options)  # type: ignore[arg-type]  # of a test's own options

    def steps_of(self, rank: int) -> list[tuple[int, int, int]]:
        """(pid, step, restart) of each step that a rank has done."""
        path = self.directory / f"steps_{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), int(step), int(restart)) for pid, step, restart in map(str.split, lines)]

    def wait_steps(self, rank: int, step: int, *, restart: int = 0) -> int:
        """Wait until a rank has done a step after a restart of the world; gives its process id."""

        def found() -> list[int]:
            return [pid for pid, its, restarts in self.steps_of(rank) if its >= step and restarts >= restart]

        self.wait(found, f"step {step} of rank {rank} in restart {restart}")
        return found()[-1]

    def result(self) -> str:
        """The digest of the final weights."""
        return (self.directory / "result").read_text()

    def methods(self) -> set[str]:
        """How the programs of all ranks were begun."""
        logs = "".join(self.log_of(f"worker_{rank}") for rank in range(self.workers))
        return set(re.findall(r"event=program_started .* method=(\w+)", logs))


class CheapCluster(PlainCluster):
    """The training is plain_sockets.py, which starts in a fraction of the time."""

    training = plain_sockets
    script_imports = PLAIN

    def assert_undisturbed(self) -> None:
        """It ended with the result of a training that nothing disturbs."""
        assert self.result() == plain_sockets.result_of(self.workers)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The result of a training that nothing disturbs."""

    def run(directory: Path) -> None:
        with PlainCluster(directory, workers=3) as cluster:
            cluster.begin()
            assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
            assert_nothing_left(cluster)

    return PlainCluster(made_once(tmp_path_factory, "undisturbed-plain", run), workers=3).result()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_program_starts_the_world_again(tmp_path: Path, undisturbed: str, rank: int) -> None:
    # The grace is long on purpose: what ends the wait for the killed one is its launcher's report.
    environment = {"MS_RECONNECT_GRACE": "6", **HELD}
    with PlainCluster(tmp_path, workers=3, environment=environment) as cluster:
        cluster.begin("--restart=auto")
        os.kill(cluster.wait_steps(rank, 8), signal.SIGKILL)
        os.kill(cluster.wait_steps(rank, 12, restart=1), signal.SIGKILL)
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert cluster.result() == undisturbed
        starts = {restart for _, _, restart in cluster.steps_of(1)}
        assert starts == {0, 1, 2}
        assert cluster.reasons_lost() == ["killed by SIGKILL"] * 2, "only the killed one was lost"
        assert re.search(r"; 2 recoveries$", cluster.log(LAUNCHER), re.MULTILINE), "all steps were done again"
        incident = json.loads((cluster.logs / "incident-1.json").read_text())
        assert (incident["first"]["rank"], incident["followed"]) == (rank, [])
        assert cluster.methods() == {"fork"}
        assert_nothing_left(cluster)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_killed_worker_proxy_takes_its_program_with_it(tmp_path: Path, method: str) -> None:
    with CheapCluster(tmp_path, workers=3, environment=HELD) as cluster:
        cluster.begin(f"--start_method={method}")
        program = psutil.Process(cluster.wait_steps(1, 8))
        proxy = program.parent()
        assert proxy is not None
        assert proxy.pid == cluster.pid_of("1")
        proxy.kill()

        cluster.wait(lambda: not program.is_running(), "end of its program")
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.assert_undisturbed()
        assert cluster.methods() == {method}
        assert_nothing_left(cluster)


def test_the_scheduler_of_such_a_job_may_die_unnoticed(tmp_path: Path) -> None:
    with CheapCluster(tmp_path, workers=3, environment=HELD) as cluster:
        cluster.begin()
        cluster.wait_steps(1, 8)
        cluster.kill_node("sched")
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.assert_undisturbed()
        assert {restart for _, _, restart in cluster.steps_of(1)} == {0}


TAKES_THE_PORT = """
import os, subprocess, sys
if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("0", "0"):
    listens = "import signal, socket, sys; server = socket.create_server(('', int(sys.argv[1]))); print(flush=True); signal.pause()"
    command = [sys.executable, "-c", listens, os.environ["MASTER_PORT"]]
    subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True).stdout.readline()
with open(f"ports_{os.environ['RANK']}", "a") as ports:
    print(os.environ["MASTER_PORT"], file=ports)
"""
"""The port that rank 0 has chosen is another process's when its program comes to it."""


def test_a_port_that_another_process_took_costs_a_restart_on_another_port(tmp_path: Path) -> None:
    with CheapCluster(tmp_path, workers=2) as cluster:
        training = Path(str(plain_sockets.__file__)).read_text()
        (tmp_path / SCRIPT).write_text(TAKES_THE_PORT + training)
        cluster.start("--max_restarts=1", script=SCRIPT)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.assert_undisturbed()
        first, second = (tmp_path / "ports_0").read_text().split()
        assert first != second
        assert "Address already in use" in cluster.log_of("worker_0")
        assert re.search(r"; 1 recovery$", cluster.log(LAUNCHER), re.MULTILINE)
        assert_nothing_left(cluster)


def test_an_error_that_comes_again_ends_the_job_with_its_lines(tmp_path: Path) -> None:
    with CheapCluster(tmp_path, workers=3, environment={"JOB_RAISE": "1@7"}) as cluster:
        cluster.begin()
        assert cluster.wait_exit(LAUNCHER) == 1
        printed = cluster.log(LAUNCHER)
        assert "in the same way as the time before" in printed
        assert "the job failed: worker_1" in printed
        assert "ZeroDivisionError: a mistake in the user's own code" in printed.partition("the job failed")[2]
        assert "start 3" not in printed
        assert_nothing_left(cluster)


def test_who_ends_last_is_the_cause_where_the_others_name_a_lost_peer(tmp_path: Path) -> None:
    """Its connections close before it ends: the others wait longer for what may follow than after an error of their own."""
    environment = {"JOB_RAISE": "1@7", "JOB_END_S": "3"}
    with CheapCluster(tmp_path, workers=3, environment=environment) as cluster:
        cluster.begin()
        assert cluster.wait_exit(LAUNCHER) == 1
        for incident in cluster.logs.glob("incident-*.json"):
            first = json.loads(incident.read_text())
            assert first["first"]["rank"] == 1, incident
            assert "ZeroDivisionError: a mistake in the user's own code" in first["traceback"]
        assert "the job failed: worker_1" in cluster.log(LAUNCHER)
        assert_nothing_left(cluster)


def test_without_recovery_the_first_failure_ends_it(tmp_path: Path) -> None:
    with CheapCluster(tmp_path, workers=3, environment={"MS_ENABLE_RECOVERY": "0", **HELD}) as cluster:
        cluster.begin()
        os.kill(cluster.wait_steps(2, 5), signal.SIGKILL)
        assert cluster.wait_exit(LAUNCHER) == 137
        assert "the job failed: worker_2" in cluster.log(LAUNCHER)
        assert_nothing_left(cluster)


def test_two_hosts_start_their_parts_again_together(tmp_path: Path, host: Host, undisturbed: str) -> None:
    with PlainCluster(tmp_path, workers=3, environment=HELD) as cluster:
        there = (f"--master_addr={host.scheduler}", "--local_worker_num=1")
        cluster.begin(f"--master_addr={host.scheduler}", "--local_worker_num=2")
        cluster.begin(*there, "--log_dir=logs_of_second", name="second", prefix=host.prefix)
        killed = cluster.wait_steps(2, 8)
        os.kill(killed, signal.SIGKILL)
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == cluster.wait_exit("second") == 0, cluster.tails()
        assert cluster.result() == undisturbed
        assert {restart for _, _, restart in cluster.steps_of(0)} == {0, 1}


def test_a_script_of_ours_that_was_not_seen_as_one_says_so(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        (tmp_path / "hidden.py").write_text("__import__('runpy').run_path('train.py', run_name='__main__')\n")
        cluster.start(script="hidden.py")
        assert cluster.wait_exit(LAUNCHER) == 64
        assert "Start it with --restart=worker." in cluster.log(LAUNCHER)
        assert_nothing_left(cluster)


class SavingCluster(PlainCluster):
    """The training is plain_saving.py."""

    training = plain_saving
    script_imports = PLAIN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "recovers"), [(signal.SIGTERM, "1"), (signal.SIGINT, "0"), (signal.SIGHUP, "1")]
)
def test_a_script_that_saves_when_it_is_asked_to_stop_is_given_the_time(
    tmp_path: Path, number: signal.Signals, recovers: str
) -> None:
    with SavingCluster(tmp_path, environment={"MS_ENABLE_RECOVERY": recovers}) as cluster:
        cluster.begin()
        cluster.wait(lambda: len([*tmp_path.glob("ready_*")]) == cluster.workers, "all to be ready")
        cluster.signal(LAUNCHER, number)
        assert cluster.wait_exit(LAUNCHER) == 128 + number, cluster.tails()
        assert sorted(path.name for path in tmp_path.glob("saved_*")) == ["saved_0", "saved_1"], (
            cluster.tails()
        )
        said = cluster.log(LAUNCHER)
        assert f"asked to stop by {number.name}" in said
        assert "every rank saves" not in said, "the engine has nothing of such a program to save"
        assert "ERROR" not in said, "it was stopped in order"
        assert f"INFO role=worker event=exit code={128 + signal.SIGTERM} STOPPED: " in said
    assert_nothing_left(cluster)
