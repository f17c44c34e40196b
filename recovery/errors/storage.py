"""What is wrong with files: the recovery path, stores, checkpoints."""

from __future__ import annotations

from typing import ClassVar

from recovery.errors.base import Cause, RecoveryError, Row

# --- recovery path -----------------------------------------------------------------------------------------------------


class RecoveryPathError(RecoveryError):
    """MS_RECOVERY_PATH cannot be used: not a directory, not writable, not ours."""

    rows = (
        Row("RECOVERY_PATH", 24, Cause.UNKNOWN,
            "MS_RECOVERY_PATH={path!r}: {reason}. {next_step}"),
    )  # fmt: skip


# --- store -------------------------------------------------------------------------------------------------------------


class StoreError(RecoveryError):
    """The persisted state cannot be used as it is. Nothing was changed or deleted."""

    rows: ClassVar[tuple[Row, ...]] = (
        Row("STORE_NOT_OURS", 31, Cause.PERMANENT,
            "{path} is not a recovery store: {reason}. It was left as it is; choose another MS_RECOVERY_PATH.",
            "The file is a database of something else."),
        Row("STORE_CORRUPT", 32, Cause.PERMANENT,
            "{path} is damaged: {reason}. It was left as it is; put a good copy in its place, or move it away to begin a new job.",
            "The file, or a row of it, fails its checks."),
        Row("STORE_WAL_MISSING", 34, Cause.PERMANENT,
            "{path} was not closed cleanly and its companion {wal} is missing, so the newest acknowledged rows may be missing too. "
            "Bring the -wal file back; if another SQLite tool folded it in, set MS_STORE_WITHOUT_WAL=1 once.",
            "The main file records that a -wal must be beside it, and there is none: acknowledged rows would be missing."),
        Row("STORE_ROWS_MISSING", 37, Cause.PERMANENT,
            "{path} holds {found} of {known} acknowledged writes: its -wal is damaged, or an older copy was put in its place. It was left as it"
            " is; bring the right files back, or set MS_STORE_WITHOUT_WAL=1 once to go on without the missing ones.",
            "The file holds fewer writes than were acknowledged: its -wal was cut or damaged, or an older copy took its place."),
        Row("STORE_WRITE", 36, Cause.TEMPORARY,
            "{path}: a write failed ({reason}) and is not tried again on the same file. Check the disk, then start this process again.",
            "A write or fsync failed for another reason than space. The process must end and start again from what is on disk."),
        Row("STORE_REFUSED", 28, Cause.TEMPORARY,
            "{path}: the system refuses what is to be done with it ({reason}). It was left as it is, and nothing shows that it is damaged. {next_step}",
            "A limit of the process or of the host, a file system that is read-only, or a disk that cannot be read."),
        Row("STORE_GONE", 38, Cause.TEMPORARY,
            "{path}: {file} {reason}, while this process had it open, so nothing more is written. Put the files back if they were moved. A scheduler ends, "
            "workers that no launcher ends train on; its next start shows what is left. A worker goes on without its own store.",
            "The file of an open store is no longer at its name. Its owner ends at once: nothing more is acknowledged."),
    )  # fmt: skip


class StoreLockedError(StoreError):
    """Another living process owns this file."""

    rows = (
        Row("STORE_LOCKED", 30, Cause.UNKNOWN,
            "{path} is in use by pid {pid} on {host} since {since}. Stop that process, or choose another MS_RECOVERY_PATH."),
    )  # fmt: skip
    log_event = "event=store_locked"


class StoreVersionError(StoreError):
    """The file was written by a newer release."""

    rows = (
        Row("STORE_VERSION", 33, Cause.PERMANENT,
            "{path} has schema {found}, this release knows up to {known}. Install the release that wrote it, or choose another MS_RECOVERY_PATH."),
    )  # fmt: skip


class StoreWaitError(StoreError):
    """Nothing of a write is in the file, and it is tried again until it is."""

    rows: ClassVar[tuple[Row, ...]] = ()
    log_event: ClassVar[str]
    """How the log line of it begins."""


class StoreFullError(StoreWaitError):
    """No space left for a write, or this user's quota is used up. The batch is kept and tried again."""

    rows = (
        Row("STORE_FULL", 35, Cause.TEMPORARY,
            "{path}: no space left for a write ({reason}). Training goes on, answers wait; free space on that file system."),
    )  # fmt: skip
    log_event = "event=store_full"


class StoreBusyError(StoreWaitError):
    """Another program (a backup, an SQLite shell) has kept the file locked for seconds. The batch is kept and tried again."""

    rows = (
        Row("STORE_BUSY", 29, Cause.TEMPORARY,
            "{path}: another program keeps it locked, {reason} by now. Training goes on, answers wait; end that program, or let it read a copy."),
    )  # fmt: skip
    log_event = "event=store_busy"


class StoreLostError(StoreError):
    """There is a job, and its scheduler's store is not there: starting again from nothing would throw away what was trained."""

    rows = (
        Row("STORE_LOST", 39, Cause.PERMANENT,
            "the scheduler's store in {path} is lost, but its job is not: {found}. Nothing was changed, and workers that no launcher ends"
            " train on. Put scheduler.db back, or rebuild it (recovery rebuild {path}, or MS_REBUILD_STORE=1 in the scheduler;"
            " where the workers' stores are gone too, recovery rebuild {path} --checkpoints DIR). For a new job choose another MS_RECOVERY_PATH and"
            " another directory of checkpoints, or archive this one (recovery reset {path})."),
    )  # fmt: skip


# --- checkpoints -------------------------------------------------------------------------------------------------------


class CheckpointError(RecoveryError):
    """A checkpoint cannot be written or used."""

    rows: ClassVar[tuple[Row, ...]] = (
        Row("CHECKPOINT_MISSING", 42, Cause.TEMPORARY,
            "{path} is missing. The plan goes back to an older step.",
            "A file of the plan is not there.",
            consequence=". The plan goes back to an older step."),
        Row("CHECKPOINT_NOT_SHARED", 45, Cause.PERMANENT,
            "directory={directory!r} with layout='shared': rank {rank} has not seen what the ranks {unseen} write there, in {seconds} s. Name a "
            "directory that all hosts mount, the same on all ranks, or use layout='rank' with one directory per rank.",
            "Checkpoints were to be spread over the ranks, and the ranks do not see one directory."),
        Row("CHECKPOINTS_UNKNOWN", 47, Cause.PERMANENT,
            "{directory} holds {count} checkpoints of job {other} up to step {step}, which MS_RECOVERY_PATH={path} does not know, and job {job} would "
            "begin at step 0 beside them. To go on with job {other}, run `recovery rebuild {path} --checkpoints DIR`, where DIR holds those of all ranks, "
            "and start the same line again. For a new job choose another directory or prefix, or move these files away.",
            "The store of a job is lost with those of its workers, or another MS_RECOVERY_PATH was named, and its checkpoints are there."),
        Row("SAVES_FAILED", 46, Cause.PERMANENT,
            "on this rank {which} failed: {reason} Correct that and start the job again: it goes on from the newest checkpoint that all ranks hold.",
            "So many saves in a row failed that training on would be for nothing, or the last one of the training did."),
        Row("UPLOAD_NOT_FINISHED", 48, Cause.PERMANENT,
            "training is done, and its last checkpoint (step {step}) is not in {url}: {reason} This rank's part of it is {path}: copy it with its .json "
            "to a safe place before this disk goes. Start nothing again for it: training has ended.",
            "The end of a finished job waited for its last upload to MS_CHECKPOINT_STORE, and that failed, took too long, or a signal ended the wait."),
    )  # fmt: skip


class CheckpointDigestError(CheckpointError):
    """A file does not match its manifest."""

    rows = (
        Row("CHECKPOINT_DIGEST", 40, Cause.TEMPORARY,
            "{path} does not match its manifest ({field} {expected} expected, {found} found). Kept as it is; the plan goes back to an older step.",
            consequence="; the plan goes back to an older step."),
    )  # fmt: skip


class CheckpointManifestError(CheckpointError):
    """A manifest cannot be read or is of another job."""

    rows = (
        Row("CHECKPOINT_MANIFEST", 41, Cause.TEMPORARY,
            "{path}: {reason}. Kept as it is; the plan goes back to an older step.",
            consequence=". Kept as it is; the plan goes back to an older step."),
    )  # fmt: skip


class CheckpointWriteError(CheckpointError):
    """A save failed; the step counts as not saved and training goes on."""

    rows = (
        Row("CHECKPOINT_WRITE", 43, Cause.TEMPORARY,
            "{path} was not saved ({reason}). Older checkpoints are untouched and training goes on; correct what the reason names.",
            consequence=". Older checkpoints are untouched and training goes on; correct what the reason names."),
    )  # fmt: skip


class CheckpointStateError(CheckpointError):
    """The training state does not fit what a checkpoint can hold or holds."""

    rows = (
        Row("CHECKPOINT_STATE", 44, Cause.PERMANENT,
            "{field}: {reason}. {next_step}"),
    )  # fmt: skip
