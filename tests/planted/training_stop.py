"""Bugs in the early end of training by a script: who is told, where it ends, and what waits."""

from __future__ import annotations

from tests.planted.bug import Bug

_CORE = "tests/core/test_training_stop.py"
_STOP_POINT = "tests/worker/test_stop_point.py"

TRAINING_STOP = (
    Bug(
        "a rank that asks for the end behind another waits at its own step for ever",
        "I32",
        "worker/stop_step.py",
        "StopPoint.hold",
        "self._stop == _NOWHERE or self._saves",
        "True",
        (
            f"{_STOP_POINT}::test_a_rank_that_asks_for_the_end_behind_another_goes_on_to_the_step_of_all",
            "tests/simulation/test_training_stops.py::test_the_end_that_scripts_ask_for_keeps_every_promise_under_a_few_seeds",
        ),
    ),
    Bug(
        "a script's wish is written only once all ranks have agreed",
        "I32",
        "core/scheduler/training_end.py",
        "on_stop_training",
        "[Persist((end,))]",
        "[Persist(())]",
        (f"{_CORE}::test_a_scheduler_that_starts_again_ends_training_where_it_was_asked_for",),
    ),
    Bug(
        "a script's second wish moves the end",
        "I32",
        "core/scheduler/training_end.py",
        "on_stop_training",
        "not (is_here and is_of_it) or state.training_end is not None",
        "not (is_here and is_of_it)",
        (f"{_CORE}::test_what_is_of_no_rank_of_this_generation_ends_nothing[again]",),
    ),
    Bug(
        "a wish of a generation that is over ends the one that follows",
        "I32",
        "core/scheduler/training_end.py",
        "on_stop_training",
        "node.record.rank is not None and stop.generation == state.job.generation",
        "node.record.rank is not None",
        (f"{_CORE}::test_what_is_of_no_rank_of_this_generation_ends_nothing[rolled back]",),
    ),
    Bug(
        "a rank that reconnects is not asked again where it stops",
        "I32",
        "core/scheduler/barrier.py",
        "Barrier.ask_again",
        "self.answers.pop(node.record.node_id, None)",
        "",
        (f"{_CORE}::test_an_answer_from_before_a_reconnect_counts_no_more",),
    ),
    Bug(
        "a rank that comes back hears that training ends before all have agreed on a step",
        "I32",
        "core/scheduler/training_end.py",
        "agreed_training_end",
        "None if barrier is not None and barrier.ends_training else state.training_end",
        "state.training_end",
        (f"{_CORE}::test_a_rank_that_is_away_is_waited_for_and_asked_again",),
    ),
    Bug(
        "a plan behind the end of training trains further",
        "I32",
        "core/scheduler/training_end.py",
        "end_training_no_earlier",
        "end is None or end.step >= step",
        "True",
        (f"{_CORE}::test_a_plan_behind_the_step_that_was_asked_for_ends_where_it_begins",),
    ),
    Bug(
        "a step that is saved once more is committed no longer",
        "I5",
        "core/checkpoints.py",
        "CheckpointIndex.record_of",
        "self._steps.at(checkpoint.step).was_committed",
        "False",
        ("tests/core/test_checkpoint_index.py::test_a_step_that_is_saved_once_more_stays_committed",),
    ),
)
