"""A launcher that is asked to stop has the job saved first: the next start goes on at the very step. Real processes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from tests.cluster.harness import JOB
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT
from tests.cluster.test_drain import _OWN_LOOP, outcomes, steps_lost
from tests.cluster.test_launcher import WITHOUT_RECOVERY, assert_nothing_left
from tests.cluster.test_launcher_hosts import SECOND
from tests.cluster.undisturbed import Undisturbed
from tests.faults.hosts import Host, host
from tests.warm.process import TORCH

__all__ = ["host"]

pytestmark = pytest.mark.cluster

RARELY = {"JOB_SAVE_STEPS": "1000", "JOB_HELD_STEP": "40"}
"""No save but the last one, and no end before the test has acted."""


def saved_step(cluster: LaunchedCluster) -> int:
    """What the launcher says at its end."""
    [step] = re.findall(r"saved at step ([0-9]+): the same command goes on there", cluster.log(LAUNCHER))
    return int(step)


def stop(cluster: LaunchedCluster, number: signal.Signals = signal.SIGTERM) -> None:
    cluster.signal(LAUNCHER, number)
    assert cluster.wait_exit(LAUNCHER) == 128 + number, cluster.tails()
    assert_nothing_left(cluster)


def stop_held(cluster: LaunchedCluster, number: signal.Signals = signal.SIGTERM) -> None:
    """The job waits in a step for its departure to have begun."""
    cluster.signal(LAUNCHER, number)
    cluster.wait_event(EventKind.DRAIN_BEGUN)
    cluster.go_on()
    assert cluster.wait_exit(LAUNCHER) == 128 + number, cluster.tails()
    assert_nothing_left(cluster)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_the_next_start_goes_on_at_the_step_at_which_the_job_was_stopped(
    tmp_path: Path, number: signal.Signals
) -> None:
    with LaunchedCluster(tmp_path, environment=RARELY) as cluster:
        cluster.start("--signals_to_handle=USR1,SIGUSR2")
        cluster.wait_step(6)
        stop_held(cluster, number)
        step = saved_step(cluster)
        assert step > 6
        [ended] = cluster.events(EventKind.DRAIN_ENDED)
        assert (ended.event.step, ended.event.reason) == (step, f"saved at step {step}, where the job ends")
        cluster.start()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert [one.event.step for one in cluster.events(EventKind.PLAN_MADE)] == [0, step]
        assert steps_lost(cluster) == 0
        last = r"; no recovery, stopped and started again once$"
        assert re.search(last, cluster.log(LAUNCHER), re.MULTILINE), "nothing failed, and no step is lost"
        cluster.check_result()


def test_who_asks_for_the_end_while_the_scheduler_is_started_again_loses_no_step(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=RARELY) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.kill_node("sched")
        again = re.compile(r"started scheduler \(pid [0-9]+, start 2\)")
        cluster.wait(lambda: again.search(cluster.log(LAUNCHER)) is not None, "the scheduler's next process")
        stop_held(cluster)
        assert saved_step(cluster) > 6


_ENDS = 'result_{session.rank}").write_text(state.value)\n'
_ENDS_LATER = f"""{_ENDS}    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while not (HERE / "go_on").exists():
        time.sleep(0.01)
"""
_UNHEARD = """    pipe = os.open(os.environ["MS_FINISHED_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(pipe, bytes(4096))
    except BlockingIOError:
        pass
"""


_LINGERS = """    # The connection's thread hears the end meanwhile, and stays connected.
    import atexit
    atexit.register(lambda: [time.sleep(0.01) for _ in iter((HERE / "scheduler_gone").exists, True)])
"""


@pytest.mark.parametrize("said_by", ["a worker", "the scheduler", "the scheduler's end"])
def test_a_job_that_finishes_while_it_is_stopped_is_said_to_have_finished(
    tmp_path: Path, said_by: str
) -> None:
    """Also where no worker of this host has lived to hear so: the scheduler knows. Here none of them can note it."""
    with LaunchedCluster(tmp_path) as cluster:
        script = tmp_path / SCRIPT
        source = script.read_text()
        assert _ENDS in source
        late = _ENDS_LATER if said_by == "a worker" else f"{_ENDS_LATER}{_UNHEARD}"
        if said_by == "the scheduler's end":
            late += _LINGERS
        script.write_text(source.replace(_ENDS, late))
        cluster.start()
        results = [tmp_path / f"result_{rank}" for rank in range(cluster.workers)]
        cluster.wait(lambda: all(path.exists() for path in results), "end of the loops")
        cluster.signal(LAUNCHER, signal.SIGINT)
        cluster.wait_event(EventKind.DRAIN_ENDED)
        cluster.go_on()
        if said_by == "the scheduler's end":
            scheduler = int(re.findall(r"started scheduler \(pid ([0-9]+)", cluster.log(LAUNCHER))[0])
            cluster.wait(lambda: not psutil.pid_exists(scheduler), "the scheduler's own end")
            (tmp_path / "scheduler_gone").touch()
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGINT, cluster.tails()
        assert cluster.events(EventKind.JOB_FINISHED)
        said = cluster.log(LAUNCHER)
        assert "the job has finished meanwhile: it goes on with a later end and --continue only" in said
        assert "goes on there" not in said
        assert "not saved" not in said


def test_a_job_that_has_finished_as_a_second_signal_killed_its_scheduler_is_said_to_have_finished(
    tmp_path: Path,
) -> None:
    """Nobody lives to say so: no worker can note it, and all stay connected, so that the scheduler is still there."""
    with LaunchedCluster(tmp_path) as cluster:
        script = tmp_path / SCRIPT
        script.write_text(script.read_text().replace(_ENDS, f"{_ENDS_LATER}{_UNHEARD}{_LINGERS}"))
        cluster.start()
        results = [tmp_path / f"result_{rank}" for rank in range(cluster.workers)]
        cluster.wait(lambda: all(path.exists() for path in results), "end of the loops")
        cluster.signal(LAUNCHER, signal.SIGINT)
        cluster.wait_event(EventKind.DRAIN_ENDED)
        cluster.go_on()
        cluster.wait_event(EventKind.JOB_FINISHED)
        stop(cluster, signal.SIGINT)
        said = cluster.log(LAUNCHER)
        assert re.search("the job has finished( meanwhile)?: it goes on with a later end", said)
        assert "goes on there" not in said


@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("face", ["run", "init"])
def test_a_signal_to_all_processes_at_once_loses_no_step(tmp_path: Path, face: str, standbys: int) -> None:
    """As Slurm sends it to a step, and systemd to a unit: launcher, scheduler, workers, standbys and helpers, in any order."""
    environment = {**RARELY, "JOB_FACE": face, "MS_STANDBY_NUM": str(standbys)}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start(f"--standby_num={standbys}")
        for number in range(standbys):
            cluster.wait_event(EventKind.NODE_READY, f"standby_{number}")
        cluster.wait_step(6)
        launcher = psutil.Process(cluster.processes[LAUNCHER].pid)
        everybody = [launcher, *launcher.children(recursive=True)]
        random.Random(f"{face}/{standbys}").shuffle(everybody)
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGTERM, cluster.tails()
        assert_nothing_left(cluster)
        step = saved_step(cluster)
        cluster.start(f"--standby_num={standbys}")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert [one.event.step for one in cluster.events(EventKind.PLAN_MADE)] == [0, step]
        assert steps_lost(cluster) == 0
        cluster.check_result()


def test_a_job_with_standbys_and_a_script_that_is_entered_once_are_saved_too(tmp_path: Path) -> None:
    environment = {**RARELY, "JOB_FACE": "init", "MS_STANDBY_NUM": "1"}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start("--standby_num=1")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(6)
        stop_held(cluster)
        step = saved_step(cluster)
        assert not cluster.events(EventKind.RANK_TAKEN_OVER)
        cluster.start("--standby_num=1")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert [one.event.step for one in cluster.events(EventKind.PLAN_MADE)] == [0, step]
        assert steps_lost(cluster) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"JOB_ASYNC": "1"}, {"JOB_LAYOUT": "shared"}], ids=["rank", "async", "shared"]
)
def test_a_torch_job_goes_on_with_the_same_bits(
    tmp_path: Path, undisturbed: Undisturbed, settings: dict[str, str]
) -> None:
    environment = {"JOB_EPOCHS": "1", "JOB_SAVE_STEPS": "1000", **settings}
    held = {**environment, "JOB_HELD_STEP": "30"}
    with LaunchedCluster(tmp_path, environment=held, imports=TORCH) as cluster:
        shutil.copy(JOB, tmp_path / SCRIPT)
        cluster.start()
        cluster.wait_step(6)
        stop_held(cluster, signal.SIGINT)
        step = saved_step(cluster)
        cluster.start()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert [one.event.step for one in cluster.events(EventKind.PLAN_MADE)] == [0, step]
        assert steps_lost(cluster) == 0
        cluster.check_same_as(undisturbed(2, **environment))


@pytest.mark.parametrize("first", [LAUNCHER, SECOND])
def test_the_launchers_of_all_hosts_have_the_job_saved_once(tmp_path: Path, host: Host, first: str) -> None:
    """As a system does that stops a job: all of them are asked, one a little after the other."""
    with LaunchedCluster(tmp_path, environment=RARELY) as cluster:
        start_on_two_hosts(cluster, host)
        cluster.wait_step(6)
        cluster.signal(first, signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        other = SECOND if first == LAUNCHER else LAUNCHER
        cluster.signal(other, signal.SIGTERM)
        cluster.go_on()
        for name in (first, other):
            assert cluster.wait_exit(name) == 128 + signal.SIGTERM, cluster.tails()
        [ended] = cluster.events(EventKind.DRAIN_ENDED)
        assert ended.event.reason == f"saved at step {ended.event.step}, where the job ends"
        assert f"saved at step {ended.event.step}: the same command" in cluster.log(first)
        start_on_two_hosts(cluster, host)
        for name in (LAUNCHER, SECOND):
            assert cluster.wait_exit(name) == 0, cluster.tails()
        assert [one.event.step for one in cluster.events(EventKind.PLAN_MADE)] == [0, ended.event.step]
        assert steps_lost(cluster) == 0
        cluster.check_result()


def start_on_two_hosts(cluster: LaunchedCluster, host: Host) -> None:
    flags = ("--local_worker_num=1", f"--master_addr={host.scheduler}")
    cluster.start(*flags, "--node_rank=0")
    cluster.start(*flags, "--node_rank=1", "--log_dir=logs_of_second", name=SECOND, prefix=host.prefix)


def test_a_rank_that_hangs_does_not_hold_the_stop(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"MS_STOP_GRACE": "6", "JOB_HELD_STEP": "40"}) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.wait_step(6)
        os.kill(cluster.pid_of("1"), signal.SIGSTOP)
        stop(cluster)
        [outcome] = outcomes(cluster)
        assert (
            outcome
            == "not saved for the end of the job: it took longer than MS_STOP_GRACE leaves for it, asking"
        )
        assert re.search(
            r"not saved: it took longer than MS_STOP_GRACE leaves for it, asking; the last checkpoint is step [1-9]",
            cluster.log(LAUNCHER),
        )
        cluster.start()
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()


def test_a_second_signal_does_not_wait_for_the_save(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"MS_STOP_GRACE": "3600", "JOB_HELD_STEP": "7"}) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.signal(LAUNCHER, signal.SIGINT)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        stop(cluster, signal.SIGINT)
        assert "not saved: asked to stop again" in cluster.log(LAUNCHER)


# --- as before -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "reason"),
    [("pass", "does not call session.stop_if_asked()"), ("session.stop_if_asked()", "nothing that can save")],
)
def test_a_loop_that_cannot_save_out_of_turn_ends_as_it_is(tmp_path: Path, says: str, reason: str) -> None:
    with LaunchedCluster(tmp_path, environment={"MS_STOP_GRACE": "3600"}) as cluster:
        (cluster.directory / SCRIPT).write_text(_OWN_LOOP.replace("SAYS", says))
        cluster.start()
        cluster.wait_step(5)
        stop(cluster)
        assert re.search(rf"not saved: worker_|not saved: [01] .*{re.escape(reason)}", cluster.log(LAUNCHER))


def test_a_job_that_has_done_no_step_is_not_waited_for(tmp_path: Path) -> None:
    environment = {"MS_STOP_GRACE": "3600", "JOB_HELD_STEP": "1"}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.STATE_LOADED, count=2)
        stop(cluster)
        assert "not saved: no step is done since step 0" in cluster.log(LAUNCHER)


def test_a_program_that_knows_nothing_of_recovery_saves_as_it_can(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"MS_STOP_GRACE": "3600"}) as cluster:
        (cluster.directory / SCRIPT).write_text(_PLAIN)
        cluster.start()
        cluster.wait(lambda: all((tmp_path / f"ready_{rank}").exists() for rank in range(2)), "both")
        stop(cluster)
        assert "saved" not in cluster.log(LAUNCHER), "it knows of no step"
        assert all((tmp_path / f"saved_{rank}").exists() for rank in range(2))


_PLAIN = """
import os, signal, sys
from pathlib import Path

def save(number, frame):
    Path(f"saved_{os.environ['RANK']}").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
Path(f"ready_{os.environ['RANK']}").touch()
while True:
    signal.pause()
"""


def test_without_recovery_nothing_is_saved_and_nothing_said(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=WITHOUT_RECOVERY) as cluster:
        cluster.start()
        cluster.wait_step(6)
        stop(cluster)
        said = cluster.log(LAUNCHER)
        assert "saved at step" not in said
        assert "not saved" not in said


def test_without_a_scheduler_the_job_ends_as_it_is(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_HELD_STEP": "40"}) as cluster:
        cluster.start()
        cluster.wait_step(6)
        os.kill(cluster.pid_of("sched"), signal.SIGSTOP)
        stop(cluster)
        assert "not saved: the scheduler does not answer" in cluster.log(LAUNCHER)
