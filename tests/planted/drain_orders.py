"""Bugs in planned departures that show only in some orders: the simulation or a core test is to catch them."""

from __future__ import annotations

from tests.planted.bug import Bug

_SIMULATED = "tests/simulation/test_drains.py"
_CALM = f"{_SIMULATED}::test_in_a_calm_job_every_departure_is_handed_over"
_TIMES = "tests/core/test_drain_times.py"
_WORKER = "tests/core/test_worker_barrier.py"

DRAIN_ORDERS = (
    Bug(
        "who has stopped for a drain waits as long as its own setting says",
        "I26",
        "core/worker/barrier.py",
        "AtBarrier._on_save_at",
        "at.wait_ms or self._rules.drain_timeout_ms",
        "self._rules.drain_timeout_ms",
        (
            "tests/core/test_worker_barrier.py::test_who_waits_at_a_step_waits_as_long_as_the_scheduler_does_whatever_its_own_setting_is",
        ),
    ),
    Bug(
        "a scheduler that was paused hands over what nobody waits for any more",
        "I26",
        "core/scheduler/barrier_ends.py",
        "advance",
        "now_ms >= barrier.until_ms",
        "now_ms < 0",
        (f"{_TIMES}::test_scheduler_that_was_paused_hands_nothing_over_that_nobody_waits_for",),
    ),
    Bug(
        "a script that is asked to end replaces itself instead",
        "I26",
        "core/worker/machine.py",
        "WorkerMachine.handle",
        "[*self._barrier.advance(), *effects]",
        "[*effects, *self._barrier.advance()]",
        (f"{_WORKER}::test_who_is_asked_to_end_leaves_before_its_generation_ends_under_it",),
    ),
    Bug(
        "who was asked to end and hangs is replaced by a program that does not know of it",
        "I26",
        "core/worker/machine.py",
        "WorkerMachine._on_abort_due",
        "outcome is not None and self._barrier.leaves",
        "outcome is None and self._barrier.leaves",
        (f"{_WORKER}::test_main_thread_that_was_told_to_leave_and_hangs_is_not_replaced",),
    ),
    Bug(
        "who loses its connection trains on behind the step of a drain",
        "I26",
        "core/worker/barrier.py",
        "AtBarrier.on_disconnected",
        'return self._leave("the connection to the scheduler closed") if self._asked is not None else []',
        'leave = self._leave("the connection to the scheduler closed") if self._asked is not None else []\n'
        "return [*self.let_go(), *leave]",
        (
            f"{_WORKER}::test_who_waits_at_a_step_is_let_go_when_it_is_admitted_again_or_has_waited_long_enough",
        ),
    ),
    Bug(
        "who waits at a step never lets go by itself",
        "I26",
        "core/worker/barrier.py",
        "AtBarrier.on_timer",
        "now_ms >= self._let_go_ms",
        "now_ms < 0",
        (f"{_WORKER}::test_who_waits_at_a_step_lets_go_by_itself_when_the_scheduler_says_nothing_more",),
    ),
    Bug(
        "who is asked to end while it waits at a step keeps the others longer for that",
        "I26",
        "core/worker/barrier.py",
        "AtBarrier._on_save_at",
        "min(self._give_up_ms, self._let_go_ms)",
        "self._give_up_ms",
        (f"{_WORKER}::test_who_joins_a_drain_late_waits_at_the_step_no_longer_than_the_other_ranks",),
    ),
    Bug(
        "a rank that was admitted again is believed to wait at the step",
        "I26",
        "core/scheduler/barrier_ends.py",
        "advance",
        'next(iter(back), "")',
        '""',
        (f"{_TIMES}::test_rank_that_has_connected_again_waits_at_no_step_any_more",),
    ),
    Bug(
        "a hand-over behind which ranks trained on is called one without loss",
        "I26",
        "core/scheduler/barrier.py",
        "Barrier.note_stop",
        "step > self.step",
        "step < 0",
        (f"{_TIMES}::test_steps_that_were_trained_behind_the_hand_over_are_said",),
    ),
    Bug(
        "a hand-over is called one without loss before the departed rank has heard of it",
        "I26",
        "core/scheduler/membership/registration.py",
        "on_register",
        "state.barrier.note_back(register.node_id)",
        "pass",
        (f"{_TIMES}::test_a_departed_rank_that_connects_again_before_it_has_heard_so_may_have_trained_on",),
    ),
    Bug(
        "a rank is sent away that nobody asked to depart",
        "I26",
        "core/scheduler/barrier_ends.py",
        "_hand_over",
        "for node_id in barrier.departing:",
        "for node_id in [node.record.node_id for node in state.workers][:1]:",
        (_CALM,),
    ),
    Bug(
        "a step is named that the foremost rank has passed",
        "I26",
        "core/scheduler/barrier.py",
        "Barrier.take",
        "max(one.passed for one in self.answers.values()) + self.margin",
        "max(one.passed for one in self.answers.values())",
        (_CALM,),
    ),
)
