"""Bugs in the memory tier: what it may count for, what it may take, and whose files it may remove."""

from __future__ import annotations

from tests.planted.bug import Bug

_STEPS = "tests/core/test_memory_steps.py"
_COPIES = "tests/core/test_memory_and_copies.py"
_TIER = "tests/checkpoint/test_memory_tier.py"
_SAVES = "tests/training/test_memory_checkpoints.py"

MEMORY = (
    Bug(
        "a step in memory lets files on the disk go",
        "I11",
        "core/checkpoints.py",
        "becomes_durable = step > self.durable_step and self._is_durable(step)",
        "becomes_durable = step > self.durable_step",
        (f"{_STEPS}::test_the_plan_goes_to_the_newest_step_on_whatever_it_lies",),
    ),
    Bug(
        "a worker takes a step in memory for one on the disks",
        "I11",
        "worker/training_control.py",
        "durable_step = step if durable_step is None else durable_step",
        "durable_step = step",
        ("tests/worker/test_training_control.py::test_steps_in_memory_let_no_file_on_the_disk_go",),
    ),
    Bug(
        "a disk step behind one in memory is never committed",
        "I9",
        "core/checkpoints.py",
        "if step <= self.committed_step and not becomes_durable:",
        "if step <= self.committed_step:",
        (f"{_STEPS}::test_a_disk_step_behind_a_newer_one_in_memory_is_committed_too",),
    ),
    Bug(
        "a job fails for what was only in memory",
        "I9",
        "core/checkpoints.py",
        "self._ever_committed = self._ever_committed or is_durable\n        for held",
        "self._ever_committed = self._ever_committed or step > 0\n        for held",
        (f"{_STEPS}::test_a_plan_at_a_step_in_memory_makes_nothing_durable",),
    ),
    Bug(
        "a standby is asked for what its rank had in memory",
        "I25",
        "core/checkpoints.py",
        "step = self._newest_durable()\n        return self.file_of",
        "step = self.committed_step\n        return self.file_of",
        (f"{_STEPS}::test_a_standby_needs_what_lies_on_disks",),
    ),
    Bug(
        "a rank is handed over when its step is in memory",
        "I26",
        "core/scheduler/drain.py",
        "state.checkpoints.durable_step >= drain.step:",
        "state.checkpoints.committed_step >= drain.step:",
        (f"{_STEPS}::test_a_handover_waits_for_the_disks",),
    ),
    Bug(
        "a living job's memory is cleared up",
        "I11",
        "checkpoint/memory_tier.py",
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        (f"{_TIER}::test_a_living_jobs_directory_is_left_alone_until_its_process_is_killed",),
    ),
    Bug(
        "the lock of a directory that was cleared up counts",
        "I11",
        "checkpoint/memory_tier.py",
        "if _is_there(root / OWNER_FILE, descriptor):",
        "if descriptor >= 0:",
        (f"{_TIER}::test_who_makes_the_directory_while_it_is_cleared_up_makes_it_again",),
    ),
    Bug(
        "what another user has put there is used",
        "I16",
        "checkpoint/memory_tier.py",
        "found.st_uid != os.geteuid() or found.st_mode & 0o077:",
        "found.st_uid != os.geteuid():",
        (f"{_TIER}::test_what_another_user_could_have_put_there_is_not_used_and_not_removed",),
    ),
    Bug(
        "memory fills up",
        "I17",
        "training/memory_checkpoints.py",
        "if committed == held[:1]",
        "if False",
        (f"{_SAVES}::test_steps_that_do_not_go_to_the_disk_go_to_memory_and_two_of_them_stay",),
    ),
    Bug(
        "a rank's bound on memory counts only the new one",
        "I17",
        "training/memory_checkpoints.py",
        "return self._bytes_max - _bytes_of(kept)",
        "return self._bytes_max",
        (f"{_SAVES}::test_all_that_is_held_stays_within_the_bound",),
    ),
    Bug(
        "what was rolled back stays in memory",
        "I17",
        "training/memory_checkpoints.py",
        "held = [one for one in self._held(session) if one.step <= session.step]",
        "held = self._held(session)",
        (f"{_SAVES}::test_a_generation_that_begins_removes_what_was_rolled_back_or_never_finished",),
    ),
    Bug(
        "copies in memory of older steps take the place of those on disks",
        "I29",
        "core/copy_index.py",
        "(oldest_in_memory if tier_of(held.path) is Tier.MEMORY else oldest)",
        "oldest_in_memory",
        (f"{_COPIES}::test_what_is_in_memory_is_copied_while_no_step_on_disks_waits",),
    ),
    Bug(
        "a plan at a step in memory leaves the disk step before it without copies",
        "I27",
        "core/scheduler/copying.py",
        "state.copying.due = checkpoints.durable_step",
        "state.copying.due = 0",
        (f"{_COPIES}::test_a_plan_at_a_step_in_memory_has_the_disk_step_before_it_copied_first",),
    ),
    Bug(
        "a scheduler that starts again leaves what is in memory without copies",
        "I29",
        "core/scheduler/copying.py",
        "checkpoints.committed_step if is_newer else 0",
        "0",
        (f"{_COPIES}::test_a_scheduler_that_starts_again_copies_what_is_missing",),
    ),
    Bug(
        "a step that a rank still fetches counts as none on the disks",
        "I11",
        "core/checkpoints.py",
        "step if is_durable else self._newest_durable()",
        "self._newest_durable()",
        (f"{_COPIES}::test_a_step_that_a_rank_still_fetches_is_durable",),
    ),
    Bug(
        "a worker that connects again forgets what lies on disks",
        "I11",
        "core/worker/checkpoint_messages.py",
        "self._committed_step, self._durable_step = admitted.committed_step, admitted.durable_step",
        "self._committed_step, self._durable_step = admitted.committed_step, None",
        (f"{_COPIES}::test_a_worker_that_connects_again_keeps_what_is_copied_and_what_lies_on_disks",),
    ),
    Bug(
        "a captured state takes more memory than its share",
        "I17",
        "training/memory_checkpoints.py",
        "if captured.file.size > left_bytes:",
        "if captured.file.size < 0:",
        (f"{_SAVES}::test_a_captured_state_that_does_not_fit_is_not_saved_and_the_next_capture_begins",),
    ),
)
