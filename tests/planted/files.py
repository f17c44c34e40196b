"""Bugs in whose file a file is, what is said of files that are not taken, and what happens to them."""

from __future__ import annotations

from tests.planted.bug import Bug

_LEFTOVERS = "tests/checkpoint/test_leftovers.py"
_LOOK = "tests/checkpoint/test_passed_over_files.py"
_CONFLICT = "tests/checkpoint/test_name_conflict.py"
_CORE = "tests/core/test_passed_over.py"
_RETENTION = "tests/checkpoint/test_file_retention.py"

FILES = (
    Bug(
        "a scan takes another rank's file",
        "I8",
        "checkpoint/contribution.py",
        "not_of",
        "rank not in (None, manifest.rank)",
        "rank is not None and rank < 0",
        (f"{_LOOK}::test_what_is_passed_over_is_named_newest_first_with_its_reason",),
    ),
    Bug(
        "a file of the plan may be of any step",
        "I8",
        "checkpoint/verify.py",
        "compare",
        "manifest.step != wanted.step",
        "manifest.step < 0",
        (f"{_LOOK}::test_a_whole_file_of_another_place_is_not_what_the_plan_wants",),
    ),
    Bug(
        "a file of the plan may be another than the checkpoint index names",
        "I8",
        "checkpoint/verify.py",
        "compare",
        "manifest.digest != wanted.digest",
        "len(manifest.digest) != len(wanted.digest)",
        (f"{_LOOK}::test_a_whole_file_that_is_not_the_one_of_the_index_is_not_what_the_plan_wants",),
    ),
    Bug(
        "a worker that has a rank looks for files of any",
        "I8",
        "core/worker/checkpoint_messages.py",
        "CheckpointMessages.find",
        "rank if admitted.rank is None else admitted.rank",
        "admitted.rank",
        (f"{_CORE}::test_a_worker_looks_for_the_files_of_its_rank_once_it_has_one",),
    ),
    Bug(
        "a damaged file is passed over in silence",
        "I19",
        "checkpoint/catalogue.py",
        "list_directory",
        "name in listed or is_ours",
        "name not in listed and is_ours",
        (f"{_LOOK}::test_what_is_passed_over_is_named_newest_first_with_its_reason",),
    ),
    Bug(
        "a directory that cannot be listed hides the others",
        "I19",
        "checkpoint/catalogue.py",
        "list_all",
        "passed_over[path] = _passed_over(Path(path), str(error), None)\ncontinue",
        "raise error",
        (f"{_LOOK}::test_a_directory_that_cannot_be_listed_hides_no_other",),
    ),
    Bug(
        "a file that is passed over is reported at every Ready",
        "I17",
        "core/scheduler/membership/ready_reports.py",
        "_passed_over",
        "skipped not in before",
        "skipped is not None",
        (f"{_CORE}::test_what_was_said_is_no_news_and_what_changed_is",),
    ),
    Bug(
        "a committed step is given up without a word",
        "I19",
        "core/checkpoints.py",
        "CheckpointIndex.given_up",
        "step > target",
        "step < target",
        (f"{_CORE}::test_a_committed_step_that_is_given_up_is_named_with_rank_and_reason",),
    ),
    Bug(
        "a restarted scheduler forgets which steps were committed",
        "I19",
        "core/checkpoints.py",
        "CheckpointIndex.load",
        "holders.was_committed |= record.state is CheckpointState.COMMITTED",
        "",
        (
            f"{_CORE}::test_a_restarted_scheduler_still_knows_which_steps_were_committed_and_which_file_failed",
        ),
    ),
    Bug(
        "a step that only a plan found common counts as never committed",
        "I19",
        "core/checkpoints.py",
        "CheckpointIndex.roll_back",
        "self._steps.open(self.committed_step).was_committed = True",
        "pass",
        (f"{_CORE}::test_a_step_that_only_a_plan_found_common_counts_as_committed",),
    ),
    Bug(
        "a file that was brought back stays unusable",
        "I9",
        "core/checkpoints.py",
        "CheckpointIndex.add",
        "holders.unusable.pop(rank, None)",
        "holders.unusable.get(rank)",
        (f"{_CORE}::test_a_rank_that_saves_a_given_up_step_again_has_it",),
    ),
    Bug(
        "a worker names every file that it passes over",
        "I17",
        "core/worker/checkpoint_messages.py",
        "CheckpointMessages.on_found",
        "found.passed_over[: m.SKIPPED_MAX]",
        "found.passed_over",
        (f"{_CORE}::test_a_worker_names_so_many_files_as_fit_and_counts_the_rest",),
    ),
    Bug(
        "a damaged file is written over",
        "I19",
        "checkpoint/name_conflict.py",
        "_violation",
        "try:\n"
        "    verify.check(path.with_name(old.file))\n"
        "except CheckpointError as error:\n"
        "    return str(error)",
        'try:\n    verify.check(path.with_name(old.file))\nexcept CheckpointError:\n    return ""',
        (f"{_CONFLICT}::test_a_file_that_is_not_what_it_was_keeps_its_bytes_under_another_name",),
    ),
    Bug(
        "a second bad file is kept in place of the first",
        "I19",
        "checkpoint/name_conflict.py",
        "_free_number",
        "not any(os.path.lexists(file.with_name(_kept(file, number))) for file in files)",
        "number or not any(os.path.lexists(file.with_name(_kept(file, number))) for file in files)",
        (f"{_CONFLICT}::test_every_bad_file_is_kept_and_none_is_written_over",),
    ),
    Bug(
        "a process that was paused inside a save renames unasked",
        "I12",
        "checkpoint/publish.py",
        "give_names",
        "check_place(path, still_owns_rank)\nfile.rename()",
        "file.rename()",
        (f"{_CONFLICT}::test_a_process_that_lost_its_place_gives_no_name_any_more",),
    ),
    Bug(
        "a framework's file gets its manifest unasked",
        "I12",
        "checkpoint/adopt.py",
        "adopt",
        "lambda: check_place(path, still_owns_rank)",
        "None",
        (f"{_CONFLICT}::test_a_framework_s_file_of_a_process_that_lost_its_place_gets_no_manifest",),
    ),
    Bug(
        "a save does not wait for the answer about its place",
        "I12",
        "worker/training_control.py",
        "TrainingControl.still_owns_rank",
        "self._confirmed and not self._is_fenced",
        "True",
        (
            "tests/worker/test_save_after_a_pause.py::test_a_pause_that_the_other_thread_noticed_counts_for_the_save_too",
        ),
    ),
    Bug(
        "a save does not look at the clocks",
        "I12",
        "worker/training_control.py",
        "TrainingControl.still_owns_rank",
        "paused_ms > self._pause_limit_ms",
        "paused_ms < 0",
        (
            "tests/worker/test_save_after_a_pause.py::test_a_save_of_a_process_that_was_paused_waits_for_the_answer",
        ),
    ),
    Bug(
        "retention dies of a file that vanished",
        "I14",
        "checkpoint/retention.py",
        "Retention._saved_wall_s",
        "try:\n"
        "    return path.stat().st_mtime\n"
        "except FileNotFoundError:\n"
        "    return None\n"
        "except OSError as error:\n"
        "    self._log(path, reason_of(error))\n"
        "    return None",
        "try:\n"
        "    return path.stat().st_mtime\n"
        "except FileNotFoundError:\n"
        "    raise\n"
        "except OSError as error:\n"
        "    self._log(path, reason_of(error))\n"
        "    return None",
        (f"{_RETENTION}::test_a_file_that_vanishes_between_the_look_and_its_time_costs_nobody_anything",),
    ),
    Bug(
        "what is left of a removed step stays for ever",
        "I17",
        "checkpoint/retention.py",
        "Retention.apply",
        "(as_if_whole, found.remains)",
        "(as_if_whole, ())",
        (f"{_RETENTION}::test_a_removal_that_is_stopped_between_two_files_is_finished_by_the_next",),
    ),
    Bug(
        "what is left of a step takes a whole one's place",
        "I11",
        "checkpoint/retention.py",
        "Retention.apply",
        "(whole, found.held)",
        "(as_if_whole, found.held)",
        (f"{_RETENTION}::test_what_is_left_takes_no_whole_one_s_place",),
    ),
    Bug(
        "a file that cannot be removed loses its manifest",
        "I11",
        "checkpoint/retention.py",
        "remove",
        "(*_files_of(path, beside), beside)",
        "(beside, path)",
        (f"{_RETENTION}::test_a_file_that_cannot_be_removed_keeps_its_manifest_and_is_logged_once",),
    ),
    Bug(
        "what a living process writes is taken for left over",
        "I11",
        "checkpoint/leftovers.py",
        "_is_left_over",
        'not _is_written(name, int(match["pid"]))',
        "True",
        (f"{_LEFTOVERS}::test_what_a_living_process_writes_stays",),
    ),
    Bug(
        "the manifest that says whose a file is goes as left over",
        "I11",
        "checkpoint/leftovers.py",
        "_is_left_over",
        'match is None or match["name"].endswith(names.MANIFEST_SUFFIX)',
        "match is None",
        (f"{_LEFTOVERS}::test_what_is_not_of_these_saves_stays",),
    ),
)
