"""`recovery msrun` forks its workers from a template, whatever happens to that."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT
from tests.cluster.test_launcher import assert_nothing_left
from tests.pace import is_gone

pytestmark = pytest.mark.cluster


def template_of(cluster: LaunchedCluster) -> int:
    """The newest one that was ready."""
    found: list[str] = []

    def ready() -> bool:
        found[:] = re.findall(r"the template \(pid (\d+)\) has imported", cluster.log(LAUNCHER))
        return bool(found)

    cluster.wait(ready, "a template")
    return int(found[-1])


def test_a_worker_is_forked_again_and_the_template_made_again(tmp_path: Path) -> None:
    # Held until there is another template: that takes as long as the machine is busy.
    environment = {"MS_REJOIN_WINDOW": "0", "JOB_STEP_MS": "40", "JOB_HELD_STEP": "20"}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start("--start_method=fork")
        cluster.wait_step(6)
        first = template_of(cluster)
        worker = psutil.Process(cluster.pid_of("1"))
        assert worker.ppid() == cluster.processes[LAUNCHER].pid, "its launcher sees its true status"
        assert worker.cmdline()[1:] == [SCRIPT]
        cluster.kill_node("1")
        cluster.wait(lambda: "start 2" in cluster.log_of("worker_1"), "its second start")
        cluster.wait_step(16)

        os.kill(first, signal.SIGKILL)
        cluster.wait(lambda: "is made again" in cluster.log(LAUNCHER), "the launcher's notice")
        cluster.wait(lambda: template_of(cluster) != first, "another template")
        cluster.kill_node("0")
        (tmp_path / "go_on").touch()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        said = cluster.log(LAUNCHER)
        assert f"the template (pid {first}) is of no use any more: it has ended (killed by SIGKILL" in said
        assert "workers are spawned, not forked" not in said
        assert_nothing_left(cluster)
        assert not psutil.pid_exists(template_of(cluster))


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_neither_template_nor_worker_outlives_the_launcher(tmp_path: Path, stop: signal.Signals) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_HELD_STEP": "20"}) as cluster:
        cluster.start()
        cluster.wait_step(6)
        template = template_of(cluster)

        os.kill(cluster.processes[LAUNCHER].pid, stop)

        assert cluster.wait_exit(LAUNCHER) == (128 + stop if stop != signal.SIGKILL else -stop)
        assert_nothing_left(cluster)
        cluster.wait(lambda: is_gone(template), "its end")


def test_a_script_whose_imports_act_is_spawned_or_refused(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "acting.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True, name='busy').start()\n"
    )
    path = os.pathsep.join((str(packages), *filter(None, [os.environ.get("PYTHONPATH")])))
    with LaunchedCluster(tmp_path, environment={"PYTHONPATH": path}) as cluster:
        script = tmp_path / SCRIPT
        script.write_text(
            script.read_text().replace("import recovery\n", "import acting\nimport recovery\n", 1)
        )
        cluster.start("--start_method=fork")
        assert cluster.wait_exit(LAUNCHER) == 71
        assert "the imports have started 1 threads (busy)" in cluster.log(LAUNCHER)
        assert "Give --start_method=auto" in cluster.log(LAUNCHER)

        cluster.start()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert cluster.log(LAUNCHER).count("workers are spawned, not forked: the imports have started") == 1


def test_a_standby_beside_bound_workers_is_spawned_whatever_was_asked(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_HELD_STEP": "20"}) as cluster:
        cluster.start("--start_method=fork", "--bind_core=True", "--standby_num=1")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        launcher = cluster.processes[LAUNCHER].pid
        bound = psutil.Process(cluster.pid_of("0")).cpu_affinity()
        free = psutil.Process(cluster.pid_of("standby_0")).cpu_affinity()
        assert free == psutil.Process(launcher).cpu_affinity()
        assert bound is not None
        assert free is not None
        assert set(bound) < set(free) or len(free) == 1
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        said = cluster.log(LAUNCHER)
        assert "workers are forked from it" in said
        assert said.count("one process is spawned, not forked: libraries count processors") == 1, said
        assert "workers are spawned" not in said
