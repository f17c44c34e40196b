"""A rank that hangs is found and replaced, not for ever, and one that does not hang is let be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.core.worker.main_thread import REPLACEMENTS_MAX
from recovery.errors import ROWS
from recovery.report.stored import read_stored
from recovery.report.timeline import read_timeline
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


def job_in_which(what: str, *, before: str) -> str:
    """The script with three lines, with a line before another one of its loop; `once(step)` is true in that step of rank 0, once in a job."""
    script, line = changed(), f"            {before}\n"
    assert script.count(line) == 1
    loop = "    for rows, targets in rt.steps"
    return f"{ONCE}{script}".replace(loop, f"    done = []\n{loop}").replace(
        line, f"            done.append(1)\n            {what}\n{line}"
    )


ONCE = """import pathlib
import time


def once(done, step):
    if dist.get_rank() or len(done) != step or pathlib.Path(f"once_{step}").exists():
        return False
    pathlib.Path(f"once_{step}").touch()
    return True


def stand():
    time.sleep(600)


"""


@contextmanager
def run_by_default(directory: Path, script: str, **environment: str) -> Iterator[LaunchedCluster]:
    """A job of this script whose MS_STEP_TIMEOUT nobody has set."""
    (directory / "page.py").write_text(script)
    with LaunchedCluster(directory, imports=TORCH, environment=environment) as cluster:
        cluster.leave_out("MS_STEP_TIMEOUT")
        cluster.start(script="page.py")
        yield cluster


def test_rank_that_hangs_is_named_with_its_stack_and_replaced_where_nobody_has_set_a_limit(
    tmp_path: Path,
) -> None:
    """Rank 0 stands, rank 1 waits in the collective of the same step."""
    script = job_in_which("if once(done, 15): stand()", before="loss = mse_loss(model(rows), targets)")
    with run_by_default(tmp_path, script, MS_ABORT_TIMEOUT="1", MS_NODE_TIMEOUT="5") as cluster:
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()

        [suspected] = cluster.events(EventKind.HANG_SUSPECTED)
        [ended] = cluster.events(EventKind.GENERATION_INTERRUPTED)
        assert (suspected.event.rank, suspected.event.step) == (0, 14)
        assert suspected.event.details.endswith(" in stand")
        for told in (suspected, ended):
            assert (
                f"rank 0 ({suspected.event.node_id}) is in compute behind step 14 for " in told.event.reason
            )
        assert "ranks that wait for it: 1" in ended.event.reason
        [cost] = read_timeline(read_stored(tmp_path / "recovery"))[0].recoveries
        assert cost.notice_ms >= 5_000, "it counts from the last step, not from the verdict"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "before"),
    [
        # Both take longer than twice the limit of a part of a step.
        ("if once(done, 30): model.eval(); time.sleep(13); model.train()", "optimizer.zero_grad()"),
        ("if once(done, 30): time.sleep(13)", '__import__("time").sleep(0.02)'),
    ],
)
def test_an_evaluation_and_what_a_script_does_between_steps_are_no_hang(
    tmp_path: Path, what: str, before: str
) -> None:
    with run_by_default(tmp_path, job_in_which(what, before=before)) as cluster:
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert cluster.events(EventKind.HANG_SUSPECTED) == []


@pytest.mark.slow
def test_without_recovery_a_slow_step_is_told_and_ends_nothing(tmp_path: Path) -> None:
    script = job_in_which("if once(done, 30): time.sleep(13)", before="loss = mse_loss(model(rows), targets)")
    with run_by_default(tmp_path, script, MS_ENABLE_RECOVERY="0") as cluster:
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        scheduler = (cluster.logs / "scheduler.log").read_text()
        assert scheduler.count("event=hang_suspected") == scheduler.count("event=hang_cleared") == 1


def test_what_a_script_does_behind_its_last_step_is_no_hang(tmp_path: Path) -> None:
    """Its steps take milliseconds: in any part of a step such a wait would be told after 5 s."""
    loop = "    if dist.get_rank() == 0:\n"
    script = changed()
    assert script.count(loop) == 1
    script = script.replace(loop, f"    __import__('time').sleep(9)\n{loop}")
    with run_by_default(tmp_path, script) as cluster:
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert cluster.events(EventKind.HANG_SUSPECTED) == []
