"""What a script does when its training is over: the launcher's exit code is what the scripts say, and nothing is trained again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT

pytestmark = pytest.mark.cluster

NOTED = """
    import pathlib, signal
    rank, here = os.environ["RANK"], pathlib.Path(__file__).parent
    def wait_for(name):
        while not (here / name).exists():
            time.sleep(0.01)
"""
RAISES = 'raise OSError("the upload has failed")'
EXITS = "sys.exit(3)"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


def behind(directory: Path, **deeds: str) -> None:
    """Let ranks do something behind their training: `rank_0="sys.exit(3)"`."""
    script = directory / SCRIPT
    done = [
        f"    if rank == {name.removeprefix('rank_')!r}:\n        {deed}\n" for name, deed in deeds.items()
    ]
    script.write_text(script.read_text() + NOTED + "".join(done))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("face", "deed", "code", "how"),
    [
        ("run", RAISES, 1, "exit code 1"),
        ("run", EXITS, 3, "exit code 3"),
        ("run", KILLED, 137, "killed by SIGKILL"),
        ("init", EXITS, 3, "exit code 3"),
    ],
    ids=["raises", "exits", "killed", "init"],
)
def test_a_script_that_fails_behind_its_training_fails_the_launcher(
    tmp_path: Path, face: str, deed: str, code: int, how: str, rank: int
) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_FACE": face}) as cluster:
        behind(tmp_path, **{f"rank_{rank}": deed})
        cluster.start()

        assert cluster.wait_exit(LAUNCHER) == code, cluster.tails()
        cluster.check_result()
        assert f"=== worker_{rank} start 2" not in cluster.log_of(f"worker_{rank}")
        said = " ".join(cluster.log(LAUNCHER).split())
        assert f"worker_{rank} start 1: {how}" in said
        assert "its training was done" in said
        assert f"the job failed: worker_{rank} start 1: {how}" in said
        incident = json.loads((cluster.logs / "incident-1.json").read_text())
        assert incident["first"]["process"] == f"worker_{rank}"
        assert cluster.generations() == {1}
        assert [one.event.kind for one in cluster.events(EventKind.JOB_FINISHED)] == [EventKind.JOB_FINISHED]


def test_the_others_go_on_and_the_first_failure_is_the_exit_code(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        behind(tmp_path, rank_0=EXITS, rank_1='wait_for("go_on_behind"); sys.exit(4)')
        cluster.start()
        cluster.wait(lambda: "worker_0 start 1: exit code 3" in cluster.log(LAUNCHER), "the first failure")
        # The other's script is not ended for it.
        assert cluster.processes[LAUNCHER].poll() is None
        (tmp_path / "go_on_behind").touch()

        assert cluster.wait_exit(LAUNCHER) == 3, cluster.tails()
        assert "worker_1 start 1: exit code 4" in cluster.log(LAUNCHER)


SECOND = """import recovery
        @recovery.run
        def again(session):
            print("trained again")
        again()"""


def test_a_second_training_function_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        behind(tmp_path, rank_0=SECOND, rank_1=SECOND)
        cluster.start()

        assert cluster.wait_exit(LAUNCHER) == ROWS["USAGE"].exit_code, cluster.tails()
        for name in cluster.names:
            said = " ".join(cluster.log_of(name).split())
            assert (
                "again(): is a second training function behind train(), with which the job has finished"
                in said
            )
            assert "trained again" not in said
        assert cluster.generations() == {1}
