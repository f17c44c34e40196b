"""What launchers are shown of lost nodes."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.ids import Generation
from recovery.core.messages import ProcessIdentity
from recovery.core.rules import Rules
from recovery.core.scheduler.views import figures_view, job_view, lost_view
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


def test_what_ranks_tell_of_their_training_is_shown() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    begin((first, second))

    def told() -> list[tuple[object, ...]]:
        nodes = job_view(desk.machine.state, desk.now)["nodes"]
        return [(one["epoch"], one["total_steps"], one["loss"]) for one in nodes]

    assert told() == [(None, None, None)] * 2
    beat = m.Heartbeat(sequence=1, generation=Generation(1), step=3, epoch=2, total_steps=40, loss=0.5)
    first.send(beat)
    second.send(msgspec.structs.replace(beat, loss=float("nan")))
    assert told() == [(2, 40, 0.5), (2, 40, "nan")]
    first.send(msgspec.structs.replace(beat, generation=Generation(9), loss=9.0))
    second.send(msgspec.structs.replace(beat, epoch=0, total_steps=0, loss=None))
    assert told() == [(2, 40, 0.5), (None, None, None)], "that of another generation counts nowhere"
    first.done(40)
    assert told()[0] == (None, 40, None), "its last step is told with no epoch and no loss of an earlier one"


def test_for_how_long_ranks_are_waited_for_is_shown_until_all_have_made_a_step() -> None:
    desk = Desk(Rules(worker_count=2))

    def shown() -> tuple[object, ...]:
        view = job_view(desk.machine.state, desk.now)
        return (view["trains"], view["waits_ms"], [one["is_ready"] for one in view["nodes"]])

    desk.at(1_000)
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    first.register()
    first.ready()
    assert shown() == (False, 1_000, [True])
    begin((second,))
    assert shown() == (False, 1_000, [False, False])
    first.follow()
    first.send(m.FirstStep(generation=Generation(1), step=1))
    assert shown() == (False, 1_000, [False, False])
    second.send(m.FirstStep(generation=Generation(1), step=1))
    assert shown() == (True, None, [False, False])
    desk.at(5_000)
    second.die()
    desk.at(6_000)
    view = job_view(desk.machine.state, desk.now)
    assert (view["trains"], view["began_at_step"], view["waits_ms"]) == (False, 0, 500), "behind its grace"


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


def test_how_long_ago_the_newest_step_was_made_is_shown() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    begin((first, second))

    def age_ms() -> object:
        return job_view(desk.machine.state, desk.now)["step_age_ms"]

    assert age_ms() is None, "nobody has made one"
    desk.at(1_000)
    first.send(m.FirstStep(generation=Generation(1), step=1))
    desk.at(3_000)
    assert age_ms() == 2_000
    second.send(m.Heartbeat(sequence=1, generation=Generation(1), step=4))
    desk.at(4_000)
    first.send(m.Heartbeat(sequence=1, generation=Generation(1), step=1))
    assert age_ms() == 1_000, "a heartbeat without a step is none"
    figures = figures_view(desk.machine.state, desk.now)
    assert (figures["step"], figures["step_age_ms"], figures["nodes"]) == (4, 1_000, {"live": 2})
