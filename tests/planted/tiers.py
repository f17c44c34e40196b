"""Bugs where tiers, copies and a lost store meet: a job is started over, or a copy that is there counts for nothing."""

from __future__ import annotations

from tests.planted.bug import Bug

_FOUND = "tests/core/test_copies_found_again.py"

TIERS = (
    Bug(
        "a step that is common in memory hides what was saved on disks",
        "I9",
        "core/policy/rebuild.py",
        "_taken_for_committed",
        "rollback.common_steps(on_disks, worker_count)",
        "rollback.common_steps(rollback.by_step(held), worker_count)",
        (
            "tests/core/test_rebuild_policy.py::test_a_step_that_is_common_in_memory_does_not_hide_what_was_saved_on_disks",
        ),
    ),
    Bug(
        "a worker says to another job what it said to its own",
        "I9",
        "core/worker/checkpoint_messages.py",
        "CheckpointMessages.joined",
        "self.ready = None",
        "pass",
        ("tests/core/test_worker_machine.py::test_what_it_said_to_another_job_is_not_said_again",),
    ),
    Bug(
        "what all disks are found to hold behind a plan to memory is not promised",
        "I9",
        "core/checkpoints.py",
        "CheckpointIndex.roll_back",
        "self._ever_committed or self.durable_step > 0",
        "self._ever_committed or is_durable",
        (
            "tests/core/test_memory_steps.py::test_what_all_disks_are_found_to_hold_is_worth_failing_for_behind_a_plan_to_memory",
        ),
    ),
    Bug(
        "a rebuilt store knows no copies",
        "I27",
        "core/scheduler/membership/lost_scheduler_store.py",
        "take_up",
        "rows += state.checkpoints.copies.replace(node.record.node_id, state.copies_of_this_run(node.ready))",
        "pass",
        (f"{_FOUND}::test_copies_of_a_job_whose_store_is_lost_are_taken_up",),
    ),
    Bug(
        "copies of a place stay those of an id that has it no more",
        "I19",
        "core/scheduler/membership/ready_reports.py",
        "_note_copies",
        "rows += state.checkpoints.copies.replace(name, (), reason)",
        "pass",
        (f"{_FOUND}::test_copies_of_a_place_are_those_of_the_fresh_id_that_has_it",),
    ),
)
