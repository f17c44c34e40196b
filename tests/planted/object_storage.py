"""Bugs in object storage: what counts there, what may go, and what a rank brings back."""

from __future__ import annotations

from tests.planted.bug import Bug

_ORDERS = "tests/core/test_uploads.py"
_COMMITS = "tests/objects/test_step_commits.py"
_LAST_UPLOADS = "tests/objects/test_last_uploads.py"
_UPLOADS = "tests/objects/test_uploads.py"
_ROLLED_BACK = "tests/objects/test_rolled_back_steps.py"

OBJECT_STORAGE = (
    Bug(
        "a step counts in object storage before every rank has added its part",
        "I8",
        "objects/commits.py",
        "send",
        "len(whole) < manifest.world_size",
        "not whole",
        (f"{_COMMITS}::test_a_step_counts_when_every_rank_has_added_its_part[file]",),
    ),
    Bug(
        "an object that is to be created once is written over",
        "I8",
        "objects/store.py",
        "ObjectStore._create",
        "file_systems.write_new(Path(path), content)",
        "self._files.pipe_file(path, content)",
        ("tests/report/test_doctor.py::test_the_checkpoint_store_must_create_an_object_only_once",),
    ),
    Bug(
        "a step that was rolled back is the newest in object storage",
        "I9",
        "objects/commits.py",
        "steps",
        "sorted((At(int(match[1]), int(match[2])) for match in found if match), reverse=True)",
        "sorted((At(int(match[1]), int(match[2])) for match in found if match), key=lambda at: at.step, reverse=True)",
        (f"{_UPLOADS}::test_what_was_rolled_back_is_older_than_what_came_after",),
    ),
    Bug(
        "a rank that has lost its disk brings a step that was rolled back",
        "I9",
        "worker/object_storage.py",
        "ObjectStorage._leads_here",
        "is_in_lineage(at.generation, at.step, began)",
        "True",
        (f"{_ROLLED_BACK}::test_newest_step_that_no_plan_has_rolled_back_is_brought[began2-110]",),
    ),
    Bug(
        "steps that were rolled back push those that count out of object storage",
        "I11",
        "objects/commits.py",
        "retain",
        "[at for at in committed if counts(at)]",
        "list(committed)",
        (f"{_ROLLED_BACK}::test_rolled_back_steps_take_no_place_of_those_that_are_kept",),
    ),
    Bug(
        "the next step is sent before all ranks have sent theirs",
        "I14",
        "core/scheduler/copy_state.py",
        "Uploading.note_sent",
        "not self.pending",
        "True",
        (f"{_ORDERS}::test_the_newest_that_waits_follows_when_each_rank_has_sent_its_part",),
    ),
    Bug(
        "a rank that has lost a step keeps all the others waiting",
        "I14",
        "core/scheduler/copy_state.py",
        "Uploading.note_sent",
        "not is_there",
        "False",
        (f"{_ORDERS}::test_a_part_that_is_gone_keeps_nobody_waiting",),
    ),
    Bug(
        "the file of a step that is to be sent goes before it is",
        "I14",
        "objects/uploads.py",
        "Uploads.order",
        "self.pin_again()",
        "",
        (f"{_UPLOADS}::test_what_the_storage_has_or_gets_stays_on_the_disk",),
    ),
    Bug(
        "retention in object storage takes one step too many",
        "I11",
        "objects/commits.py",
        "retain",
        "name < oldest.name",
        "name <= oldest.name",
        (f"{_UPLOADS}::test_the_newest_committed_steps_stay",),
    ),
    Bug(
        "the end of a process waits for storage that fails",
        "I14",
        "objects/uploads.py",
        "Uploads.finish",
        "self._unsent is None or self._failures >= given_up",
        "self._unsent is None",
        (f"{_UPLOADS}::test_the_end_of_the_process_does_not_wait_for_storage_that_fails",),
        hangs=True,
    ),
    Bug(
        "the end of a script does not wait for its last upload",
        "I11",
        "training/init.py",
        "_Script._finish",
        "last_uploads.await_sent(loop.service, lambda: loop.stop_signals.has_held_back)",
        "",
        (f"{_LAST_UPLOADS}::test_a_job_waits_for_its_last_upload[init spawn]",),
    ),
    Bug(
        "a last upload that has failed is success",
        "I11",
        "training/last_uploads.py",
        "leave_unsent",
        "process_end.end_by(error.exit_code, str(error))",
        "True",
        (f"{_LAST_UPLOADS}::test_a_last_upload_that_fails_is_the_exit_code_and_starts_nothing_again[run]",),
    ),
    Bug(
        "steps that object storage was too slow for are not said",
        "I14",
        "core/scheduler/checkpoints/uploading.py",
        "committed",
        "not skipped or not uploading.due",
        "True",
        (f"{_ORDERS}::test_each_step_that_is_skipped_is_said_with_the_reason",),
    ),
)
