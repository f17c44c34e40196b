"""The stories of the gate: real clusters, one for each thing that the engine promises or that a user does.

A test that starts a cluster is in `make test-all`. Those named here are in `make test` too. Each is held by a file, so that no job runs away
from its test, and asserts the path that was taken, never the time that it took. `python -m tests.stories torch` lists them for pytest.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

_RECOVERY = "cluster/test_recovery.py"
_LAUNCHER = "cluster/test_launcher.py"

PROMISES: Mapping[str, tuple[str, ...]] = {
    "I1": ("cluster/test_waiting.py::test_a_living_process_keeps_its_id_however_long_another_waits_for_it",),
    "I2": (f"{_RECOVERY}::test_three_kills_in_a_row",),
    "I3": ("cluster/test_window.py::test_eight_workers_one_killed_is_refused_until_thirty_seconds",),
    "I4": ("cluster/test_strangers.py::test_strangers_are_turned_away_by_name_and_the_job_trains_on",),
    "I5": (f"{_RECOVERY}::test_everything_dies_at_once_and_resumes_once",),
    "I6": (f"{_RECOVERY}::test_kill_during_a_save_leaves_the_older_checkpoint",),
    "I7": (
        "cluster/test_store_refused.py::test_a_dead_job_whose_store_was_deleted_does_not_begin_at_step_0",
    ),
    "I8": (
        "cluster/test_files_passed_over.py::test_a_directory_copied_over_another_ranks_is_never_loaded",
        "mindspore/test_checkpoints.py::test_a_damaged_file_is_refused_and_the_next_older_common_one_is_taken[torn]",
    ),
    "I9": (
        "cluster/test_inspection.py::test_the_plan_is_what_then_happens[False]",
        "cluster/test_memory_checkpoints.py::test_a_killed_worker_goes_on_from_memory",
    ),
    "I10": (
        "cluster/test_data.py::test_every_sample_is_used_as_if_nothing_had_failed[a checkpoint exactly at an epoch's last step]",
        "cluster/test_epoch_ends.py::test_a_kill_in_the_evaluation_behind_the_loop_trains_no_more[saved behind the loop-worker_1]",
    ),
    "I11": ("cluster/test_last_checkpoint.py::test_a_finished_job_has_committed_its_last_step[1]",),
    "I12": (
        "cluster/test_stopped_in_a_save.py::test_a_process_that_was_replaced_while_it_stood_inside_a_save_does_not_finish_it",
    ),
    "I13": ("protocol/test_protocol_page.py::test_the_same_request_id_is_the_holder_whose_answer_was_lost",),
    "I14": (
        "cluster/test_hangs.py::test_rank_that_hangs_at_the_same_step_in_every_program_ends_by_name",
        "frontdoor/test_bad_input.py::test_too_few_workers_end_the_wait_with_who_is_missing",
    ),
    "I15": (
        "cluster/test_stranger_messages.py::test_every_message_of_a_stranger_a_thousand_times_changes_nothing",
    ),
    "I16": ("cluster/test_tls.py::test_a_job_runs_over_tls_and_recovers_and_leaves_no_secret",),
    "I17": ("cluster/test_strangers.py::test_garbage_and_oversized_frames_on_the_port_cost_nothing",),
    "I19": (
        f"{_RECOVERY}::test_damaged_checkpoint_sends_everybody_to_the_older_one",
        "cluster/test_store_lost.py::test_a_job_that_is_dead_as_a_whole_is_rebuilt_and_goes_on",
    ),
    "I20": (
        f"{_RECOVERY}::test_killed_workers_come_back_with_their_rank[worker_2]",
        f"{_RECOVERY}::test_training_goes_on_without_a_scheduler_and_no_step_is_lost_when_it_comes_back",
        "cluster/test_sharded_state.py::test_a_killed_rank_comes_back_to_its_own_shards[fsdp-2]",
        "cluster/test_shared_checkpoints.py::test_ranks_that_are_killed_read_what_the_others_have_written",
        "cluster/test_adopted_folders.py::test_a_damaged_folder_takes_every_rank_to_the_one_before",
        "mindspore/test_recovery.py::test_killed_processes_come_back[worker_2]",
    ),
    "I21": ("cluster/test_standbys.py::test_torch_job_goes_on_with_a_standby_and_the_same_bits",),
    "I22": ("cluster/test_standbys.py::test_lost_id_returns_as_a_standby_and_takes_the_next_lost_rank",),
    "I23": (
        "cluster/test_proof_of_death.py::test_with_rejoin_proof_a_whole_job_that_was_killed_goes_on_at_once",
        "faults/test_standby_containers.py::test_nobody_takes_the_rank_of_a_worker_in_another_container[pid namespace]",
    ),
    "I24": (
        "cluster/test_launcher_standbys.py::test_a_standby_takes_a_lost_rank_and_the_next_process_waits_in_its_place",
    ),
    "I25": (
        "cluster/test_launcher_standbys.py::test_a_killed_workers_rank_is_taken_at_once_under_a_fresh_id[1]",
    ),
    "I26": (
        "cluster/test_drain.py::test_sigterm_hands_the_rank_over_and_no_step_is_lost[5]",
        "cluster/test_last_save.py::test_the_next_start_goes_on_at_the_step_at_which_the_job_was_stopped[15]",
    ),
    "I27": ("faults/test_lost_disks.py::test_a_rank_on_an_empty_disk_gets_its_checkpoint_back[token]",),
    "I28": (
        "faults/test_lost_disks.py::test_a_damaged_copy_is_refused_and_another_holder_is_asked",
        "mindspore/test_lost_disks.py::test_a_rank_on_an_empty_disk_goes_on_with_the_same_bits",
    ),
    "I30": (
        "cluster/test_live_rollback.py::test_a_killed_worker_costs_no_step[worker_0-built-anew]",
        "cluster/test_live_shards.py::test_what_is_held_twice_costs_no_step[one-of-each-part-built-anew]",
    ),
    "I31": ("cluster/test_live_kinds.py::test_no_step_is_lost[averages]",),
    "I32": ("cluster/test_training_stop.py::test_a_stop_on_one_rank_ends_training_of_all_at_one_step[1-0]",),
}
"""By the number of docs/guarantees.md. I18 is held by the linter, I29 by the simulation."""

USES: Mapping[str, tuple[str, ...]] = {
    "recovery msrun": (
        f"{_LAUNCHER}::test_a_job_runs_to_its_end",
        f"{_LAUNCHER}::test_what_is_killed_is_started_again[sched-flags2]",
        f"{_LAUNCHER}::test_a_launcher_that_is_asked_to_stop_ends_everything[15]",
        "cluster/test_launcher_template.py::test_a_worker_is_forked_again_and_the_template_made_again",
        "cluster/test_launcher_failures.py::test_a_scheduler_whose_store_failed_starts_again_from_what_is_on_disk",
    ),
    "a plain script": ("cluster/test_launcher_plain.py::test_a_killed_program_starts_the_world_again[0]",),
    "several hosts": (
        "cluster/test_launcher_hosts.py::test_a_host_that_dies_and_comes_back_takes_its_ranks[plain]",
        "cluster/test_launcher_takeover.py::test_a_lost_hosts_ranks_are_started_beside_those_of_another",
        "faults/test_network_namespaces.py::test_packets_of_one_way_lost_for_less_than_the_lease_cost_no_rollback",
    ),
    "Lightning": (
        "trainers/test_lightning_recovery.py::test_a_killed_rank_goes_on_in_the_middle_of_an_epoch[0]",
    ),
    "recover.sh": (
        "cluster/test_example.py::test_recover_without_a_name_starts_exactly_what_is_lost_and_training_ends_alike",
    ),
    "pytest": (
        "cluster/test_starts.py::test_script_started_by_pytest_in_every_role_survives_a_killed_worker",
    ),
    "servers": (
        "cluster/test_servers.py::test_workers_that_roll_back_and_a_new_scheduler_find_the_server_as_it_was",
    ),
    "a mistake in the script": (
        "cluster/test_ends.py::test_mistake_in_the_users_code_is_printed_stored_and_corrected_by_a_relaunch",
    ),
    "passes of unequal length": (
        "cluster/test_same_passes.py::test_passes_of_unequal_length_are_refused_before_they_begin[sampler-run-lengths0-1]",
    ),
    "a mistake behind the training": (
        "cluster/test_behind_training.py::test_the_others_go_on_and_the_first_failure_is_the_exit_code",
    ),
    "the Trainer of transformers": (
        "trainers/test_transformers.py::test_a_killed_rank_goes_on_within_an_epoch_with_the_same_bits",
    ),
    "Accelerate": (
        "trainers/test_accelerate.py::test_a_killed_rank_goes_on_within_an_epoch_with_the_same_bits",
    ),
    "without recovery": (
        "cluster/test_ends.py::test_without_recovery_the_first_loss_ends_every_process_and_nobody_waits_for_a_lease[worker_1]",
    ),
}
"""By what a user does."""

STORIES = frozenset(
    f"tests/{name}" for table in (PROMISES, USES) for names in table.values() for name in names
)


_OF_ITS_OWN = ("mindspore", "trainers")
"""Folders of tests/ whose stories run in an environment of their own."""


def of(environment: str) -> list[str]:
    """The stories that run in an environment: torch, mindspore or trainers."""
    return sorted(story for story in STORIES if _environment(story) == environment)


def _environment(story: str) -> str:
    folder = story.split("/")[1]
    return folder if folder in _OF_ITS_OWN else "torch"


if __name__ == "__main__":
    print("\n".join(of(sys.argv[1])))
