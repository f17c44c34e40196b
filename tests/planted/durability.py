"""Bugs in what must survive: the store's file, its rows, its lock, and the files of checkpoints."""

from __future__ import annotations

from tests.planted.bug import Bug

STORE = (
    Bug(
        "synchronous=NORMAL",
        "I5",
        "store/connections.py",
        'connection.execute("PRAGMA wal_autocheckpoint=0")',
        'connection.executescript("PRAGMA wal_autocheckpoint=0; PRAGMA synchronous=NORMAL")',
        ("tests/store/test_files.py::test_durability_is_asserted_on_the_connection",),
    ),
    Bug(
        "a forked child closes its parent's store",
        "I5",
        "store/repository.py",
        "    if os.getpid() != owner_pid:\n        return\n",
        "",
        (
            "tests/store/test_forked_children.py::test_a_child_that_is_forked_in_the_middle_of_a_write_ends_and_leaves_the_store_alone",
        ),
    ),
    Bug(
        "nobody reads back whether the log can be had",
        "I5",
        "store/connections.py",
        'if (mode, level) != ("wal", 2):',
        "if level != 2:",
        ("tests/store/test_files.py::test_a_file_system_that_cannot_keep_a_log_is_refused",),
    ),
    Bug(
        "a new store gets its name before its bytes are durable",
        "I5",
        "store/engine.py",
        "os.fsync(descriptor)\n        draft.rename(path)",
        "draft.rename(path)",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "the name of a new store is not made durable",
        "I5",
        "store/engine.py",
        "draft.rename(path)\n        fsync_directory(path.parent)",
        "draft.rename(path)",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "the name of the -wal is not made durable",
        "I5",
        "store/engine.py",
        "self.commits.settle()\n                fsync_directory(path.parent)",
        "self.commits.settle()",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "the recovery path itself is not made durable",
        "I5",
        "store/paths.py",
        "path.mkdir(mode=0o700, exist_ok=True)\n            fsync_directory(path.parent)",
        "path.mkdir(mode=0o700, exist_ok=True)",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "an open store is not marked dirty",
        "I19",
        "store/engine.py",
        "self._mark(dirty=True)",
        "self._mark(dirty=False)",
        ("tests/store/test_files.py::test_a_missing_wal_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "a missing -wal is not asked for",
        "I19",
        "store/engine.py",
        "if not accept_without_wal and _is_dirty(path):",
        "if not accept_without_wal and not _is_dirty(path):",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "a file whose write failed is written once more at close",
        "I5",
        "store/engine.py",
        "self._failed = True\n\n    def close",
        "self._marked = True\n\n    def close",
        ("tests/store/test_failing_disks.py::test_a_value_that_cannot_be_stored_is_an_error_of_the_write",),
    ),
    Bug(
        "a failed write does not end the file's use",
        "I5",
        "store/repository.py",
        "except StoreError:\n                self._database.fail()",
        "except StoreError:\n                self._pages_since_fold = 0",
        ("tests/store/test_failing_disks.py::test_a_value_that_cannot_be_stored_is_an_error_of_the_write",),
    ),
    Bug(
        "each table of a batch is a transaction of its own",
        "I6",
        "store/repository.py",
        "with translated(self._path, reading=False), connection.begin():\n                for kind, batch in rows.items():\n",
        "for kind, batch in rows.items():\n                with translated(self._path, reading=False), connection.begin():\n",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "a row that is there is never replaced",
        "I5",
        "store/rows.py",
        "write.on_conflict_do_update(index_elements=key, set_=rest)",
        "write.on_conflict_do_nothing(index_elements=key)",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "the digest of a row is not compared",
        "I19",
        "store/rows.py",
        "if _digest(shape, values, wall_ms) != digest:",
        "if len(_digest(shape, values, wall_ms)) != len(digest):",
        ("tests/store/test_files.py::test_a_file_that_is_not_right_is_refused_and_left_as_it_is",),
    ),
    Bug(
        "the digest of a row leaves out its table",
        "I19",
        "store/rows.py",
        "[str(shape.table.name), wall_ms, *values]",
        "[wall_ms, *values]",
        (
            "tests/store/test_store_rows.py::test_a_row_that_was_moved_to_another_table_does_not_match_its_digest",
        ),
    ),
    Bug(
        "a store of a newer release is opened",
        "I19",
        "store/migrations/__init__.py",
        "if found[0] not in revisions:",
        "if not found[0]:",
        ("tests/store/test_files.py::test_a_file_that_is_not_right_is_refused_and_left_as_it_is",),
    ),
    Bug(
        "the file of another node is opened",
        "I19",
        "store/engine.py",
        "if found != owner:",
        "if not found:",
        ("tests/store/test_files.py::test_a_worker_has_a_file_of_its_own",),
    ),
    Bug(
        "another program's database is taken for ours",
        "I19",
        "store/paths.py",
        '"big") != APPLICATION_ID:',
        '"big") < 0:',
        ("tests/store/test_files.py::test_a_file_that_is_not_right_is_refused_and_left_as_it_is",),
    ),
    Bug(
        "the lock is not taken",
        "I7",
        "store/lock.py",
        "self._lock.acquire()",
        "assert not self._lock.is_locked",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "an owner whose lock file was replaced writes on",
        "I7",
        "store/lock.py",
        'reason = "" if self._found() == self._identity else',
        'reason = "" if self._found() is not None else',
        ("tests/store/test_store_names.py::test_an_owner_whose_lock_file_was_replaced_writes_no_more",),
    ),
    Bug(
        "a file that lost the end of its log passes for an older one",
        "I19",
        "store/write_count.py",
        "known > self._count and not accept_fewer",
        "known > self._count + 1_000 and not accept_fewer",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "answers leave although the commit failed",
        "I5",
        "store/writer.py",
        "for record in records]):\n                return",
        "for record in records]):\n                self._failed = True",
        (
            "tests/store/test_store_writer.py::test_a_writer_closed_on_a_full_disk_says_that_not_all_was_written",
        ),
    ),
    Bug(
        "answers leave before the commit",
        "I5",
        "store/writer.py",
        "while batches := self._next():\n",
        "while batches := [(records, self._on_durable(ticket)) for records, ticket in self._next()]:\n",
        ("tests/store/test_writer.py::test_an_answer_waits_for_its_write",),
    ),
    Bug(
        "a disk that is full once ends the writer",
        "I14",
        "store/writer.py",
        "if self._changed.wait_for(lambda: self._given_up, RETRY_S):",
        "if not self._changed.wait_for(lambda: self._given_up, RETRY_S):",
        (
            "tests/store/test_store_writer.py::test_a_full_disk_is_reported_once_per_spell_and_the_answer_waits",
        ),
    ),
    Bug(
        "the writer's queue has no bound",
        "I17",
        "store/writer.py",
        "return self._waiting >= QUEUE_MAX",
        "return self._waiting < 0",
        ("tests/store/test_store_writer.py::test_a_queue_says_when_it_is_full_and_takes_what_is_under_way",),
    ),
)

CHECKPOINTS = (
    Bug(
        "no fsync of the file before its rename",
        "I6",
        "checkpoint/files.py",
        "os.fsync(self._descriptor)",
        "os.fstat(self._descriptor)",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_is_durable_before_its_name_and_its_manifest_comes_last",
        ),
    ),
    Bug(
        "no fsync of the directory after the rename",
        "I5",
        "checkpoint/files.py",
        "os.fsync(self._directory)",
        "os.fstat(self._directory)",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_is_durable_before_its_name_and_its_manifest_comes_last",
        ),
    ),
    Bug(
        "a new directory of checkpoints is not made durable",
        "I5",
        "checkpoint/files.py",
        "os.fsync(parent)",
        "os.fstat(parent)",
        (
            "tests/checkpoint/test_new_directories.py::test_every_new_directory_is_made_durable_in_the_one_above",
        ),
    ),
    Bug(
        "the manifest gets its name before the file",
        "I8",
        "checkpoint/publish.py",
        "for file in staged:\n            check_place(path, place_is_ours)\n            file.rename()\n"
        "        check_place(path, place_is_ours)\n        beside.rename()",
        "check_place(path, place_is_ours)\n        beside.rename()\n"
        "        for file in staged:\n            check_place(path, place_is_ours)\n            file.rename()",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_is_durable_before_its_name_and_its_manifest_comes_last",
        ),
    ),
    Bug(
        "an old manifest stands beside new bytes",
        "I8",
        "checkpoint/name_conflict.py",
        "os.unlink(beside.name, dir_fd=opened)",
        "os.stat(beside.name, dir_fd=opened)",
        (
            "tests/checkpoint/test_publish.py::test_a_step_saved_again_loses_its_old_manifest_before_its_old_bytes",
        ),
    ),
    Bug(
        "the end of an old manifest is not made durable",
        "I8",
        "checkpoint/name_conflict.py",
        "return\n        os.fsync(opened)\n        for file",
        "return\n        os.fstat(opened)\n        for file",
        (
            "tests/checkpoint/test_publish.py::test_a_step_saved_again_loses_its_old_manifest_before_its_old_bytes",
        ),
    ),
    Bug(
        "a checkpoint of another rank is written over",
        "I11",
        "checkpoint/name_conflict.py",
        "old.rank != manifest.rank and old.generation >= manifest.generation",
        "old.rank < 0",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_of_another_job_run_or_rank_is_never_written_over",
        ),
    ),
    Bug(
        "a failed write is forgotten",
        "I6",
        "checkpoint/digesting_writer.py",
        "self.failure = error\n",
        "self.failure = None\n",
        (
            "tests/checkpoint/test_publish.py::test_a_disk_that_takes_no_more_of_torch_save_is_a_write_error_with_its_cause",
        ),
    ),
    Bug(
        "the digest of a checkpoint is not compared",
        "I8",
        "checkpoint/verify.py",
        "if found != one.digest:",
        "if len(found) != len(one.digest):",
        ("tests/checkpoint/test_verify.py::test_three_hundred_random_single_bit_flips_are_all_noticed",),
    ),
    Bug(
        "a file longer than its manifest says is taken",
        "I8",
        "checkpoint/verify.py",
        "if found != listed.file_bytes:",
        "if found < listed.file_bytes:",
        ("tests/checkpoint/test_verify.py::test_a_longer_file_is_noticed",),
    ),
    Bug(
        "the seal of a manifest is not compared",
        "I19",
        "checkpoint/manifest.py",
        "if hashlib.sha256(body).hexdigest() != sealed.manifest_sha256:",
        "if len(hashlib.sha256(body).hexdigest()) != len(sealed.manifest_sha256):",
        ("tests/checkpoint/test_manifest.py::test_every_changed_bit_is_noticed",),
    ),
    Bug(
        "a checkpoint of another run is found",
        "I8",
        "checkpoint/contribution.py",
        "if (manifest.job, manifest.run) != (job, run):",
        "if manifest.job != job:",
        ("tests/checkpoint/test_catalogue.py::test_a_scan_takes_only_the_job_run_and_rank_asked_for",),
    ),
)

DURABILITY = STORE + CHECKPOINTS
