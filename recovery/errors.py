"""Every error of the engine: a stable code, an exit code, a sentence that names field, value, rule and next step.

RecoveryError
  SettingError            SETTING_MISSING  SETTING_TYPE  SETTING_RANGE  SETTING_CONFLICT
  RecoveryPathError       RECOVERY_PATH_*
  StoreError              STORE_*
  CheckpointError         CHECKPOINT_*
  RegistrationError       NODE_ALIVE  REJOIN_WINDOW  FENCED  WORLD_FULL ...
  ConnectionError_        PORT_IN_USE  SCHEDULER_UNREACHABLE ...
  JobFailedError          JOB_FAILED  NO_COMMON_CHECKPOINT  WAIT_TIMEOUT
  ProcessHungError        PROCESS_HUNG
  ProcessNotReplacedError PROCESS_NOT_REPLACED
  LaunchFailedError       LAUNCH_FAILED
  ExitBeforeEndError      EXIT_BEFORE_END
  UsageError              wrong use of the Python face

The sentence is a template of the class; its parts stay as attributes (`error.parts["value"]`). Nobody parses texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import ClassVar

from typing_extensions import override


class Cause(str, Enum):
    """What an error says of the next start of the same command. The launcher decides by it, and the page of errors shows it."""

    TEMPORARY = "temporary"
    """The next start may go on: it is started again, later each time."""
    PERMANENT = "permanent"
    """The next start would end the same way."""
    UNKNOWN = "unknown"
    """A mistake of the command at its first start; trouble of the machine where the same command has run before."""


class RecoveryError(Exception):
    """Base of all. `temporary` tells the caller whether asking again can help."""

    code: ClassVar[str] = "RECOVERY"
    exit_code: ClassVar[int] = 1
    cause: ClassVar[Cause] = Cause.PERMANENT
    temporary: ClassVar[bool] = False
    """`cause` is TEMPORARY."""
    template: ClassVar[str] = "{text}"

    @override
    def __init_subclass__(cls) -> None:
        """Keep the two ways to say it the same."""
        super().__init_subclass__()
        cls.temporary = cls.cause is Cause.TEMPORARY

    def __init__(self, **parts: object) -> None:
        """Fill the template of the class with `parts`, which stay readable as `error.parts`."""
        self.parts = parts
        super().__init__(f"{self.code}: {self.template.format(**parts)}")


# --- settings -------------------------------------------------------------------------------------------------------


class SettingError(RecoveryError):
    """A variable of the environment is wrong."""


class SettingMissingError(SettingError):
    """A required variable is unset or empty."""

    code, exit_code = "SETTING_MISSING", 20
    template = "{field} is {state}: {rule}. {next_step}"


class SettingTypeError(SettingError):
    """A variable is not of its type."""

    code, exit_code = "SETTING_TYPE", 21
    template = "{field}={value!r}: {rule}. {next_step}"


class SettingRangeError(SettingError):
    """A variable is outside its range or set of values."""

    code, exit_code = "SETTING_RANGE", 22
    template = "{field}={value!r}: {rule}. {next_step}"


class SettingConflictError(SettingError):
    """Two settings exclude each other."""

    code, exit_code = "SETTING_CONFLICT", 23
    template = "{field}={value!r}: {rule}. {next_step}"


# --- recovery path --------------------------------------------------------------------------------------------------


class RecoveryPathError(RecoveryError):
    """MS_RECOVERY_PATH cannot be used: not a directory, not writable, not ours."""

    code, exit_code, cause = "RECOVERY_PATH", 24, Cause.UNKNOWN
    template = "MS_RECOVERY_PATH={path!r}: {reason}. {next_step}"


# --- store ----------------------------------------------------------------------------------------------------------


class StoreError(RecoveryError):
    """The persisted state cannot be used as it is. Nothing was changed or deleted."""


class StoreLockedError(StoreError):
    """Another living process owns this file."""

    code, exit_code, cause = "STORE_LOCKED", 30, Cause.UNKNOWN
    template = "{path} is in use by pid {pid} on {host} since {since}. Stop that process, or choose another MS_RECOVERY_PATH."


class StoreNotOursError(StoreError):
    """The file is a database of something else."""

    code, exit_code = "STORE_NOT_OURS", 31
    template = (
        "{path} is not a recovery store: {reason}. It was left as it is; choose another MS_RECOVERY_PATH."
    )


class StoreCorruptError(StoreError):
    """The file, or a row of it, fails its checks."""

    code, exit_code = "STORE_CORRUPT", 32
    template = "{path} is damaged: {reason}. It was left as it is; put a good copy in its place, or move it away to begin a new job."


class StoreVersionError(StoreError):
    """The file was written by a newer release."""

    code, exit_code = "STORE_VERSION", 33
    template = "{path} has schema {found}, this release knows up to {known}. Install the release that wrote it, or choose another MS_RECOVERY_PATH."


class StoreWalMissingError(StoreError):
    """The main file says that a -wal must be beside it, and there is none: acknowledged rows would be missing."""

    code, exit_code = "STORE_WAL_MISSING", 34
    template = (
        "{path} was not closed cleanly and its companion {wal} is missing, so the newest acknowledged rows may be missing too. "
        "Bring the -wal file back; if another SQLite tool folded it in, set MS_STORE_WITHOUT_WAL=1 once."
    )


class StoreRowsMissingError(StoreError):
    """The file holds fewer writes than were acknowledged: its -wal was cut or damaged, or an older copy took its place."""

    code, exit_code = "STORE_ROWS_MISSING", 37
    template = (
        "{path} holds {found} of {known} acknowledged writes: its -wal is damaged, or an older copy was put in its place. "
        "It was left as it is; bring the right files back, or set MS_STORE_WITHOUT_WAL=1 once to go on without the missing ones."
    )


class StoreFullError(StoreError):
    """No space left for a write. The batch is kept and tried again."""

    code, exit_code, cause = "STORE_FULL", 35, Cause.TEMPORARY
    template = "{path}: no space left for a write ({reason}). Training goes on, answers wait; free space on that file system."


class StoreWriteError(StoreError):
    """A write or fsync failed for another reason than space. The process must end and start again from what is on disk."""

    code, exit_code, cause = "STORE_WRITE", 36, Cause.TEMPORARY
    template = "{path}: a write failed ({reason}) and is not tried again on the same file. Check the disk, then start this process again."


class StoreGoneError(StoreError):
    """The file of an open store is no longer at its name. Its owner ends at once: nothing more is acknowledged."""

    code, exit_code, cause = "STORE_GONE", 38, Cause.TEMPORARY
    template = (
        "{path}: {file} {reason}, while this process had it open, so nothing more is written. Put the files back if they were moved. "
        "A scheduler ends, workers train on; its next start says what is left. A worker goes on without its own store."
    )


class StoreLostError(StoreError):
    """There is a job, and its scheduler's store is not there: beginning anew would throw away what was trained."""

    code, exit_code = "STORE_LOST", 39
    template = (
        "the scheduler's store in {path} is lost, but its job is not: {found}. Nothing was changed and workers train on. "
        "Put scheduler.db back, or rebuild it (recovery rebuild {path}, or MS_REBUILD_STORE=1 in the scheduler). "
        "For a new job choose another MS_RECOVERY_PATH, or lay this one aside (recovery reset {path})."
    )


# --- checkpoints ----------------------------------------------------------------------------------------------------


class CheckpointError(RecoveryError):
    """A checkpoint cannot be written or used."""


class CheckpointDigestError(CheckpointError):
    """A file is not what its manifest says."""

    code, exit_code, cause = "CHECKPOINT_DIGEST", 40, Cause.TEMPORARY
    template = "{path} does not match its manifest ({field} {expected} expected, {found} found). Kept as it is; the plan goes back to an older step."


class CheckpointManifestError(CheckpointError):
    """A manifest cannot be read or is of another job."""

    code, exit_code, cause = "CHECKPOINT_MANIFEST", 41, Cause.TEMPORARY
    template = "{path}: {reason}. Kept as it is; the plan goes back to an older step."


class CheckpointMissingError(CheckpointError):
    """A file of the plan is not there."""

    code, exit_code, cause = "CHECKPOINT_MISSING", 42, Cause.TEMPORARY
    template = "{path} is missing. The plan goes back to an older step."


class CheckpointWriteError(CheckpointError):
    """A save failed; the step counts as not saved and training goes on."""

    code, exit_code, cause = "CHECKPOINT_WRITE", 43, Cause.TEMPORARY
    template = "{path} was not saved ({reason}). Older checkpoints are untouched and training goes on; free space or check the disk."


class CheckpointStateError(CheckpointError):
    """The training state does not fit what a checkpoint can hold or holds."""

    code, exit_code = "CHECKPOINT_STATE", 44
    template = "{field}: {reason}. {next_step}"


# --- registration ---------------------------------------------------------------------------------------------------


class RegistrationError(RecoveryError):
    """The scheduler refused this node. `reason` is the scheduler's sentence."""

    template = "{reason}"


class NodeAliveError(RegistrationError):
    """The id is held by a living process."""

    code, exit_code, cause = "NODE_ALIVE", 74, Cause.TEMPORARY


class RejoinWindowError(RegistrationError):
    """The id is inside its rejoin window."""

    code, exit_code, cause = "REJOIN_WINDOW", 75, Cause.TEMPORARY


class FencedError(RegistrationError):
    """A newer incarnation of this id was admitted, or its rank was given away. This process must end."""

    code, exit_code, cause = "FENCED", 76, Cause.TEMPORARY


class UnknownTokenError(RegistrationError):
    """The scheduler's store does not know this token; the node registers anew."""

    code, exit_code, cause = "UNKNOWN_TOKEN", 77, Cause.TEMPORARY


class WorldFullError(RegistrationError):
    """All seats are taken: an extra worker."""

    code, exit_code = "WORLD_FULL", 78


class NodeIdInvalidError(RegistrationError):
    """Node ids that cannot be ranked together, or a rank out of the world."""

    code, exit_code = "NODE_ID_INVALID", 79


class JobMismatchError(RegistrationError):
    """This process and the scheduler (or the stored job) disagree about the job."""

    code, exit_code = "JOB_MISMATCH", 73


class ProtocolVersionError(RegistrationError):
    """Worker and scheduler are of releases that do not speak together."""

    code, exit_code = "PROTOCOL_VERSION", 72


# --- connections ----------------------------------------------------------------------------------------------------


class PortInUseError(RecoveryError):
    """The scheduler cannot listen."""

    code, exit_code, cause = "PORT_IN_USE", 50, Cause.UNKNOWN
    template = (
        "MS_SCHED_HOST={host} MS_SCHED_PORT={port}: cannot listen ({reason}). "
        "Another scheduler or program may hold the port (ss -ltnp); stop it or choose another MS_SCHED_PORT."
    )


class HostUnusableError(RecoveryError):
    """MS_SCHED_HOST is no address of this machine, or does not resolve."""

    code, exit_code, cause = "HOST_UNUSABLE", 51, Cause.UNKNOWN
    template = "MS_SCHED_HOST={host!r}: {reason}. {next_step}"


class SchedulerUnreachableError(RecoveryError):
    """No scheduler answered in time."""

    code, exit_code = "SCHEDULER_UNREACHABLE", 52
    template = (
        "no scheduler at {host}:{port} answered within {seconds:g} s ({reason}). "
        "Check that it runs, and that MS_SCHED_HOST and MS_SCHED_PORT are the same in every process."
    )


class ProtocolError(RecoveryError):
    """A peer sent something that is no message of ours. The connection is closed, nothing else happens."""

    code, exit_code = "PROTOCOL_ERROR", 53
    template = "{peer}: {reason}. The connection was closed; check what speaks to this port."


# --- job ------------------------------------------------------------------------------------------------------------


class JobFailedError(RecoveryError):
    """The job is over without success; `reason` names the first failure."""

    code, exit_code = "JOB_FAILED", 60
    template = "{reason}"


class NoCommonCheckpointError(JobFailedError):
    """Some ranks hold checkpoints, but there is no step that all hold; `reason` says who holds what."""

    code, exit_code = "NO_COMMON_CHECKPOINT", 61


class WaitTimeoutError(JobFailedError):
    """Not all workers came within MS_TOPO_TIMEOUT; `reason` names who is missing."""

    code, exit_code = "WAIT_TIMEOUT", 62


# --- launcher -------------------------------------------------------------------------------------------------------


class LaunchFailedError(RecoveryError):
    """The launcher could not start a process, or failed itself."""

    code, exit_code, cause = "LAUNCH_FAILED", 71, Cause.UNKNOWN
    template = "{process}: {reason}. {next_step}"


class ExitBeforeEndError(RecoveryError):
    """The script ended its process with an exit code that means success, and its rank was not done. As with any failure, another start can help."""

    code, exit_code, cause = "EXIT_BEFORE_END", 63, Cause.TEMPORARY
    template = (
        "{how} at step {step}, before the end of training: this rank is not done, and the others wait for it. "
        "Start it again; a script is done when it returns from the training function (or ends, after recovery.init()) on every rank."
    )


# --- usage ----------------------------------------------------------------------------------------------------------


class UsageError(RecoveryError):
    """The Python face was used in a way that cannot work."""

    code, exit_code = "USAGE", 64
    template = "{field}: {reason}. {next_step}"


# --- the process itself -----------------------------------------------------------------------------------------------


class ProcessHungError(RecoveryError):
    """The main thread hung at the same step in each of several programs that took this process over."""

    code, exit_code, cause = "PROCESS_HUNG", 67, Cause.TEMPORARY
    template = "{reason}"


class ProcessNotReplacedError(RecoveryError):
    """exec in place failed, so that this process had to end instead."""

    code, exit_code, cause = "PROCESS_NOT_REPLACED", 68, Cause.TEMPORARY
    template = (
        "{path} cannot take this process over ({reason}), so it ends. "
        "Bring the interpreter back; whoever started this process starts it again with the same environment."
    )


def job_failure(code: str, reason: str) -> JobFailedError:
    """The error of a job that ended with this code."""
    kinds = {kind.code: kind for kind in (JobFailedError, NoCommonCheckpointError, WaitTimeoutError)}
    return kinds[code](reason=reason)


def exit_code_of(code: str) -> int:
    """The exit code of the error with this code; 1 for one that has no class (the user's own exception)."""
    return next((kind.exit_code for kind in kinds() if kind.code == code), 1)


def cause_of(exit_code: int) -> Cause | None:
    """What a process said of its next start by this exit code; None: it is no code of ours (a user's own exception, a signal)."""
    named = (kind for kind in kinds() if kind.exit_code != RecoveryError.exit_code)
    return next((kind.cause for kind in named if kind.exit_code == exit_code), None)


def kinds() -> Iterator[type[RecoveryError]]:
    """Every kind of error, the abstract ones too."""
    pending: list[type[RecoveryError]] = [RecoveryError]
    while pending:
        kind = pending.pop()
        yield kind
        pending += kind.__subclasses__()


class InvariantError(AssertionError):
    """A promise inside the engine is broken: a bug of ours, never of the user."""


class GenerationInterrupted(BaseException):
    """Leaves the training function when its generation is over. Not an `Exception`, so that `except Exception` lets it pass."""

    def __init__(self, generation: int, reason: str) -> None:
        """Keep which generation ended and why."""
        self.generation, self.reason = generation, reason
        super().__init__(f"generation {generation} ended: {reason}")
