"""What goes wrong between processes, and how a job, a launcher and a process end."""

from __future__ import annotations

from recovery.errors.base import Cause, RecoveryError, Row


class RegistrationError(RecoveryError):
    """The scheduler refused this node. `reason` is the scheduler's sentence.

    It is not raised: the two machines end a process by its code.
    """

    rows = (
        Row("NODE_ALIVE", 74, Cause.TEMPORARY,
            meaning="The id is held by a living process."),
        Row("REJOIN_WINDOW", 75, Cause.TEMPORARY,
            meaning="The id is inside its rejoin window."),
        Row("FENCED", 76, Cause.TEMPORARY,
            meaning="A newer incarnation of this id was admitted, or its rank was given away. This process must end."),
        Row("UNKNOWN_TOKEN", 77, Cause.TEMPORARY,
            meaning="The scheduler's store does not know this token; the node registers again without it."),
        Row("WORLD_FULL", 78, Cause.PERMANENT,
            meaning="All slots are taken: an extra worker."),
        Row("NODE_ID_INVALID", 79, Cause.PERMANENT,
            meaning="Node ids that cannot be ranked together, or a rank out of the world."),
        Row("ID_CERT_MISMATCH", 80, Cause.PERMANENT,
            meaning="The certificate of this process is that of another node id."),
        Row("ROLE_CERT_MISMATCH", 80, Cause.PERMANENT,
            meaning="The certificate of this process is for another role."),
        Row("NOT_LET_IN", 81, Cause.UNKNOWN,
            meaning="The scheduler does not take this process for one of its job, for a whole lease: the job's token is another one, or missing here."),
        Row("JOB_MISMATCH", 73, Cause.PERMANENT,
            meaning="This process and the scheduler (or the stored job) disagree about the job."),
        Row("PROTOCOL_VERSION", 72, Cause.PERMANENT,
            meaning="Worker and scheduler are of releases that use different protocols."),
    )  # fmt: skip


class ProtocolError(RecoveryError):
    """A peer sent something that is no message of ours. The connection is closed, nothing else happens."""

    rows = (
        Row("PROTOCOL_ERROR", 53, Cause.PERMANENT,
            "{peer}: {reason}. The connection was closed; check what connects to this port."),
    )  # fmt: skip


class JobFailedError(RecoveryError):
    """The job is over without success."""

    rows = (
        Row("JOB_FAILED", 60, Cause.PERMANENT,
            meaning="The job is over without success; `reason` names the first failure."),
        Row("NO_COMMON_CHECKPOINT", 61, Cause.PERMANENT,
            meaning="Some ranks hold checkpoints, but there is no step that all hold; `reason` lists who holds what."),
        Row("WAIT_TIMEOUT", 62, Cause.PERMANENT,
            meaning="Not all workers came within MS_TOPO_TIMEOUT; `reason` names who is missing."),
    )  # fmt: skip


class LaunchFailedError(RecoveryError):
    """The launcher could not start a process, or failed itself."""

    rows = (
        Row("LAUNCH_FAILED", 71, Cause.UNKNOWN,
            "{process}: {reason}. {next_step}"),
    )  # fmt: skip


class ProcessError(RecoveryError):
    """A process of the job cannot do its part, or ends before its time."""

    rows = (
        Row("PORT_IN_USE", 50, Cause.UNKNOWN,
            "MS_SCHED_HOST={host} MS_SCHED_PORT={port}: cannot listen ({reason}). Another scheduler or program "
            "may hold the port (ss -ltnp); stop it or choose another MS_SCHED_PORT.",
            "The scheduler cannot listen."),
        Row("HOST_UNUSABLE", 51, Cause.UNKNOWN,
            "MS_SCHED_HOST={host!r}: {reason}. {next_step}",
            "MS_SCHED_HOST is no address of this machine, or does not resolve."),
        Row("SCHEDULER_UNREACHABLE", 52, Cause.PERMANENT,
            meaning="No scheduler answered in time; `reason` names how long it was dialled and why that failed."),
        Row("EXIT_BEFORE_END", 63, Cause.SCRIPT,
            "{how} at step {step}, before the end of training: this rank is not done, and the others wait for it. Start it again; a script "
            "is done when it returns from the training function (or ends, after recovery.init()) on every rank.",
            "The script ended its process with an exit code that means success, and its rank was not done. As with any failure, another start can help."),
        Row("NOT_HANDED_OVER", 66, Cause.TEMPORARY,
            "{target}: not handed over: {reason}. {next_step}",
            "`recovery drain`: the rank stays where it is, or its process has left and no standby has taken the rank."),
        Row("PROCESS_HUNG", 67, Cause.TEMPORARY,
            meaning="The main thread hung at the same step in each of several programs that took this process over."),
        Row("PROCESS_NOT_REPLACED", 68, Cause.TEMPORARY,
            "{path} cannot take this process over ({reason}), so it ends. Bring the interpreter back; "
            "the parent that started this process starts it again with the same environment.",
            "exec in place failed, so that this process had to end instead."),
        Row("WORKER_BROKEN", 69, Cause.TEMPORARY,
            "a fault of the engine in the thread that speaks with the scheduler ({reason}): what is half changed is not carried on, "
            "and the process ends. Start it again with the same environment, and report this with its log.",
            "A fault of the engine in the thread that speaks with the scheduler."),
        Row("SCHEDULER_BROKEN", 82, Cause.TEMPORARY,
            "a fault of the engine in the scheduler, at {stimulus} ({reason}): nothing of that is written, and the process ends. Workers train on. Start "
            "it again with the same environment, and report this with its log.",
            "A fault of the engine in the scheduler: an exception, or a state that cannot be."),
        Row("NO_THREAD", 70, Cause.TEMPORARY,
            "a thread that it needs cannot be started ({reason}): this user or container has no more processes, or no more memory. "
            "Free some (ulimit -u, pids.max) and start this process again; a launcher does, which uses up no restart.",
            "The process has begun and found no thread, a worker for its connection or the scheduler for its store; it counts as one that never began."),
    )  # fmt: skip
