"""Bugs by which work is lost in silence: a worker that cannot come back, a task whose end nobody hears of, a save that failed unsaid."""

from __future__ import annotations

from tests.planted.bug import Bug

_THREADS = "tests/worker/test_broken_threads.py"
_WINDOWS = "tests/core/test_windows.py"

LOST_WORK = (
    Bug(
        "all that is not answered goes at once on a new connection",
        "I17",
        "core/worker/requests.py",
        "Requests.send_all",
        "may_wait[IN_FLIGHT_MAX:]",
        "may_wait[len(may_wait) :]",
        (
            f"{_WINDOWS}::test_however_many_saves_are_not_answered_a_window_goes_at_once_and_each_answer_lets_the_next_go",
        ),
    ),
    Bug(
        "a holder of many copies is asked for those of the first window only",
        "I14",
        "core/scheduler/checkpoints/copying.py",
        "note_outcome",
        "copying.rescan or copying.holds_back",
        "copying.rescan",
        ("tests/core/test_copies.py::test_a_holder_of_many_ranks_copies_is_asked_in_windows",),
    ),
    Bug(
        "a save that a mistake ends is said by nobody",
        "I19",
        "training/save_thread.py",
        "SaveThread.begin",
        "Exception",
        "MemoryError",
        ("tests/training/test_saves_that_fail.py::test_a_save_on_the_disk",),
    ),
    Bug(
        "a call for which no thread can be started is not made",
        "I13",
        "transport/blocking_calls.py",
        "Calls.submit",
        "self._work(idle_s=0)",
        "raise",
        (f"{_THREADS}::test_a_call_for_which_no_thread_can_be_started_is_made_once",),
    ),
    Bug(
        "a worker whose object storage fails by a mistake is never ready",
        "I14",
        "worker/executor.py",
        "Executor._bring",
        "Exception",
        "RecoveryError",
        (f"{_THREADS}::test_whatever_fails_the_machine_is_given_a_result_and_a_line_says_why",),
    ),
)
