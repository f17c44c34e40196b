"""What may happen to the worker's machine. Past tense. Randomness rides along as a field, so that the core draws none."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Union

import msgspec

from recovery.core.copy_messages import FetchFault
from recovery.core.ids import Generation, Rank, RequestId, ResumeToken
from recovery.core.messages import FromScheduler, HeldCheckpoint, HeldCopy, JobHistory, LiveState, Skipped
from recovery.core.phases import PhaseReport


class WorkerTimer(str, Enum):
    """What the machine has itself reminded of. Each is set at most once at a time."""

    DIAL = "dial"
    """The next dial is due: after a failed one, after connections that end at once, or when a refusal has run out."""
    HEARTBEAT = "heartbeat"
    """The next heartbeat is due."""
    SILENCE = "silence"
    """Nothing was heard of the scheduler for MS_RECEIVE_MSG_TIMEOUT, unless something was heard since the timer was set."""
    ABORT = "abort"
    """The interrupted main thread has had MS_ABORT_TIMEOUT to come back."""
    WAIT_NOTE = "wait_note"
    """What waits says what it waits for."""
    SHUTDOWN = "shutdown"
    """The grace period of a process that leaves is over, answered or not."""
    DEPART = "depart"
    """This process asked for its rank to be handed over, and leaves now if that has not happened."""
    REPORTS = "reports"
    """The last checkpoint reports have waited long enough for this worker's own store."""


class Hangs(msgspec.Struct, frozen=True):
    """What a process that replaces itself hands over to the program that follows."""

    count: int = 0
    """How often in a row it was replaced because its main thread did not come back, without a new step between."""
    step: int = 0
    """The newest step that it has ever applied."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The process is up; `token` when it comes from an exec of itself."""

    secret: str
    """Drawn for this process: with it, and only with it, its registration can be repeated."""
    token: ResumeToken | None
    hangs: Hangs = Hangs()


class Connected(msgspec.Struct, frozen=True, tag="connected"):
    """The dial succeeded."""

    serves: str = ""
    """Where this node's files of checkpoints can be fetched (host:port); empty: nowhere."""


class ConnectFailed(msgspec.Struct, frozen=True, tag="connect_failed"):
    """The dial failed. `jitter` is random, 0..1."""

    reason: str
    jitter: float
    finished: str = ""
    """Not empty: the recovery path that this process can read holds a finished job, of a process that was admitted its own. Which run, and how it ended."""
    not_let_in: bool = False
    """A scheduler answers, and does not take this process for one of its job."""


class Disconnected(msgspec.Struct, frozen=True, tag="disconnected"):
    """The connection to the scheduler closed. `jitter` is random, 0..1."""

    reason: str
    jitter: float


class MessageReceived(msgspec.Struct, frozen=True, tag="message_received"):
    """A decoded message of the scheduler."""

    message: FromScheduler


class TimerFired(msgspec.Struct, frozen=True, tag="timer_fired"):
    """A timer is due. `jitter` is random, 0..1."""

    timer: WorkerTimer
    jitter: float


class StateRestored(msgspec.Struct, frozen=True, tag="state_restored"):
    """The main thread holds the state of the plan's step."""

    generation: Generation
    content: str = ""
    """Digest of the state, where it was taken from a rank's memory."""
    not_live: str = ""
    """Why this training cannot go on from a survivor's memory; empty: it can, or nobody asks for that."""


class StepsDone(msgspec.Struct, frozen=True, tag="steps_done"):
    """The main thread has applied steps up to this one (reported when the heartbeat asks, and at the first step)."""

    generation: Generation
    step: int
    epoch: int
    step_in_epoch: int
    total_steps: int = 0
    """With how many steps training is over; 0: not known."""
    loss: float | None = None
    """The newest that is known on the host; None: none."""
    phase: PhaseReport | None = None
    """What the main thread does; None: nobody says."""


class CheckpointPublished(msgspec.Struct, frozen=True, tag="checkpoint_published"):
    """A checkpoint file and its manifest are durable."""

    request_id: RequestId
    checkpoint: HeldCheckpoint
    replica: Mapping[str, str] = {}
    """Fingerprints of what every rank must have alike; empty: nothing is to be compared."""


class ReportStored(msgspec.Struct, frozen=True, tag="report_stored"):
    """The row of a checkpoint is in this node's own store, or that store has failed: its report has left, if anybody was connected."""

    request_id: RequestId


class SaveFailed(msgspec.Struct, frozen=True, tag="save_failed"):
    """A checkpoint was not saved, or not uploaded; training goes on."""

    request_id: RequestId
    step: int
    reason: str
    in_memory: bool = False
    uploading: bool = False


class Uploaded(msgspec.Struct, frozen=True, tag="uploaded"):
    """What an `UploadOrder` named is in object storage, or (`is_there` False) never will be."""

    request_id: RequestId
    step: int
    digest: str
    is_there: bool


class CheckpointRejected(msgspec.Struct, frozen=True, tag="checkpoint_rejected"):
    """The plan's file does not verify."""

    request_id: RequestId
    generation: Generation
    step: int
    path: str
    reason: str


class RendezvousOpened(msgspec.Struct, frozen=True, tag="rendezvous_opened"):
    """This rank 0 listens for its world."""

    generation: Generation
    address: str


class CheckpointsFound(msgspec.Struct, frozen=True, tag="checkpoints_found"):
    """The search of the directories is done."""

    request_id: RequestId
    search_id: int
    """Of the `FindCheckpoints` that asked for it."""
    held: tuple[HeldCheckpoint, ...]
    passed_over: tuple[Skipped, ...] = ()
    """Newest step first."""
    past: JobHistory | None = None
    """Another job than the one that was asked for, by this process's memory or its own store."""
    rank: Rank | None = None
    """The rank that was offered and whose files were looked for; None: it was this node's own."""
    copies: tuple[HeldCopy, ...] = ()
    """Contributions of other ranks of this job and run that lie among this node's copies."""


class Fetched(msgspec.Struct, frozen=True, tag="fetched"):
    """What `Fetch` asked for lies here, verified and durable."""

    request_id: RequestId
    """For the report of it; what failed before it came is reported under a name made from this."""
    fetch_id: int
    checkpoint: HeldCheckpoint
    """As its manifest says; `path`: where it lies here."""
    failures: tuple[FetchFault, ...] = ()
    """Sources that were asked before and did not give it."""


class FetchFailed(msgspec.Struct, frozen=True, tag="fetch_failed"):
    """No source gave what `Fetch` asked for."""

    request_id: RequestId
    fetch_id: int
    failures: tuple[FetchFault, ...]
    reason: str = ""
    """Not empty: it lies with this node and not with a source (no space left), and no source is to blame."""


class StoreRefused(msgspec.Struct, frozen=True, tag="store_refused"):
    """This node's own store cannot be read by this release: what it holds must not count as nothing."""

    request_id: RequestId
    code: str
    reason: str


class TrainingStopped(msgspec.Struct, frozen=True, tag="training_stopped"):
    """The main thread left the training function; it can follow a plan."""

    generation: Generation
    step: int
    collective_error: str = ""
    """Not empty: it stopped because the data plane broke, before anyone asked it to."""
    live: LiveState | None = None
    """The state in its memory, if it can be given to others."""
    not_live: str = ""
    """Why it has none; empty: it has one, or live rollback is not asked for."""


class DataPlaneBroke(msgspec.Struct, frozen=True, tag="data_plane_broke"):
    """A collective failed under a script that cannot be entered again: it replaces itself once the generation has ended."""

    generation: Generation
    step: int
    reason: str


class TrainingRaised(msgspec.Struct, frozen=True, tag="training_raised"):
    """The user's own code raised."""

    request_id: RequestId
    generation: Generation
    step: int
    error: str
    traceback: str


class TrainingDone(msgspec.Struct, frozen=True, tag="training_done"):
    """The training function returned."""

    request_id: RequestId
    generation: Generation
    step: int


class StopAsked(msgspec.Struct, frozen=True, tag="stop_asked"):
    """A person or a system asked this process to end (SIGTERM, SIGINT)."""

    request_id: RequestId
    reason: str


class DepartAsked(msgspec.Struct, frozen=True, tag="depart_asked"):
    """A system asked this process to end (SIGTERM): its rank may be handed over first, while its main thread trains on."""

    request_id: RequestId
    reason: str


class TrainingStopAsked(msgspec.Struct, frozen=True, tag="training_stop_asked"):
    """The script has called `session.stop()`, and the main thread waits at the end of this step."""

    generation: Generation
    step: int
    reason: str


class Positioned(msgspec.Struct, frozen=True, tag="positioned"):
    """Where the main thread is: the answer to `StopAt`, and again where that holds no more, since it cannot save there or its loop has ended."""

    generation: Generation
    passed: int
    """It has left this step behind it."""
    stops: bool = False
    """It stops at the step that was asked for."""
    step: int | None = None
    """At which it was asked to stop; None: whichever that is."""
    obstacle: str = ""
    """Not empty: why this training cannot save out of turn."""
    is_over: bool = False
    """Its loop has come to its end: it comes to no step any more."""


class PauseNoticed(msgspec.Struct, frozen=True, tag="pause_noticed"):
    """The whole process was paused (SIGSTOP, a frozen virtual machine)."""

    paused_ms: int


WorkerStimulus = Union[
    Started,
    Connected,
    ConnectFailed,
    Disconnected,
    MessageReceived,
    TimerFired,
    StateRestored,
    StepsDone,
    CheckpointPublished,
    ReportStored,
    SaveFailed,
    Uploaded,
    CheckpointRejected,
    RendezvousOpened,
    CheckpointsFound,
    Fetched,
    FetchFailed,
    StoreRefused,
    TrainingStopped,
    DataPlaneBroke,
    TrainingRaised,
    TrainingDone,
    StopAsked,
    DepartAsked,
    TrainingStopAsked,
    Positioned,
    PauseNoticed,
]
