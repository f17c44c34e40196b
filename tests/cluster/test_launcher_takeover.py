"""A host that is lost for good under `recovery msrun`: another host starts its ranks beside its own. Needs root."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_launcher_hosts import SECOND, start_first, start_second
from tests.faults.hosts import Host, host

__all__ = ["host"]

pytestmark = pytest.mark.cluster

LOST = {"JOB_STEP_MS": "50", "MS_TAKEOVER_AFTER": "2", "MS_REJOIN_WINDOW": "300"}


def ranks_taken(cluster: LaunchedCluster) -> dict[int | None, str]:
    """Who took which rank."""
    return {
        stored.event.rank: str(stored.event.node_id) for stored in cluster.events(EventKind.RANK_TAKEN_OVER)
    }


@pytest.mark.slow
def test_a_lost_hosts_ranks_are_started_beside_those_of_another(tmp_path: Path, host: Host) -> None:
    environment = {**LOST, "JOB_HELD_STEP": "40", "MS_REJOIN_WINDOW": "0"}
    with LaunchedCluster(tmp_path, workers=4, environment=environment) as cluster:
        start_first(cluster, host)
        start_second(cluster, host)
        cluster.wait_step(12)
        cluster.kill(SECOND)
        cluster.wait(lambda: len(ranks_taken(cluster)) == 2, "two ranks taken over")
        cluster.wait_step(16, generation=2)
        assert ranks_taken(cluster) == {2: "takeover_2_by_0", 3: "takeover_3_by_0"}

        start_second(cluster, host)
        assert cluster.wait_exit(SECOND) == ROWS["WORLD_FULL"].exit_code, "its ranks are taken"
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert "rank 2 of 2 is started on this host: nobody has taken it for 2 s or more" in cluster.log(
            LAUNCHER
        )
        assert "event=rank_known Global rank id: 2" in cluster.log_of("takeover_2")


@pytest.mark.slow
def test_a_host_that_cannot_read_the_files_says_so_and_stops_trying(tmp_path: Path, host: Host) -> None:
    # Else this host would have copies of the lost one's files.
    lost = {**LOST, "JOB_HELD_STEP": "40", "MS_TAKEOVER_AFTER": "4", "MS_CHECKPOINT_COPIES": "0"}
    with LaunchedCluster(tmp_path, workers=4, environment=lost) as cluster:
        start_first(cluster, host, "--cluster_time_out=40")
        start_second(cluster, host, "--cluster_time_out=40")
        cluster.wait_step(12)
        cluster.kill(SECOND)
        # As on a disk that was the lost host's own.
        for rank in (2, 3):
            shutil.rmtree(tmp_path / f"ckpt/{rank}")
        for rank in (2, 3):
            said = f"takeover_{rank}: rank {rank} is not taken here: it cannot read the rank's file"
            cluster.wait(lambda said=said: said in cluster.log(LAUNCHER), said)  # type: ignore[misc]

        assert cluster.wait_exit(LAUNCHER) != 0
        assert not ranks_taken(cluster)
        assert cluster.log(LAUNCHER).count("is started on this host") == 2
        cluster.wait(lambda: not cluster.living(), "end of all")
