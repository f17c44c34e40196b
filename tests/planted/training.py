"""Bugs in the training process: its last words, its gradients, its threads, and how it replaces itself."""

from __future__ import annotations

from tests.planted.bug import Bug

TRAINING = (
    Bug(
        "a class is learnt by the first two threads that meet it",
        "I14",
        "core/converter.py",
        "Converter.__init__",
        "msgspec.json.Decoder(shape)",
        "",
        (
            "tests/house/test_type_information.py::test_what_is_read_for_the_first_time_builds_no_type_information",
        ),
    ),
    Bug(
        "Done overtakes the last checkpoint's report",
        "I9",
        "core/worker/requests.py",
        "Requests.send_done_if_due",
        "if self._reports():\n    return []",
        "",
        ("tests/core/test_last_checkpoint.py::test_done_waits_for_the_answer_to_every_report",),
    ),
    Bug(
        "a worker's store that does not write holds the job's end up for ever",
        "I14",
        "core/worker/requests.py",
        "Requests.finish",
        "[SetTimer(WorkerTimer.REPORTS, now_ms + REPORT_PATIENCE_MS)]",
        "[]",
        (
            "tests/core/test_last_checkpoint.py::test_a_store_that_does_not_write_holds_the_end_up_for_a_bounded_time",
        ),
    ),
    Bug(
        "a checkpoint that is reported behind the end is dropped",
        "I9",
        "core/scheduler/machine.py",
        "SchedulerMachine._from_speaker",
        "(m.Heartbeat, m.CheckpointReport)",
        "m.Heartbeat",
        ("tests/core/test_last_checkpoint.py::test_a_report_behind_the_end_still_counts",),
    ),
    Bug(
        "the worker's store is closed under its writer",
        "I5",
        "worker/local_store.py",
        "LocalStore._open",
        "atexit.register(self._close_in, os.getpid())",
        "",
        ("tests/worker/test_local_store_end.py::test_a_process_that_ends_lets_its_writer_finish_first",),
    ),
    Bug(
        "what a failed store held back is never sent",
        "I14",
        "worker/local_store.py",
        "LocalStore._failed",
        "while self._unwritten:\n    self._release(self._unwritten.popleft())",
        "self._unwritten.clear()",
        (
            "tests/worker/test_local_store_end.py::test_a_report_leaves_without_its_row_when_the_store_fails_under_it",
        ),
    ),
    Bug(
        "descriptors are closed under the threads that use them",
        "I14",
        "worker/exec_in_place.py",
        "close_all_at_exec",
        "os.set_inheritable(descriptor, False)",
        "os.close(descriptor)",
        (
            "tests/worker/test_exec_in_place.py::test_descriptors_are_marked_for_exec_and_stay_open_until_then",
        ),
    ),
    Bug(
        "a rank that hangs at one step is replaced for ever",
        "I14",
        "core/worker/hangs.py",
        "HangCounter.on_hang",
        "hangs.count < REPLACEMENTS_MAX",
        "hangs.count >= 0",
        ("tests/core/test_hangs.py::test_a_program_that_hangs_at_the_same_step_every_time_ends_by_name",),
    ),
    Bug(
        "progress does not begin the count of hangs again",
        "I14",
        "core/worker/hangs.py",
        "HangCounter.total",
        "0 if progressed else self._before.count",
        "self._before.count",
        ("tests/core/test_hangs.py::test_a_step_that_no_program_had_applied_begins_the_count_again",),
    ),
    Bug(
        "a process that cannot be replaced hangs on with its rank",
        "I14",
        "worker/exec_in_place.py",
        "replace_process",
        "os._exit(error.exit_code)",
        "raise",
        (
            "tests/worker/test_exec_in_place.py::test_a_process_whose_interpreter_is_gone_ends_instead_of_hanging_on_with_its_rank",
        ),
    ),
    Bug(
        "accumulated gradients are not in the checkpoint",
        "I20",
        "torch/gradients.py",
        "take",
        "parameter.grad is not None",
        "parameter.grad is not None and False",
        ("tests/torch/test_gradients.py::test_gradients_of_what_only_an_optimizer_knows_come_back_too",),
    ),
    Bug(
        "parameters share the memory of their restored gradients",
        "I20",
        "torch/gradients.py",
        "put",
        "None if gradient is None else gradient.to(parameter.device, copy=True)",
        "gradient",
        ("tests/torch/test_gradients.py::test_restored_gradients_share_no_memory",),
    ),
)
