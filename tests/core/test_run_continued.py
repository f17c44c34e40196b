"""A finished run goes on where MS_CONTINUE=1 asks for that; without it the next run begins at step 0, and that is said."""

from __future__ import annotations

from msgspec import structs
from typing_extensions import override

from recovery.core import messages as m
from recovery.core.barrier_messages import StopTraining
from recovery.core.effects import Log
from recovery.core.records import EventKind, JobRecord, JobState, RunRecord, TrainingEndRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import SchedulerEffect
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.standbys import RULES, answer, lose, row, slot, standby, training


class Noted(Desk):
    """It keeps what the scheduler logs."""

    def __init__(self, rules: Rules) -> None:
        self.logged: list[Log] = []
        super().__init__(rules)

    @override
    def _do(self, effects: list[SchedulerEffect]) -> None:
        self.logged += [effect for effect in effects if isinstance(effect, Log)]
        super()._do(effects)


def started_again(desk: Desk, *, continues: bool) -> Desk:
    """Everybody has left, and the scheduler starts on what is stored."""
    desk.at(desk.now + 10_000)
    assert desk.exit is not None
    desk.rules = structs.replace(desk.rules, continues_run=continues)
    desk.restart()
    return desk


def finished(*, stops: bool = False, saves: bool = True) -> Noted:
    desk = Noted(Rules(worker_count=2))
    workers = training(desk, *([20] if saves else []))
    if stops:
        for worker in workers:
            worker.send(StopTraining(generation=worker.generation, step=20, reason="good enough"))
    for worker in workers:
        worker.done(20)
        worker.die()
    assert desk.row(JobRecord)[0].state is JobState.FINISHED
    return desk


def comes(desk: Desk, name: str) -> Worker:
    worker = Worker(desk, name)
    assert isinstance(worker.register(), m.Admitted)
    return worker


def test_a_finished_run_goes_on_at_its_newest_step_and_may_end_later() -> None:
    desk = started_again(finished(stops=True), continues=True)
    assert (desk.row(JobRecord)[0].run, desk.row(JobRecord)[0].state) == (1, JobState.INTERRUPTED)
    [said] = [event for event in desk.events if event.kind is EventKind.RUN_CONTINUED]
    assert (said.step, said.reason[:30]) == (20, "all 2 ranks are done at step 2")
    assert desk.row(RunRecord)[0].outcome == "", "it goes on"
    assert desk.row(TrainingEndRecord)[0].step == 0, "the script decides again where training ends"
    desk.restart()
    workers = [comes(desk, name) for name in ("worker_0", "worker_1")]
    for worker in workers:
        worker.ready(checkpoint(20, path=f"{worker.node_id}/20"))
    plans = [worker.follow() for worker in workers]
    assert [(plan.rank, plan.step, plan.generation) for plan in plans] == [(0, 20, 2), (1, 20, 2)]
    assert [worker.hears(m.JobEnded) for worker in workers] == [0, 0]
    for worker in workers:
        worker.done(40)
    assert desk.row(JobRecord)[0].reason == "all 2 ranks are done at step 40"


def test_ranks_that_were_taken_over_are_those_of_their_first_ids_again() -> None:
    desk = Desk(RULES)
    first, second = training(desk, 20)
    waits = standby(desk)
    lose(desk, second)
    answer(waits, 20)
    first.ready(checkpoint(20, path="worker_0/20"))
    for worker in (first, waits):
        worker.follow()
        worker.done(20)
        worker.die()
    assert (slot(desk, "s0"), row(desk, "s0").rank) == ("worker_1", 1)
    started_again(desk, continues=True)
    assert (slot(desk, "s0"), row(desk, "s0").rank) == ("", None)
    comes(desk, "worker_0").ready(checkpoint(20, path="worker_0/20"))
    again = comes(desk, "worker_1")
    again.ready()
    assert again.last(m.Offer).rank == 1, "its own directories may hold nothing of what the standby has saved"
    answer(again, 20, written_in=1)
    assert (row(desk, "worker_0").rank, row(desk, "worker_1").rank) == (0, 1)
    assert desk.row(JobRecord)[0].state is JobState.RUNNING


def test_the_next_run_begins_at_step_0_and_says_what_it_leaves_behind() -> None:
    desk = finished()
    started_again(desk, continues=False)
    assert (desk.row(JobRecord)[0].run, desk.row(JobRecord)[0].state) == (2, JobState.FORMING)
    [said] = [log for log in desk.logged if log.event == "run_begun"]
    assert said.warning
    assert (
        "newest common checkpoint is of step 20: this start begins run 2 at step 0. MS_CONTINUE=1"
        in said.text
    )
    desk = finished(saves=False)
    started_again(desk, continues=False)
    assert [log.event for log in desk.logged] == []
