"""Bugs in planned departures: where ranks stop, what is handed over when, and who is let go."""

from __future__ import annotations

from tests.planted.bug import Bug

_DRAIN = "tests/core/test_drain.py"
_HANDED_OVER = f"{_DRAIN}::test_a_rank_goes_to_a_standby_at_a_step_that_all_have_saved"
_GIVEN_UP = f"{_DRAIN}::test_whatever_comes_between_gives_it_up_and_lets_everybody_go_on"
_DRAIN_ORDER = "tests/core/test_drain_order.py"
_JOB_STOP = "tests/core/test_job_stop.py"
_ALL_AT_ONCE = f"{_JOB_STOP}::test_a_signal_to_all_processes_at_once_is_the_end_of_the_job"
_ORDERS = "tests/core/test_drain_interleavings.py"
_STOP_POINT = "tests/worker/test_stop_point.py"
_SIGNALS = "tests/training/test_stop_signals.py"
_WORKER = "tests/core/test_worker_barrier.py"

DRAIN = (
    Bug(
        "a rank says that it stops at a step which it has passed",
        "I10",
        "worker/stop_step.py",
        "StopPoint.stop_at",
        "step > self._passed",
        "step >= self._passed",
        (f"{_STOP_POINT}::test_a_step_ahead_is_stopped_at_and_one_that_is_passed_is_not",),
    ),
    Bug(
        "whether a step is passed is looked at beside the lock",
        "I10",
        "worker/stop_step.py",
        "StopPoint.passes",
        "with self._lock:\n"
        "    if step in (self._stop, self._held, self._end):\n"
        "        return False\n"
        "    self._passed = step\n"
        "    return True",
        "stops = (self._stop, self._held, self._end)\n"
        "if step in stops:\n"
        "    return False\n"
        "for _ in range(200):\n"
        "    pass\n"
        "self._passed = step\n"
        "return True",
        (f"{_STOP_POINT}::test_between_two_threads_nobody_passes_a_step_at_which_it_was_to_stop",),
    ),
    Bug(
        "a rank is handed over before all ranks hold the step",
        "I10",
        "core/scheduler/barrier_ends.py",
        "advance",
        "barrier.state is BarrierState.SAVING and state.checkpoints.durable_step >= barrier.step",
        "barrier.state is BarrierState.SAVING",
        (_HANDED_OVER,),
    ),
    Bug(
        "a step is agreed on although a rank has passed it",
        "I14",
        "core/scheduler/barrier.py",
        "Barrier.take",
        "self.step and all(one.stops for one in self.answers.values())",
        "self.step",
        (_ORDERS,),
    ),
    Bug(
        "a process whose rank was handed over is fenced when it did not hear so",
        "I26",
        "core/policy/registration.py",
        "_missed_its_end",
        "RankGone(known.reason[:1024]) if is_handed_over else None",
        "None",
        (
            f"{_DRAIN_ORDER}::test_process_that_was_cut_off_before_it_heard_that_its_rank_is_handed_over_is_told_again",
        ),
    ),
    Bug(
        "the next process of an id closes the connection on which the one before is told to go",
        "I26",
        "core/scheduler/membership/registration.py",
        "_close_older_connection",
        "node.record.state is NodeState.LEFT",
        "node.record.state is NodeState.LOST",
        (
            f"{_DRAIN_ORDER}::test_process_whose_rank_was_handed_over_is_not_cut_off_by_the_next_one_of_its_id",
        ),
    ),
    Bug(
        "ranks wait at the step of a drain that was given up",
        "I14",
        "core/scheduler/barrier_ends.py",
        "give_up",
        "*let_go, *_not_handed_over(state, barrier, reason)",
        "*_not_handed_over(state, barrier, reason), *()",
        (_GIVEN_UP, _ORDERS),
    ),
    Bug(
        "who asked is not answered when the drain is given up",
        "I14",
        "core/scheduler/barrier_ends.py",
        "_not_handed_over",
        "request is not None",
        "request is None",
        (_GIVEN_UP,),
    ),
    Bug(
        "a drain goes on when its standby is gone",
        "I14",
        "core/scheduler/barrier_ends.py",
        "_missing",
        'if not ready:\n    return "no standby is ready"',
        'if not ready and not departing:\n    return "no standby is ready"',
        (f"{_DRAIN}::test_without_a_standby_the_answer_is_no_and_the_step_is_saved",),
    ),
    Bug(
        "a rank is handed over to nobody",
        "I14",
        "core/scheduler/barrier_ends.py",
        "advance",
        "not is_saved or missing",
        "not is_saved",
        (f"{_DRAIN}::test_without_a_standby_the_answer_is_no_and_the_step_is_saved",),
    ),
    Bug(
        "who is asked to end with all others leaves before the launcher has asked",
        "I26",
        "core/scheduler/barrier_ends.py",
        "advance",
        "missing and is_due",
        "missing",
        (_ALL_AT_ONCE,),
    ),
    Bug(
        "a process for which no standby waits leaves before its step is saved",
        "I26",
        "core/scheduler/barrier_ends.py",
        "advance",
        "(is_saved or not barrier.leaves_anyway)",
        "True",
        ("tests/core/test_drain_times.py::test_without_a_standby_a_save_that_takes_longer_is_waited_for",),
    ),
    Bug(
        "a host that leaves goes before the save for the end of the whole job",
        "I26",
        "core/scheduler/barrier_ends.py",
        "on_stop_job",
        "before.leaving = {}",
        "",
        ("tests/core/test_host_leaves.py::test_hosts_that_are_all_taken_away_at_once_leave_behind_one_step",),
    ),
    Bug(
        "who had asked to end is forgotten when the whole job is to",
        "I26",
        "core/scheduler/barrier_ends.py",
        "on_stop_job",
        "end(state, before, _ALL_IS_TO_END), before.departing",
        "end(state, before, _ALL_IS_TO_END), {}",
        (_ALL_AT_ONCE,),
    ),
    Bug(
        "more ranks are drained than there are standbys",
        "I14",
        "core/scheduler/barrier_ends.py",
        "_missing",
        "ready < len(departing)",
        "ready < len(departing) - 1",
        (f"{_DRAIN}::test_when_more_depart_than_standbys_wait_all_leave_as_they_are",),
    ),
    Bug(
        "a standby of the host that is drained takes the rank",
        "I14",
        "core/scheduler/membership/takeover.py",
        "_hosts_being_left",
        "BarrierState.HANDING_OVER",
        "BarrierState.SAVING",
        (f"{_DRAIN}::test_no_standby_of_a_host_that_is_drained_takes_a_rank_of_it",),
    ),
    Bug(
        "the job ends at a step that all ranks hold, and one of them is taken over instead of waiting there",
        "I26",
        "core/scheduler/barrier_ends.py",
        "advance",
        "not barrier.ends_job",
        "True",
        (f"{_JOB_STOP}::test_a_departure_that_is_under_way_becomes_the_end_of_the_job",),
    ),
    Bug(
        "a launcher hears that all ranks wait at a step at which they wait no longer",
        "I26",
        "core/scheduler/barrier_ends.py",
        "_still_waits",
        "_is_saved_for_its_end(state) and not trains_on",
        "_is_saved_for_its_end(state)",
        (f"{_JOB_STOP}::test_ranks_that_have_waited_long_enough_train_on_and_can_be_stopped_again",),
    ),
    Bug(
        "who departs is interrupted before it hears that it may go",
        "I14",
        "core/scheduler/generations/change.py",
        "interrupt",
        "node.connection is not None and not job_end.has_left(node)",
        "node.connection is not None",
        (_HANDED_OVER,),
    ),
    Bug(
        "a worker waits at a step although another scheduler admits it, which knows nothing of that",
        "I14",
        "core/worker/machine.py",
        "WorkerMachine._on_admitted",
        "[*watched, *differs, *self._barrier.on_admitted(), *next_]",
        "[*watched, *differs, *next_]",
        (
            f"{_WORKER}::test_who_waits_at_a_step_is_let_go_when_it_is_admitted_again_or_has_waited_long_enough",
        ),
    ),
    Bug(
        "a process that is asked to end waits for ever for a scheduler that hangs",
        "I14",
        "core/worker/barrier.py",
        "AtBarrier.on_timer",
        "self._leave(late)",
        "[]",
        (f"{_WORKER}::test_it_leaves_when_nobody_begins_and_later_when_nobody_ends",),
    ),
    Bug(
        "a second SIGTERM is held back too",
        "I14",
        "training/stop_signals.py",
        "StopSignals._on_sigterm",
        "not first",
        "False",
        (f"{_SIGNALS}::test_a_second_sigterm_is_not_held_back",),
    ),
    Bug(
        "anybody may have ranks handed over",
        "I17",
        "transport/inspection_server.py",
        "InspectionPages._act",
        "not is_of_this_host(request)",
        "request.transport is None",
        ("tests/transport/test_wire_actions.py::test_only_a_process_of_this_host_may_act",),
    ),
)
