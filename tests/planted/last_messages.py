"""Bugs in what is said to who comes too late or is missing: a wait that nobody ends, a sentence that is not true."""

from __future__ import annotations

from tests.planted.bug import Bug

_END = "tests/core/test_after_the_end.py"
_WORDS = "tests/core/test_refusal_messages.py"

LAST_WORDS = (
    Bug(
        "a register begins a run under a scheduler that ends",
        "I14",
        "core/policy/registration.py",
        "_comes_too_late",
        "facts.job.state not in (JobState.FINISHED, JobState.FAILED)",
        "facts.job.state is not JobState.FAILED",
        (f"{_END}::test_who_registers_while_a_finished_scheduler_ends_is_sent_the_end_and_begins_no_run",),
    ),
    Bug(
        "a worker of a finished job waits for a scheduler that has ended",
        "I14",
        "core/worker/connection.py",
        "Connection.on_connect_failed",
        "failed.finished and outside",
        "failed.finished and not outside",
        (f"{_END}::test_a_late_worker_of_a_finished_job_waits_one_lease_and_one_window_not_for_ever",),
    ),
    Bug(
        "a missed deadline says that nobody is missing",
        "I19",
        "core/scheduler/membership/quorum.py",
        "_who_is_missing",
        "JobState.FORMING",
        "JobState.INTERRUPTED",
        ("tests/core/test_refusal_messages.py::test_a_missed_deadline_names_the_server_that_never_came",),
    ),
    Bug(
        "a relaunched process is asked to change its id",
        "I19",
        "core/policy/registration.py",
        "_node_alive",
        "facts.situation.held is Held.LIVE",
        "facts.situation.held in (Held.LIVE, Held.SUSPECT)",
        (
            f"{_WORDS}::test_after_a_full_relaunch_the_refusal_says_that_nobody_is_connected_and_until_when_that_is_believed",
        ),
    ),
)
