"""Bugs around a scheduler's store that is lost: who notices, who refuses, and what the rebuilt one says."""

from __future__ import annotations

from tests.planted.bug import Bug

GONE = "tests/store/test_store_gone.py"
CORE = "tests/core/test_rebuild.py"
POLICY = "tests/core/test_rebuild_policy.py"
MEMORY = "tests/core/test_job_memory.py"
SHELL = "tests/scheduler/test_rebuild.py"

FRESH = "tests/core/test_rebuild_fresh_ids.py"
STANDBYS = "tests/core/test_rebuild_standbys.py"

LOST_STORE = (
    Bug(
        "who had the ranks before is believed at once, while standbys train with them",
        "I9",
        "core/scheduler/lost_store.py",
        "    if all_here or state.lost_store.reported_generation >= built.generation:\n",
        "    if all_here or built.generation:\n",
        (f"{STANDBYS}::test_standbys_that_have_all_ranks_have_one_lease_to_come_before_notes_are_believed",),
    ),
    Bug(
        "an address is taken for the fresh id of a place",
        "I22",
        "core/policy/ranks.py",
        "return first if is_fresh and not _ADDRESS.fullmatch(name) else name",
        "return first if is_fresh else name",
        ("tests/scheduler/test_rebuild_places.py",),
    ),
    Bug(
        "a plan does not say of which rank a rebuilt store knows only the past",
        "I19",
        "core/policy/rebuild.py",
        "        if node.reason == OF_REBUILT_STORE\n",
        "        if node.reason == NOT_KNOWN\n",
        ("tests/report/test_lost_store.py::test_a_plan_says_of_which_rank_it_does_not_know_everything",),
    ),
    Bug(
        "a generation that only a standby knows is given again",
        "I2",
        "core/scheduler/lost_store.py",
        "max(state.lost_store.reported_generation, ready.generation)",
        "max(state.lost_store.reported_generation, 0 if node.is_standby else ready.generation)",
        (f"{FRESH}::test_generation_that_only_a_standby_knows_is_not_given_again",),
    ),
    Bug(
        "what somebody knew of a lost store's job is forgotten when it is gone again",
        "I1",
        "core/scheduler/lost_store.py",
        "for node_id, past in state.lost_store.reported.items() if node_id not in pasts}",
        "for node_id, past in state.lost_store.reported.items() if node_id in ()}",
        (
            f"{STANDBYS}::test_generation_of_who_held_a_rank_and_is_gone_again_is_not_given_again",
            f"{STANDBYS}::test_job_that_only_who_is_gone_knew_is_no_new_one",
        ),
    ),
    Bug(
        "a worker that knows another rank's past goes on from that rank's file",
        "I21",
        "core/scheduler/state.py",
        "return self.of_this_run(past.held) if past.rank == rank else ()",
        "return self.of_this_run(past.held)",
        (f"{FRESH}::test_second_process_of_a_place_is_never_sent_to_the_file_of_another_rank",),
    ),
    Bug(
        "nobody waits for who knows more of a rank",
        "I9",
        "core/scheduler/lost_store.py",
        '"; ".join(built.unsure_ranks) or _only_noted(state, built)',
        "_only_noted(state, built)",
        (f"{FRESH}::test_who_knows_more_of_a_rank_has_one_lease_to_come_and_has_it_again",),
    ),
    Bug(
        "an owner whose file was taken away acknowledges on",
        "I5",
        "store/repository.py",
        "        self._database.file_identity.check()\n        self._lock.assert_held",
        "        self._lock.assert_held",
        (f"{GONE}::test_an_owner_whose_file_was_taken_away_writes_no_more",),
    ),
    Bug(
        "a file that goes during the write is not noticed",
        "I5",
        "store/repository.py",
        "        self._database.file_identity.check()\n        self._database.commits",
        "        self._lock.assert_held(self._path)\n        self._database.commits",
        (f"{GONE}::test_a_file_that_goes_while_a_batch_is_written_takes_the_batch_with_it",),
    ),
    Bug(
        "only the main file is looked at, not its log",
        "I5",
        "store/file_identity.py",
        'for file in (path, companion(path, "-wal"))}',
        "for file in (path, path)}",
        (f"{GONE}::test_an_owner_whose_file_was_taken_away_writes_no_more",),
    ),
    Bug(
        "an owner without work never looks",
        "I14",
        "store/writer.py",
        "self._queue or self._closing, LOOK_S)",
        "self._queue or self._closing, None)",
        (f"{GONE}::test_a_writer_without_work_notices_within_a_heartbeat",),
    ),
    Bug(
        "a path full of another job's stores begins a new job",
        "I9",
        "scheduler/store_rebuild.py",
        "return found if found.description else None",
        "return found if found.description and rebuilding else None",
        (f"{SHELL}::test_a_scheduler_refuses_by_name_and_leaves_everything_as_it_is",),
    ),
    Bug(
        "a living worker of another job is taken in by a new one",
        "I9",
        "core/scheduler/lost_store.py",
        "return [_end(state, what)]\n\n\ndef _was",
        "return None\n\n\ndef _was",
        (f"{CORE}::test_a_living_worker_of_another_job_ends_a_scheduler_that_knows_nothing",),
    ),
    Bug(
        "a scheduler that ends for a lost store still plans",
        "I9",
        "core/scheduler/lost_store.py",
        "state.lost_store.ends_scheduler = True",
        "state.lost_store.ends_scheduler = False",
        (f"{CORE}::test_the_own_store_of_a_worker_ends_a_scheduler_that_knows_nothing",),
    ),
    Bug(
        "numbers of a rebuilt job begin again at one",
        "I2",
        "core/scheduler/lost_store.py",
        "generation=built.generation,\n        scheduler_incarnation",
        "generation=state.job.generation,\n        scheduler_incarnation",
        (f"{CORE}::test_it_takes_the_job_up_with_its_ranks_its_numbers_and_its_newest_common_step",),
    ),
    Bug(
        "a forgotten generation is taken for one that rolled nothing back",
        "I8",
        "core/policy/rebuild.py",
        "step = lowest_saved[generation] - 1",
        "step = lowest_saved[generation]",
        (f"{POLICY}::test_where_a_forgotten_generation_began_is_taken_from_its_lowest_file",),
    ),
    Bug(
        "a rebuilt job whose files are gone begins at step 0",
        "I9",
        "core/policy/rebuild.py",
        "state=CheckpointState.COMMITTED,\n        reason=",
        "state=CheckpointState.PUBLISHED,\n        reason=",
        (f"{POLICY}::test_who_has_saved_keeps_the_plan_from_step_0_even_without_files",),
    ),
    Bug(
        "a rebuilt job's plan is not sent with its own name",
        "I8",
        "core/worker/plans.py",
        "job=plan.job or admitted.job,",
        "job=admitted.job,",
        (
            f"{MEMORY}::test_a_worker_of_a_job_says_so_when_it_registers_and_what_it_knows_when_it_is_asked_by_another",
        ),
    ),
    Bug(
        "a repeated answer of a new scheduler is taken for the old one's",
        "I8",
        "core/worker/machine.py",
        "is_known = before is not None and admitted.resumed and before.job == admitted.job",
        "is_known = before is not None and admitted.resumed",
        (f"{MEMORY}::test_a_new_scheduler_that_repeats_its_answer_is_not_taken_for_the_one_before",),
    ),
    Bug(
        "a window is paused while no scheduler runs",
        "I3",
        "scheduler/startup.py",
        "max(0, node.rejoin_left_ms - away_ms)",
        "max(0, node.rejoin_left_ms)",
        (f"{SHELL}::test_an_open_window_runs_on_while_no_scheduler_runs",),
    ),
)
