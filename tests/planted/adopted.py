"""Bugs of folders that a framework wrote: what is listed, what is believed, what is removed."""

from __future__ import annotations

from tests.planted.bug import Bug

_FOLDERS = "tests/checkpoint/test_folders.py"
_TRAINING = "tests/training/test_adopted_folders.py"

ADOPTED: tuple[Bug, ...] = (
    Bug(
        "a folder that is still being written is taken",
        "I8",
        "checkpoint/adopt.py",
        "adopt_folder",
        "before != _ours(folder, rank, shared_by)",
        "not before",
        (f"{_FOLDERS}::test_a_folder_that_grows_while_it_is_read_is_not_taken",),
    ),
    Bug(
        "a link in a folder is passed over",
        "I8",
        "checkpoint/framework_folders.py",
        "_files_below",
        'raise OSError(errno.EINVAL, f"{name} in it is not a plain file")',
        "continue",
        (f"{_FOLDERS}::test_what_holds_anything_but_plain_files_gets_no_manifest",),
    ),
    Bug(
        "a folder's name ends at its first dot from behind",
        "I8",
        "checkpoint/names.py",
        "manifest_path",
        "path.name if is_folder(path.name) else Path(path.name).stem",
        "Path(path.name).stem",
        (f"{_FOLDERS}::test_all_that_is_in_it_is_listed_found_and_verified",),
    ),
    Bug(
        "nobody answers for another rank's files",
        "I8",
        "checkpoint/framework_folders.py",
        "answers_for",
        "number if number < world_size else 0",
        "number",
        (f"{_FOLDERS}::test_a_file_belongs_to_exactly_one_rank",),
    ),
    Bug(
        "a file of the user is written over by a manifest",
        "I19",
        "checkpoint/adopt.py",
        "adopt_folder",
        "_check_free(beside, manifest)",
        "",
        (f"{_FOLDERS}::test_a_file_of_the_user_under_the_manifests_name_stays",),
    ),
    Bug(
        "the first rank removes what the others still need",
        "I11",
        "checkpoint/retention.py",
        "_remove_folder",
        "[file for file in files if file not in needed]",
        "files",
        (f"{_FOLDERS}::test_the_last_rank_leaves_no_folder",),
    ),
    Bug(
        "another rank's part of another history is offered",
        "I8",
        "training/folder_load.py",
        "_checked",
        '(("rank", manifest.rank, rank), ("job", manifest.job, own.job), ("run", manifest.run, own.run), ("step", manifest.step, own.step), ("generation", manifest.generation, own.generation), ("world_size", manifest.world_size, own.world_size))',
        '(("rank", manifest.rank, rank), ("job", manifest.job, own.job), ("run", manifest.run, own.run), ("step", manifest.step, own.step), ("world_size", manifest.world_size, own.world_size))',
        (f"{_TRAINING}::test_a_part_of_another_history_is_refused_by_name",),
    ),
    Bug(
        "a folder that is finished late is taken for one of the step of now",
        "I8",
        "training/adopted_folders.py",
        "AdoptFolders._look",
        "self._applied.get(self._step_of(name))",
        "self._applied[max(self._applied)]",
        (f"{_TRAINING}::test_a_folder_is_taken_when_it_is_finished_as_of_its_own_step",),
    ),
    Bug(
        "what lay there before is taken at the first step",
        "I8",
        "training/adopted_folders.py",
        "AdoptFolders.on_begin",
        "self._finished()",
        "{}",
        (f"{_TRAINING}::test_what_lay_there_before_is_taken_only_when_it_is_written_again",),
    ),
    Bug(
        "a folder is ordered from holders that refuse it",
        "I28",
        "core/scheduler/checkpoints/copying.py",
        "_is_folder",
        "wanted is not None and wanted.is_folder",
        "False",
        ("tests/core/test_copies.py::test_folders_are_not_copied_and_an_event_says_so_once",),
    ),
)
