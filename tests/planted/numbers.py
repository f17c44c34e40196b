"""Bugs in what people are shown: when each rank trained, how far it is, and who runs."""

from __future__ import annotations

from tests.planted.bug import Bug

NUMBERS: tuple[Bug, ...] = (
    Bug(
        "a pause is noted as training",
        "I19",
        "core/worker/progress.py",
        "TrainingIntervals.note",
        "now_ms - self._noted_ms > self._due_ms",
        "now_ms - self._noted_ms > 1_000 * self._due_ms",
        ("tests/core/test_activity.py::test_a_note_that_is_late_begins_a_stretch_of_its_own",),
    ),
    Bug(
        "a dead host counts as training until somebody notices",
        "I19",
        "report/training_time.py",
        "_trained",
        "0 < over_ms - end_ms <= recorded[-1].due_ms",
        "0 < over_ms - end_ms",
        ("tests/report/test_training_time.py::test_what_nobody_saw_while_the_scheduler_was_away_is_unknown",),
    ),
    Bug(
        "steps are lost from the newest that the scheduler knew",
        "I19",
        "report/timeline.py",
        "_reached",
        "max(generation.ended_step, recorded, saved, *(stored.event.step or 0 for stored in logged), 0)",
        "max(generation.ended_step, saved, *(stored.event.step or 0 for stored in logged), 0)",
        ("tests/report/test_training_time.py::test_lost_steps_count_from_the_newest_that_anybody_recorded",),
    ),
    Bug(
        "an owner on another host counts as dead",
        "I19",
        "store/lock.py",
        "owner_state",
        "held is not None and ran_here",
        "held is not None",
        ("tests/store/test_owner_state.py::test_a_store_shows_whether_its_owner_runs_here",),
    ),
    Bug(
        "whom a restarted scheduler has not heard stays live in its file",
        "I19",
        "core/scheduler/restore.py",
        "start",
        "(*records, *silent)",
        "tuple(records)",
        ("tests/core/test_activity.py::test_a_restarted_scheduler_writes_down_whom_it_has_not_heard",),
    ),
)
