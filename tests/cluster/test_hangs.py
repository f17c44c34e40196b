"""A rank that hangs is found and replaced, not for ever, and one that does not hang is let be."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.core.worker.main_thread import REPLACEMENTS_MAX
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SmallCluster
from tests.cluster.test_three_lines import changed
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster


def test_rank_that_hangs_at_the_same_step_in_every_program_ends_by_name(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"MS_ABORT_TIMEOUT": "1", "JOB_STEP_MS": "5"}) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": "stand@15"} if name == "worker_0" else {}))
        stands = tmp_path / "stands"
        for hangs in range(1, REPLACEMENTS_MAX + 2):
            cluster.wait(
                lambda hangs=hangs: stands.exists() and len(stands.read_text().split()) == hangs,  # type: ignore[misc]  # its own number
                f"hang {hangs}",
            )
            cluster.kill_and_relaunch("worker_1")

        assert cluster.wait_exit("worker_0") == ROWS["PROCESS_HUNG"].exit_code
        assert len(set(stands.read_text().split())) == 1, "one process, four programs"
        assert cluster.log("worker_0").count("event=process_replaced") == REPLACEMENTS_MAX
        assert "PROCESS_HUNG" in cluster.log("worker_0")
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert (failed.event.node_id, failed.event.step) == ("worker_0", 14)
        assert "4 times in a row and never beyond step 14" in failed.event.reason

        cluster.launch("worker_0")
        cluster.wait_end()
        cluster.check_result()


def test_rank_that_hangs_in_no_collective_is_replaced_where_a_step_may_take_only_so_long(
    tmp_path: Path,
) -> None:
    """Its heartbeats go on, and no other rank waits for it."""
    environment = {
        "MS_STEP_TIMEOUT": "3",
        "MS_ABORT_TIMEOUT": "1",
        "MS_RETRY_INTERVAL_LOWER": "1",
        "MS_RETRY_INTERVAL_UPPER": "1",
    }
    with SmallCluster(tmp_path, environment=environment) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": "stand@15"} if name == "worker_0" else {"JOB_STEP_MS": "300"}))
        cluster.wait_event(EventKind.GENERATION_INTERRUPTED)
        cluster.wait(lambda: "event=process_replaced" in cluster.log("worker_0"), "replacement")

        [first, *_] = cluster.events(EventKind.GENERATION_INTERRUPTED)
        assert (
            first.event.reason
            == "worker_0 is connected, and has made no step behind step 14 for 3 s (MS_STEP_TIMEOUT)"
        )


def test_rank_that_hangs_is_named_with_its_stack_and_replaced_by_limits_that_are_learned(
    tmp_path: Path,
) -> None:
    """Rank 0 stands, rank 1 waits some steps ahead."""
    environment = {"MS_STEP_TIMEOUT": "auto", "MS_ABORT_TIMEOUT": "1", "JOB_STEP_MS": "5"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        for name in (*cluster.names, "sched"):
            does = {"worker_0": {"JOB_DO": "stand@15"}, "worker_1": {"JOB_HELD_STEP": "20"}}
            cluster.launch(name, **does.get(name, {}))
        cluster.wait_event(EventKind.GENERATION_INTERRUPTED)
        cluster.wait(lambda: "event=process_replaced" in cluster.log("worker_0"), "replacement")

        [suspected, *_] = cluster.events(EventKind.HANG_SUSPECTED)
        [ended, *_] = cluster.events(EventKind.GENERATION_INTERRUPTED)
        said = "rank 0 (worker_0) is in compute behind step 14 for "
        assert (suspected.event.node_id, suspected.event.step) == ("worker_0", 14)
        assert suspected.event.reason.startswith(said)
        assert suspected.event.details.endswith(" in _stand")
        assert ended.event.reason.startswith(said)
        assert "ranks that wait for it: 1" in ended.event.reason


def test_what_a_script_does_behind_its_last_step_is_no_hang(tmp_path: Path) -> None:
    """Its steps take milliseconds: in any part of a step such a wait would be told after 5 s."""
    loop = "    if dist.get_rank() == 0:\n"
    script = changed()
    assert script.count(loop) == 1
    (tmp_path / "page.py").write_text(script.replace(loop, f"    __import__('time').sleep(9)\n{loop}"))
    with LaunchedCluster(tmp_path, imports=TORCH, environment={"MS_STEP_TIMEOUT": "auto"}) as cluster:
        cluster.start(script="page.py")

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert cluster.events(EventKind.HANG_SUSPECTED) == []
