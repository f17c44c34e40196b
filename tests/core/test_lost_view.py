"""What launchers are shown of lost nodes."""

from __future__ import annotations

import msgspec

from recovery.core.messages import ProcessIdentity
from recovery.core.rules import Rules
from recovery.core.scheduler.views import job_view, lost_view
from tests.core.desk import Desk, Worker, begin, running_workers


def test_only_who_was_lost_by_silence_is_shown_with_its_process_and_why() -> None:
    desk = Desk(Rules(worker_count=2))
    _, second = running_workers(desk)
    assert lost_view(desk.machine.state, desk.now)["nodes"] == []
    for now in range(1_000, 40_000, 1_000):
        desk.at(now)

    lost = {one["node_id"]: one for one in lost_view(desk.machine.state, desk.now)["nodes"]}
    pids = {one["node_id"]: one["pid"] for one in job_view(desk.machine.state, desk.now)["nodes"]}
    assert lost[second.node_id]["pid"] == pids[second.node_id]
    assert "its lease" in lost[second.node_id]["reason"]


def test_a_process_that_may_have_replaced_itself_is_not_shown() -> None:
    desk = Desk(Rules(worker_count=2))
    _, second = running_workers(desk)
    second.die()
    desk.at(20_000)
    assert lost_view(desk.machine.state, desk.now)["nodes"] == []
    assert lost_view(desk.machine.state, desk.now)["job"] == desk.machine.state.job.job


def test_a_process_that_is_well_is_heard_after_its_silence_one_wait_and_one_dial() -> None:
    desk = Desk(Rules(worker_count=2, receive_timeout_ms=3_000, backoff_ms_max=1_000))
    assert lost_view(desk.machine.state, desk.now)["returns_ms"] == 3_000 + 1_000 + 5_000


def test_whoever_is_not_connected_is_shown_with_its_identity_while_its_end_would_matter() -> None:
    process = ProcessIdentity(boot_id="boot", pid_namespace=7, start_ticks=100)
    for on_proof in (False, True):
        desk = Desk(Rules(worker_count=2, rejoin_on_proof=on_proof))
        first, second = Worker(desk, "worker_0", process=process), Worker(desk, "worker_1")
        begin((first, second))
        assert lost_view(desk.machine.state, desk.now)["silent"] == []
        first.die()
        second.die()
        shown = {"node_id": "worker_0", "pid": 1, "process": msgspec.to_builtins(process)}
        assert lost_view(desk.machine.state, desk.now)["silent"] == [shown], (
            "of the other nothing can be proven"
        )
        desk.at(600)
        assert lost_view(desk.machine.state, desk.now)["silent"] == ([shown] if on_proof else [])
        desk.at(31_000)
        assert lost_view(desk.machine.state, desk.now)["silent"] == []


def test_who_has_had_no_plan_and_is_not_ready_for_one_is_shown_as_warming_up() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))

    def warming_up() -> list[str]:
        shown = job_view(desk.machine.state, desk.now)["nodes"]
        return [one["node_id"] for one in shown if one["warming_up"]]

    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    standby = Worker(desk, "s0", standby=True)
    for worker in (first, second, standby):
        worker.register()
    assert warming_up() == ["worker_0", "worker_1", "s0"]
    first.ready()
    assert warming_up() == ["worker_1", "s0"]
    begin((second,))
    assert warming_up() == ["s0"], "the world trains"
    standby.ready()
    assert warming_up() == []
    second.die()
    desk.at(600)
    assert warming_up() == [], "survivors stop, and who is lost is not here"
