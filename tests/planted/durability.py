"""Bugs in what must survive: the store's file, its rows, its lock, and the files of checkpoints."""

from __future__ import annotations

from tests.planted.bug import Bug

STORE = (
    Bug(
        "synchronous=NORMAL",
        "I5",
        "store/connections.py",
        "harden",
        'connection.execute("PRAGMA wal_autocheckpoint=0")',
        'connection.executescript("PRAGMA wal_autocheckpoint=0; PRAGMA synchronous=NORMAL")',
        ("tests/store/test_files.py::test_durability_is_asserted_on_the_connection",),
    ),
    Bug(
        "a forked child closes its parent's store",
        "I5",
        "store/repository.py",
        "_end",
        "if os.getpid() != owner_pid:\n    return",
        "",
        (
            "tests/store/test_forked_children.py::test_a_child_that_is_forked_ends_at_once_and_leaves_the_store_alone",
        ),
    ),
    Bug(
        "nobody reads back whether the log can be had",
        "I5",
        "store/connections.py",
        "harden",
        '(mode, level) != ("wal", 2)',
        "level != 2",
        ("tests/store/test_files.py::test_a_file_system_that_cannot_keep_a_log_is_refused",),
    ),
    Bug(
        "a new store gets its name before its bytes are durable",
        "I5",
        "store/engine.py",
        "_create",
        "os.fsync(descriptor)",
        "",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "the name of a new store is not made durable",
        "I5",
        "store/engine.py",
        "_create",
        "fsync_directory(path.parent)",
        "",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "the name of the -wal is not made durable",
        "I5",
        "store/engine.py",
        "Database.__init__",
        "fsync_directory(path.parent)",
        "",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "the recovery path itself is not made durable",
        "I5",
        "store/paths.py",
        "prepare_directory",
        "fsync_directory(path.parent)",
        "",
        (
            "tests/store/test_store_names.py::test_a_new_store_is_durable_before_its_name_and_its_name_before_its_first_row",
        ),
    ),
    Bug(
        "an open store is not marked dirty",
        "I19",
        "store/engine.py",
        "Database.__init__",
        "self._mark(dirty=True)",
        "self._mark(dirty=False)",
        ("tests/store/test_files.py::test_a_missing_wal_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "a missing -wal is not asked for",
        "I19",
        "store/engine.py",
        "Database.__init__",
        "not accept_without_wal and _is_dirty(path)",
        "not accept_without_wal and not _is_dirty(path)",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "a file whose write failed is written once more at close",
        "I5",
        "store/engine.py",
        "Database.fail",
        "self._failed = True",
        "self._marked = True",
        ("tests/store/test_failing_disks.py::test_a_value_that_cannot_be_stored_is_an_error_of_the_write",),
    ),
    Bug(
        "a failed write does not end the file's use",
        "I5",
        "store/repository.py",
        "_Store.apply",
        "self._database.fail()",
        "self._pages_since_fold = 0",
        ("tests/store/test_failing_disks.py::test_a_value_that_cannot_be_stored_is_an_error_of_the_write",),
    ),
    Bug(
        "each table of a batch is a transaction of its own",
        "I6",
        "store/repository.py",
        "_Store._write",
        "with translated(self._path, reading=False), connection.begin():\n"
        "    for kind, batch in rows.items():\n"
        "        connection.execute(SHAPES[kind].write, batch)\n"
        "    self._database.commits.add(connection)\n"
        "    note_write_time(connection, self._boot)\n    if self._scheduler is not None:\n"
        "        note_scheduler_address(connection, self._scheduler)\n    thinned = self._thin(connection, rows, wall_ms)",
        "for kind, batch in rows.items():\n"
        "    with translated(self._path, reading=False), connection.begin():\n"
        "        connection.execute(SHAPES[kind].write, batch)\n"
        "    self._database.commits.add(connection)\n"
        "    note_write_time(connection, self._boot)\n    if self._scheduler is not None:\n"
        "        note_scheduler_address(connection, self._scheduler)\n    thinned = self._thin(connection, rows, wall_ms)",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "a row that is there is never replaced",
        "I5",
        "store/rows.py",
        "_shape",
        "write.on_conflict_do_update(index_elements=key, set_=rest)",
        "write.on_conflict_do_nothing(index_elements=key)",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "the digest of a row is not compared",
        "I19",
        "store/rows.py",
        "record_of",
        "_digest(shape, values, wall_ms) != digest",
        "len(_digest(shape, values, wall_ms)) != len(digest)",
        ("tests/store/test_files.py::test_a_file_that_is_not_right_is_refused_and_left_as_it_is",),
    ),
    Bug(
        "the digest of a row leaves out its table",
        "I19",
        "store/rows.py",
        "_digest",
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
        "migrate",
        "found[0] not in revisions",
        "not found[0]",
        ("tests/store/test_files.py::test_a_file_that_is_not_right_is_refused_and_left_as_it_is",),
    ),
    Bug(
        "the file of another node is opened",
        "I19",
        "store/engine.py",
        "check_file",
        "if found != owner:",
        "if not found:",
        ("tests/store/test_files.py::test_a_worker_has_a_file_of_its_own",),
    ),
    Bug(
        "another program's database is taken for ours",
        "I19",
        "store/paths.py",
        "_check_header",
        'int.from_bytes(header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4], "big") != APPLICATION_ID',
        'int.from_bytes(header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4], "big") < 0',
        ("tests/store/test_files.py::test_a_file_that_is_not_right_is_refused_and_left_as_it_is",),
    ),
    Bug(
        "the lock is not taken",
        "I7",
        "store/lock.py",
        "OwnerLock.__init__",
        "self._lock.acquire()",
        "assert not self._lock.is_locked",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "an owner whose lock file was replaced writes on",
        "I7",
        "store/lock.py",
        "OwnerLock.assert_held",
        "self._found() == self._identity",
        "self._found() is not None",
        ("tests/store/test_store_names.py::test_an_owner_whose_lock_file_was_replaced_writes_no_more",),
    ),
    Bug(
        "a file that lost the end of its log passes for an older one",
        "I19",
        "store/write_count.py",
        "Commits.check",
        "known > self._count",
        "known > self._count + 1_000",
        ("tests/store/test_commits.py::test_a_damaged_end_of_the_log_is_noticed_and_can_be_accepted_once",),
    ),
    Bug(
        "answers leave although the commit failed",
        "I5",
        "store/writer.py",
        "Writer._run",
        "if not self._write([record for records, _ in batches for record in records]):\n    return",
        "if not self._write([record for records, _ in batches for record in records]):\n"
        "    self._failed = True",
        (
            "tests/store/test_store_writer.py::test_a_writer_closed_on_a_full_disk_says_that_not_all_was_written",
        ),
    ),
    Bug(
        "answers leave before the commit",
        "I5",
        "store/writer.py",
        "Writer._run",
        "batches := self._next()",
        "batches := [(records, self._on_durable(ticket)) for records, ticket in self._next()]",
        ("tests/store/test_writer.py::test_an_answer_waits_for_its_write",),
    ),
    Bug(
        "a disk that is full once ends the writer",
        "I14",
        "store/writer.py",
        "Writer._write",
        "self._changed.wait_for(lambda: self._given_up, RETRY_S)",
        "not self._changed.wait_for(lambda: self._given_up, RETRY_S)",
        (
            "tests/store/test_store_writer.py::test_a_full_disk_is_reported_once_per_spell_and_the_answer_waits",
        ),
        hangs=True,
    ),
    Bug(
        "the writer's queue has no bound",
        "I17",
        "store/writer.py",
        "Writer.crowded",
        "self._waiting >= QUEUE_MAX",
        "self._waiting < 0",
        ("tests/store/test_store_writer.py::test_a_queue_says_when_it_is_full_and_takes_what_is_under_way",),
    ),
)

CHECKPOINTS = (
    Bug(
        "no fsync of the file before its rename",
        "I6",
        "checkpoint/durable_files.py",
        "TemporaryFile.settle",
        "os.fsync(self._descriptor)",
        "os.fstat(self._descriptor)",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_is_durable_before_its_name_and_its_manifest_comes_last",
        ),
    ),
    Bug(
        "no fsync of the directory after the rename",
        "I5",
        "checkpoint/durable_files.py",
        "TemporaryFile.rename",
        "sync_names(self._directory)",
        "os.fstat(self._directory)",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_is_durable_before_its_name_and_its_manifest_comes_last",
        ),
    ),
    Bug(
        "a new directory of checkpoints is not made durable",
        "I5",
        "checkpoint/durable_files.py",
        "ensure_directory",
        "sync_directory(directory.parent)",
        "",
        (
            "tests/checkpoint/test_new_directories.py::test_every_new_directory_is_made_durable_in_the_one_above",
        ),
    ),
    Bug(
        "the manifest gets its name before the file",
        "I8",
        "checkpoint/publish.py",
        "give_names",
        "for file in staged:\n"
        "    check_place(path, still_owns_rank)\n"
        "    file.rename()\n"
        "check_place(path, still_owns_rank)\n"
        "beside.rename()",
        "check_place(path, still_owns_rank)\n"
        "beside.rename()\n"
        "for file in staged:\n"
        "    check_place(path, still_owns_rank)\n"
        "    file.rename()",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_is_durable_before_its_name_and_its_manifest_comes_last",
        ),
    ),
    Bug(
        "an old manifest stands beside new bytes",
        "I8",
        "checkpoint/name_conflict.py",
        "resolve",
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
        "resolve",
        "sync_names(opened)\nfor file in conflict.surplus:\n    os.unlink(file.name, dir_fd=opened)",
        "os.fstat(opened)\nfor file in conflict.surplus:\n    os.unlink(file.name, dir_fd=opened)",
        (
            "tests/checkpoint/test_publish.py::test_a_step_saved_again_loses_its_old_manifest_before_its_old_bytes",
        ),
    ),
    Bug(
        "a checkpoint of another rank is written over",
        "I11",
        "checkpoint/name_conflict.py",
        "find",
        "old.rank != manifest.rank and old.generation >= manifest.generation",
        "old.rank < 0",
        (
            "tests/checkpoint/test_publish.py::test_a_checkpoint_of_another_job_run_or_rank_is_never_written_over",
        ),
    ),
    Bug(
        "a failed write is forgotten",
        "I6",
        "checkpoint/durable_files.py",
        "DigestingWriter._write_out",
        "self.failure = error",
        "self.failure = None",
        (
            "tests/checkpoint/test_publish.py::test_a_disk_that_takes_no_more_of_torch_save_is_a_write_error_with_its_cause",
        ),
    ),
    Bug(
        "the digest of a checkpoint is not compared",
        "I8",
        "checkpoint/verify.py",
        "check",
        "found != listed.digest",
        "len(found) != len(listed.digest)",
        ("tests/checkpoint/test_verify.py::test_three_hundred_random_single_bit_flips_are_all_noticed",),
    ),
    Bug(
        "a file longer than its manifest says is taken",
        "I8",
        "checkpoint/verify.py",
        "_opened",
        "found != listed.file_bytes",
        "found < listed.file_bytes",
        ("tests/checkpoint/test_verify.py::test_a_longer_file_is_noticed",),
    ),
    Bug(
        "the seal of a manifest is not compared",
        "I19",
        "checkpoint/manifest.py",
        "_unsealed",
        "hashlib.sha256(body).hexdigest() != sealed.manifest_sha256",
        "len(hashlib.sha256(body).hexdigest()) != len(sealed.manifest_sha256)",
        ("tests/checkpoint/test_manifest.py::test_every_changed_bit_is_noticed",),
    ),
    Bug(
        "a checkpoint of another run is found",
        "I8",
        "checkpoint/contribution.py",
        "not_of",
        "(manifest.job, manifest.run) != (job, run)",
        "manifest.job != job",
        ("tests/checkpoint/test_catalogue.py::test_a_scan_takes_only_the_job_run_and_rank_asked_for",),
    ),
)

DURABILITY = STORE + CHECKPOINTS
