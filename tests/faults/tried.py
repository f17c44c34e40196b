"""Faults that a trial from outside found: a job was run as a user runs one, and hit wherever nobody had expected it."""

from __future__ import annotations

from typing import NamedTuple


class Tried(NamedTuple):
    """One fault."""

    what: str
    """What a user saw."""
    kept: str
    """The tests that failed before and hold it now."""
    commit: str


TRIED = (
    Tried(
        "A scheduler whose store was deleted, removed or swapped went on acknowledging, and the next one began the job again at step 0",
        "`tests/cluster/test_store_lost.py`, `tests/store/test_store_gone.py`, `tests/core/test_rebuild.py`",
        "b93974e, d7b8bab",
    ),
    Tried(
        "A rank loaded another rank's checkpoint: exit 0 and other bits",
        "`tests/cluster/test_files_passed_over.py`, `tests/checkpoint/test_passed_over_files.py`",
        "09b176c",
    ),
    Tried(
        "Damaged and missing checkpoint files were passed over silently, and overwritten later",
        "`tests/cluster/test_files_passed_over.py`, `tests/core/test_passed_over.py`, `tests/checkpoint/test_name_conflict.py`",
        "09b176c, 2c6ab41",
    ),
    Tried(
        "The last checkpoint of a finished job was never committed; a worker's store was closed under its writer",
        "`tests/cluster/test_last_checkpoint.py`, `tests/core/test_last_checkpoint.py`, `tests/worker/test_local_store_end.py`",
        "f3a7f61",
    ),
    Tried(
        "Other bits after a save between two optimizer steps: accumulated gradients were not in the checkpoint",
        "`tests/torch/test_gradients.py`",
        "127bdfc",
    ),
    Tried(
        "A process that was stopped inside a save finished it after it had been replaced; one of two executors of retention died of a vanished file",
        "`tests/cluster/test_stopped_in_a_save.py`, `tests/worker/test_save_after_a_pause.py`, `tests/checkpoint/test_file_retention.py`",
        "2c6ab41, 1bfd349",
    ),
    Tried(
        "A host that was dead for 75 s was drawn as training; status called the dead live and knew no rank's step",
        "`tests/report/test_true_figures.py`, `tests/cluster/test_true_numbers.py`, `tests/report/test_training_time.py`",
        "e4ea8de, e481119, f59cc1d",
    ),
    Tried(
        "A healthy worker ended with SIGSEGV at its first save: two threads built msgspec's type information",
        "`tests/house/test_type_information.py`",
        "7a50c59",
    ),
    Tried(
        "A worker with thousands of checkpoints could not send Ready and dialled again 238 times in 3 s",
        "`tests/core/test_much_held.py`, `tests/faults/test_endless_dials.py`",
        "94dc36c",
    ),
    Tried(
        "A full writer queue raised in the middle of a stimulus: interrupts and timers were lost",
        "`tests/scheduler/test_backpressure.py`, `tests/transport/test_wire_backpressure.py`",
        "d19b1cf",
    ),
    Tried(
        "One in eight replacements by exec ended with SIGABRT under gloo's threads; a rank that hung at one step replaced itself for ever",
        "`tests/torch/test_exec_under_gloo.py`, `tests/cluster/test_hangs.py`, `tests/core/test_hangs.py`",
        "bc859c4",
    ),
    Tried(
        "The launcher reported success for its own failure",
        "`tests/cluster/test_launcher_failures.py`",
        "30033aa",
    ),
    Tried(
        "One failed write of the scheduler's store ended the whole job",
        "`tests/cluster/test_launcher_failures.py`, `tests/launch/test_restart_policy.py`",
        "30033aa",
    ),
    Tried(
        "Exit code 0 in the middle of training was taken for done; peers waited, and an innocent rank was blamed",
        "`tests/cluster/test_early_exits.py`, `tests/launch/test_worker_completion.py`",
        "0fa2f12",
    ),
    Tried(
        "A surplus worker ended a healthy job",
        "`tests/cluster/test_launcher_surplus.py`",
        "30033aa",
    ),
    Tried(
        "A process that hung while its node was lost was never ended by its launcher",
        "`tests/cluster/test_launcher_failures.py`, `tests/launch/test_hung_nodes.py`",
        "de1a75e, 30033aa",
    ),
    Tried(
        "pytest with `recovery.init()` at module level ended a good job with INTERNALERROR and 3",
        "`tests/cluster/test_pytest_scripts.py`",
        "0fa2f12",
    ),
    Tried(
        "Incidents under PyTorch had no traceback; `recovery stop` missed a launcher after a step of the clock; Ctrl-C after a recovered failure "
        "reported a failed job; workers did not print their rank",
        "`tests/cluster/test_launcher_torch_logs.py`, `tests/launch/test_incident_prefixes.py`, `tests/launch/test_children.py`",
        "1ac3bbd, 10f32ae, 30033aa, 5c79d5f",
    ),
    Tried(
        "Refusals and deadlines contradicted themselves; a registration after the end began a run; a late worker waited half an hour; "
        "a downtime lengthened a window; a newer store counted as empty",
        "`tests/core/test_refusal_messages.py`, `tests/core/test_after_the_end.py`, `tests/cluster/test_late_workers.py`, "
        "`tests/cluster/test_store_refused.py`, `tests/store/test_boot_clock.py`",
        "3ee7d09, d7b8bab, 1d50fce",
    ),
    Tried(
        "Joins grew with the square of the workers; strangers kept a good worker out; the -wal grew to 24 MiB",
        "`tests/core/test_growth.py`, `tests/transport/test_connection_limiter.py`, `tests/store/test_wal_size.py`",
        "37f0297, ba0288f, eee989a",
    ),
    Tried(
        "The protocol page did not suffice to write a client",
        "`tests/protocol/`: a client made from the page alone goes from `register` to `job_ended`",
        "11e3c7e",
    ),
)
