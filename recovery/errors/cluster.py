"""What goes wrong between processes, and how a job, a launcher and a process end."""

from __future__ import annotations

from recovery.errors.base import Cause, RecoveryError

# --- registration ------------------------------------------------------------------------------------------------------


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
    """The scheduler's store does not know this token; the node registers again without it."""

    code, exit_code, cause = "UNKNOWN_TOKEN", 77, Cause.TEMPORARY


class WorldFullError(RegistrationError):
    """All seats are taken: an extra worker."""

    code, exit_code = "WORLD_FULL", 78


class NodeIdInvalidError(RegistrationError):
    """Node ids that cannot be ranked together, or a rank out of the world."""

    code, exit_code = "NODE_ID_INVALID", 79


class CertificateMismatchError(RegistrationError):
    """The certificate of a process names somebody else. Members share its exit code."""

    exit_code = 80


class IdCertificateMismatchError(CertificateMismatchError):
    """The certificate of this process is that of another node id."""

    code = "ID_CERT_MISMATCH"


class RoleCertificateMismatchError(CertificateMismatchError):
    """The certificate of this process is for another role."""

    code = "ROLE_CERT_MISMATCH"


class NotLetInError(RegistrationError):
    """The scheduler does not take this process for one of its job, for a whole lease: the job's token is another one, or missing here."""

    code, exit_code, cause = "NOT_LET_IN", 81, Cause.UNKNOWN


class JobMismatchError(RegistrationError):
    """This process and the scheduler (or the stored job) disagree about the job."""

    code, exit_code = "JOB_MISMATCH", 73


class ProtocolVersionError(RegistrationError):
    """Worker and scheduler are of releases that use different protocols."""

    code, exit_code = "PROTOCOL_VERSION", 72


# --- connections -------------------------------------------------------------------------------------------------------


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
    """No scheduler answered in time; `reason` names how long it was dialled and why that failed."""

    code, exit_code = "SCHEDULER_UNREACHABLE", 52
    template = "{reason}"


class ProtocolError(RecoveryError):
    """A peer sent something that is no message of ours. The connection is closed, nothing else happens."""

    code, exit_code = "PROTOCOL_ERROR", 53
    template = "{peer}: {reason}. The connection was closed; check what connects to this port."


# --- job ---------------------------------------------------------------------------------------------------------------


class JobFailedError(RecoveryError):
    """The job is over without success; `reason` names the first failure."""

    code, exit_code = "JOB_FAILED", 60
    template = "{reason}"


class NoCommonCheckpointError(JobFailedError):
    """Some ranks hold checkpoints, but there is no step that all hold; `reason` lists who holds what."""

    code, exit_code = "NO_COMMON_CHECKPOINT", 61


class WaitTimeoutError(JobFailedError):
    """Not all workers came within MS_TOPO_TIMEOUT; `reason` names who is missing."""

    code, exit_code = "WAIT_TIMEOUT", 62


class NotHandedOverError(RecoveryError):
    """`recovery drain`: the rank stays where it is, or its process has left and no standby has taken the rank."""

    code, exit_code, cause = "NOT_HANDED_OVER", 66, Cause.TEMPORARY
    template = "{target}: not handed over: {reason}. {next_step}"


# --- launcher ----------------------------------------------------------------------------------------------------------


class LaunchFailedError(RecoveryError):
    """The launcher could not start a process, or failed itself."""

    code, exit_code, cause = "LAUNCH_FAILED", 71, Cause.UNKNOWN
    template = "{process}: {reason}. {next_step}"


class ExitBeforeEndError(RecoveryError):
    """The script ended its process with an exit code that means success, and its rank was not done. As with any failure, another start can help."""

    code, exit_code, cause = "EXIT_BEFORE_END", 63, Cause.SCRIPT
    template = (
        "{how} at step {step}, before the end of training: this rank is not done, and the others wait for it. "
        "Start it again; a script is done when it returns from the training function (or ends, after recovery.init()) on every rank."
    )


# --- the process itself ------------------------------------------------------------------------------------------------


class ProcessHungError(RecoveryError):
    """The main thread hung at the same step in each of several programs that took this process over."""

    code, exit_code, cause = "PROCESS_HUNG", 67, Cause.TEMPORARY
    template = "{reason}"


class WorkerBrokenError(RecoveryError):
    """A fault of the engine in the thread that speaks with the scheduler."""

    code, exit_code, cause = "WORKER_BROKEN", 69, Cause.TEMPORARY
    template = (
        "a fault of the engine in the thread that speaks with the scheduler ({reason}): what is half changed is not carried on, and the process "
        "ends. Start it again with the same environment, and report this with its log."
    )


class ProcessNotReplacedError(RecoveryError):
    """exec in place failed, so that this process had to end instead."""

    code, exit_code, cause = "PROCESS_NOT_REPLACED", 68, Cause.TEMPORARY
    template = (
        "{path} cannot take this process over ({reason}), so it ends. "
        "Bring the interpreter back; whoever started this process starts it again with the same environment."
    )
