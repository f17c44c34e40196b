"""Bugs in how a process's end is understood: an exit that looks like success."""

from __future__ import annotations

from tests.planted.bug import Bug

ENDS: tuple[Bug, ...] = (
    Bug(
        "the end of a wait for a rank does not say who did not take it",
        "I19",
        "core/scheduler/membership/quorum.py",
        "_who_is_missing",
        "who_declined(state)",
        '""',
        ("tests/core/test_takeover_ends.py::test_end_of_a_wait_names_who_did_not_take_the_rank_and_why",),
    ),
    Bug(
        "a process that is asked to stop before its connection is up speaks to nobody",
        "I14",
        "training/run.py",
        "_Loop._stop",
        "self._service.is_up",
        "True",
        (
            "tests/training/test_stop_while_starting.py::test_process_that_is_asked_to_stop_while_its_connection_starts_leaves_in_order[2-True]",
        ),
    ),
    Bug(
        "a script that goes on after its training is ended because the scheduler is gone",
        "I14",
        "core/worker/machine.py",
        "WorkerMachine._follow",
        "self._departure.ended_in_order",
        "False",
        ("tests/core/test_worker_machine.py::test_a_script_that_goes_on_after_a_finished_job_is_left_alone",),
    ),
    Bug(
        "a job that forms ends because a standby is given up that never came",
        "I24",
        "core/scheduler/membership/liveness.py",
        "_give_up_unknown",
        "if exited.standby:",
        "if exited.standby and exited.pid < 0:",
        (
            "tests/core/test_takeover_ends.py::test_standby_that_is_given_up_before_it_came_keeps_no_job_from_beginning",
        ),
    ),
    Bug(
        "an exit code of 0 is taken for done",
        "I14",
        "launch/job_completion.py",
        "Completion.includes_worker",
        "self._finished or _left_in_order(status, node_id)",
        "True",
        ("tests/launch/test_job_completion.py::test_nobody_is_done_before_the_job_is_finished",),
    ),
    Bug(
        "a scheduler that is being started again is not waited for",
        "I14",
        "launch/job_completion.py",
        "Completion.includes_worker",
        "clock.monotonic_ms() >= give_up_ms",
        "give_up_ms",
        ("tests/launch/test_job_completion.py::test_a_scheduler_that_is_started_again_is_waited_for",),
    ),
    Bug(
        "an exit that leaves the loop is taken for a break",
        "I10",
        "training/early_exit.py",
        "_is_on_its_way",
        "trace is None or any(link.tb_frame in standing for link in _links(trace))",
        "trace is not None and any(link.tb_frame in standing for link in _links(trace))",
        ("tests/training/test_early_exit.py::test_an_exit_that_leaves_the_loop_is_seen_with_its_place",),
    ),
    Bug(
        "an exit that was caught long ago counts as on its way",
        "I14",
        "training/early_exit.py",
        "_is_on_its_way",
        "trace is None or any(link.tb_frame in standing for link in _links(trace))",
        "True",
        ("tests/training/test_early_exit.py::test_an_exit_that_somebody_has_caught_and_kept_is_none",),
    ),
    Bug(
        "torch's exception hooks stack up",
        "I19",
        "training/exception_hook.py",
        "exception_hook_kept",
        "sys.excepthook = hook",
        "hook = sys.excepthook",
        ("tests/torch/test_exception_hook.py::test_the_warm_up_leaves_the_exception_hook_as_it_was",),
    ),
    Bug(
        "a traceback behind a rank is none",
        "I19",
        "launch/incidents.py",
        "_traceback",
        '(_RANKS.sub("", line) for line in lines)',
        "lines",
        (
            "tests/launch/test_incident_prefixes.py::test_a_traceback_is_kept_without_the_ranks_before_its_lines",
        ),
    ),
)
