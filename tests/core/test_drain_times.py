"""A hand-over for which nobody waits any more: the scheduler was paused, a rank has connected again, or trained on."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.barrier_messages import GoOn, HandedOver, NotHandedOver
from recovery.core.records import JobState, NodeState
from recovery.core.scheduler.barrier import BarrierState
from recovery.core.scheduler.leave_requests import STOP_FOLLOWS_MS
from recovery.core.scheduler.views import drain_view
from tests.core.desk import checkpoint
from tests.core.drained import RULES, Drained


def test_scheduler_that_was_paused_hands_nothing_over_that_nobody_waits_for() -> None:
    """What was saved in time is read when it wakes up; whoever had stopped there has let go by itself."""
    drained = Drained()
    step = drained.saving()
    drained.zero.save(step)
    # Its timer is due, and what waits to be read comes first.
    drained.desk.now = RULES.drain_timeout_ms
    drained.one.save(step)
    assert not drained.one.hears(HandedOver)
    assert drained.node("worker_1").state is NodeState.LIVE
    assert drained.outcome() == "it took longer than 5 s (MS_DRAIN_TIMEOUT), saving"


def test_rank_that_has_connected_again_waits_at_no_step_any_more() -> None:
    """It was admitted on another connection before the first one was known to be closed."""
    drained = Drained()
    step = drained.saving()
    drained.zero.save(step)
    drained.zero.register()
    assert drained.outcome() == "worker_0 has connected again"
    assert drained.one.hears(GoOn)
    drained.one.save(step)
    assert not drained.one.hears(HandedOver)


def test_steps_that_were_trained_behind_the_hand_over_are_said() -> None:
    drained = Drained()
    step = drained.handing_over()
    [standby] = drained.standbys
    offer = standby.last(m.Offer)
    answer = m.Ready(
        request_id=standby.request(), generation=standby.generation, step=0, held=offer.held, rank=offer.rank
    )
    standby.send(answer)
    drained.zero.ready(checkpoint(step, path=f"worker_0/{step}"), step=step + 2)
    assert drained.job is JobState.RUNNING
    assert drained.outcome() == (
        f"worker_1 left at step {step}, and a rank had not waited: it trained on to step {step + 2}"
    )
    assert not drain_view(drained.desk.machine.state)["handed_over"]


def test_ranks_are_told_how_long_the_scheduler_lets_a_drain_take() -> None:
    drained = Drained(rules=msgspec.structs.replace(RULES, drain_timeout_ms=7_500))
    drained.saving()
    assert [drained.asked(worker).wait_ms for worker in drained.workers] == [7_500, 7_500]
    drained.depart(drained.zero)
    assert drained.asked(drained.zero).wait_ms == 7_500


def test_a_step_that_the_departed_rank_has_trained_before_it_heard_of_the_hand_over_is_said() -> None:
    """The write that its answer is behind took longer than it waits at a step."""
    drained = Drained()
    step = drained.handing_over()
    drained.one.send(m.Heartbeat(sequence=9, generation=drained.one.generation, step=step + 1))
    drained.take_over(drained.standbys[0], step)
    assert drained.outcome() == (
        f"worker_1 left at step {step}, and a rank had not waited: it trained on to step {step + 1}"
    )


def test_a_departed_rank_that_connects_again_before_it_has_heard_so_may_have_trained_on() -> None:
    drained = Drained()
    step = drained.handing_over()
    [told] = drained.desk.say(drained.desk.connect(), drained.one.made())
    assert isinstance(told, HandedOver)
    drained.take_over(drained.standbys[0], step)
    assert drained.outcome() == (
        f"worker_1 left at step {step}, and worker_1 connected again before it had heard that: it may have trained on"
    )
    assert not drain_view(drained.desk.machine.state)["handed_over"]
    [told] = drained.desk.say(drained.desk.connect(), drained.one.made())
    assert isinstance(told, HandedOver), "also behind the drain's end"


def test_without_a_standby_a_save_that_takes_longer_is_waited_for() -> None:
    drained = Drained(standbys=0)
    drained.depart()
    for _ in range(2):
        for worker in drained.workers:
            drained.answer(worker, 14)
    drained.zero.save(15)
    drained.desk.at(STOP_FOLLOWS_MS)
    assert drained.is_in(BarrierState.SAVING)
    drained.one.save(15)
    assert drained.outcome() == "no standby is ready"
    assert drained.one.last(NotHandedOver).reason == "no standby is ready"


def test_without_a_standby_a_step_that_is_not_reached_is_waited_for_no_longer_than_a_drain() -> None:
    drained = Drained(standbys=0)
    drained.depart()
    drained.desk.at(RULES.drain_timeout_ms)
    assert drained.outcome() == "no standby is ready; it took longer than 5 s (MS_DRAIN_TIMEOUT), asking"
