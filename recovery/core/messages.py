"""What travels between a node and the scheduler. The decoder is the schema: what does not fit never reaches a machine.

Every message is a frozen struct with a tag of its own. Requests carry a `request_id`; a repeat of it gets the same answer, with one effect.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Union

import msgspec

from recovery.core.barrier_messages import BarrierFromNode, BarrierFromScheduler, StopJob
from recovery.core.copy_messages import SOURCES_MAX, CopyFromNode, CopyFromScheduler
from recovery.core.generation_messages import (
    CheckpointInvalid,
    CheckpointReport,
    FirstStep,
    NotSaved,
    Rendezvous,
    RendezvousOpen,
    StateAgreed,
    StateLoaded,
)
from recovery.core.held import SKIPPED_MAX, HeldCheckpoint, HeldCopy, LiveState, Skipped, Source
from recovery.core.ids import Generation, Incarnation, NodeId
from recovery.core.message_fields import (
    Count,
    GenerationNumber,
    IncarnationNumber,
    NodeName,
    RankNumber,
    Ranks,
    ReplacedName,
    RequestName,
    RunNumber,
    ShortText,
    Text,
    Token,
)
from recovery.core.phases import PhaseReport
from recovery.core.programs import Program

PROTOCOL_VERSION = 1


class Role(str, Enum):
    """What a process is in the cluster. The scheduler itself is never a registered node."""

    WORKER = "worker"
    SERVER = "pserver"


class JobOutcome(str, Enum):
    """How a job ended. WAIT_TIMEOUT: not all ranks were ready within MS_TOPO_TIMEOUT."""

    FINISHED = "finished"
    JOB_FAILED = "failed"
    WAIT_TIMEOUT = "wait_timeout"
    NO_COMMON_CHECKPOINT = "no_common_checkpoint"

    @property
    def code(self) -> str:
        """Stable code of the error that every process ends with; empty for none."""
        return "" if self is JobOutcome.FINISHED else self.name


class GenerationStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where a generation began, as its plan said."""

    generation: GenerationNumber
    step: Count
    epoch: Count
    step_in_epoch: Count


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows of a job that the scheduler is not of: together the workers know what a lost store knew."""

    job: ShortText
    run: RunNumber
    rank: RankNumber
    worker_count: Count
    server_count: Count
    incarnation: IncarnationNumber
    generation: GenerationNumber
    """The newest whose plan it was given."""
    scheduler_incarnation: IncarnationNumber
    began: tuple[GenerationStart, ...] = ()
    held: tuple[HeldCheckpoint, ...] = ()
    """What it holds of that job and run. `began`: plans of that run, as far as it received them."""
    saved_step: Count = 0
    """The newest step noted as saved, whether the file is still there or not. `noted_by`: an earlier id of the same slot; empty: itself."""
    noted_by: ReplacedName = NodeId("")
    copies: tuple[HeldCopy, ...] = ()
    """Of other ranks' contributions, of that job and run, that lie on its node."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which process a process id meant: an id is used again, on another boot and in another container it means another process."""

    boot_id: ShortText
    """Of the kernel; empty: unknown, which proves nothing."""
    pid_namespace: Count
    """Inode of the pid namespace in which the process id counts."""
    start_ticks: Count
    """When it started, in the kernel's clock ticks since boot (field 22 of /proc/PID/stat)."""


class Register(msgspec.Struct, frozen=True, kw_only=True, tag="register"):
    """A node asks for admission, or to resume its incarnation."""

    request_id: RequestName
    protocol: Count
    node_id: NodeName
    role: Role
    host: ShortText
    """Address where other workers reach this one; empty: the address that the scheduler sees."""
    pid: Count
    worker_count: Count
    server_count: Count
    recovery_enabled: bool
    token: Token | None = None
    incarnation: IncarnationNumber = Incarnation(0)
    """The incarnation that the token belongs to; 0 without one."""
    generation: GenerationNumber = Generation(0)
    """The last generation whose plan this process received; 0 when it has received none."""
    job: ShortText = ""
    """The job of that plan; empty for none. A scheduler that does not know it has lost its store, or is another job's."""
    process: ProcessIdentity | None = None
    """Of this process; None: nobody can say, or a release before this one."""
    standby: bool = False
    """It waits as a standby, even while there are free slots (MS_STANDBY)."""
    replaces: ReplacedName = NodeId("")
    """The lost id whose rank this process was started to take (MS_REPLACES); empty: none."""
    starts_again: bool = False
    """When its generation ends it starts its program again in its place: its connection closes, and it comes back by its token."""
    request_secret: Token | None = None
    """The first 32 hex digits of its SHA-256 are `request_id`. Without it a repeat is not taken for the holder of the id."""
    serves: ShortText = ""
    """Where its files of checkpoints can be fetched (host:port); empty: nowhere."""
    program: Program | None = None
    """None: a server, or a release before this one."""
    stores: bool = False
    """It sends its checkpoints to object storage when it is ordered to."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The node has stopped (or just started) and can follow a plan. Lists every checkpoint it holds."""

    request_id: RequestName
    generation: GenerationNumber
    step: Count
    """Last step it applied; 0 for none."""
    held: tuple[HeldCheckpoint, ...] = ()
    left_out: Count = 0
    """Older ones that it holds as well: more than fit into a message (`core/worker/checkpoint_messages.py`)."""
    passed_over: Annotated[tuple[Skipped, ...], msgspec.Meta(max_length=SKIPPED_MAX)] = ()
    """What lies there and was not taken, newest step first."""
    passed_over_more: Count = 0
    """How many more there are than are named."""
    past: JobHistory | None = None
    """Another job than the scheduler's that this node trained before, by its memory or its own store."""
    rank: RankNumber | None = None
    """Of a standby that answers an `Offer`: the rank whose files are listed. None: its own."""
    copies: tuple[HeldCopy, ...] = ()
    """Contributions of other ranks that it holds, newest step first, as many as fit into a message."""
    live: LiveState | None = None
    """The state in its memory, if it can be given to others. None: it has none that can."""
    not_live: ShortText = ""
    """Why it has none; empty: it has one, or live rollback is not asked for."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", omit_defaults=True):
    """Still here, and where training stands. Epoch, steps in all and loss are for people: nothing is decided by them."""

    sequence: Count
    generation: GenerationNumber
    step: Count
    epoch: Count = 0
    """The pass over the data, 1-based; 0: not said."""
    total_steps: Count = 0
    """With how many steps training is over; 0: nobody knows, or a release before this one."""
    loss: float | None = None
    """That was reported last; None: none, or one that is still on a device."""
    phase: PhaseReport | None = None
    """What its main thread does; None: not said."""


class CollectiveFailed(msgspec.Struct, frozen=True, kw_only=True, tag="collective_failed"):
    """The data plane broke under this rank; whose fault it is, the scheduler finds out."""

    generation: GenerationNumber
    step: Count
    reason: ShortText


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """The user's own code raised. The node ends after this."""

    request_id: RequestName
    generation: GenerationNumber
    step: Count
    error: ShortText
    traceback: Text


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The rank has finished training; it waits until all ranks have."""

    request_id: RequestName
    generation: GenerationNumber
    step: Count


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag="leave"):
    """The node goes on purpose (a planned stop). Its id is free at once."""

    request_id: RequestName
    reason: ShortText


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag="exited"):
    """A launcher saw a process end. It is no node itself: it sends this on a connection of its own, and disconnects."""

    node_id: NodeName
    pid: Count
    """Of the process that ended: a later incarnation of the id has another one."""
    reason: ShortText
    """How: `killed by SIGKILL`, `exit code 1`."""
    gives_up: bool = False
    """The launcher does not start it again: the job cannot go on. Without one that was started as a `standby` it can begin."""
    process: ProcessIdentity | None = None
    standby: bool = False
    found: bool = False
    """That it has ended was found. Who waited for it, if anybody did, knows how."""


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag="admitted"):
    """The node is in: a new incarnation, or the same one resumed."""

    request_id: RequestName
    incarnation: IncarnationNumber
    token: Token
    rank: RankNumber | None
    """None while the cluster forms and ranks are not assigned yet."""
    job: ShortText
    run: RunNumber
    scheduler_incarnation: IncarnationNumber
    resumed: bool
    committed_step: Count = 0
    standby: bool = False
    """It holds no rank, and is offered one when a rank is lost."""
    durable_step: Count | None = None
    """The newest step that lies on all ranks' disks, where a newer one is only in memory (0: none); None: it is the committed step."""
    began: tuple[GenerationStart, ...] = ()
    """The newest plans of this run: what is brought from object storage must lead to where training is now."""
    differs: ShortText = ""
    """How what this process runs differs from that of another host; empty: nobody knows of it, or it was said before."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The node is not in. `retry_after_ms` None: asking again will not help."""

    request_id: RequestName
    code: ShortText
    reason: ShortText
    retry_after_ms: int | None = None
    holder_connected: bool = False
    """NODE_ALIVE only: a living process holds the id right now, not just one that may still come back."""


class HeartbeatAck(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The scheduler hears."""

    sequence: Count


class Received(msgspec.Struct, frozen=True, kw_only=True, tag="received"):
    """The request is durable."""

    request_id: RequestName


class Interrupt(msgspec.Struct, frozen=True, kw_only=True, tag="interrupt"):
    """The generation is over. Stop at the step, keep the process, say Ready."""

    generation: GenerationNumber
    reason: ShortText


class Rollback(msgspec.Struct, frozen=True, kw_only=True, tag="rollback"):
    """The plan of a generation, the same for every rank but for the rank's own place."""

    generation: GenerationNumber
    run: RunNumber
    step: Count
    """Step to go back to; 0: start with freshly initialised weights."""
    epoch: Count
    step_in_epoch: Count
    rank: RankNumber
    world_size: Count
    local_rank: Count
    local_world_size: Count
    path: ShortText
    """This rank's file of that step; empty at step 0."""
    digest: ShortText
    committed_step: Count
    because: ShortText
    """Why there is a new generation: the first failure, by name."""
    job: ShortText = ""
    """The job that the plan is of: another one than at admission when a lost store was rebuilt. Empty: the same."""
    incarnation: IncarnationNumber = Incarnation(0)
    """The node's incarnation, higher than at admission for the same reason. 0: the same."""
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=SOURCES_MAX)] = ()
    """The nodes that have this rank's contribution when its own node does not: then `path` is empty, and `digest` says what is fetched first."""
    file_bytes: Count = 0
    """Of what is fetched; 0 without sources."""
    written: GenerationNumber = Generation(0)
    """The generation in which it was written; 0 without sources."""
    durable_step: Count | None = None
    """As `Admitted.durable_step`."""
    since_disk_commit_ms: Count | None = None
    """How long before this plan that step was committed, or the run's first plan was made; None: nobody knows, as behind a scheduler's restart."""
    live_rank: RankNumber | None = None
    """In whose memory the state of `step` is: it gives that to all in the new world. None: each rank loads its checkpoint."""
    live_structure: ShortText = ""
    """As `LiveState.structure`; empty without `live_rank`, and where that rank loads its checkpoint first (`path`) and gives that."""
    live_replicas: Ranks = ()
    """The ranks that take their state from `live_rank`, that rank among them; the others take theirs from their own. Empty: all ranks."""
    ends_at: Count = 0
    """The step at which training ends, as a script has asked by `session.stop()`, not before `step`; 0: behind its last epoch."""
    ends_because: ShortText = ""
    """As `TrainingEnds.reason`."""

    @property
    def step_on_disks(self) -> int:
        """The newest step on all ranks' disks that training has behind it where it begins; 0: none."""
        return self.step if self.durable_step is None else min(self.step, self.durable_step)


class Committed(msgspec.Struct, frozen=True, kw_only=True, tag="committed", omit_defaults=True):
    """All ranks hold this step; older ones may go by the rule of retention."""

    run: RunNumber
    step: Count
    copied: Count = 0
    """The newest step that lies on other hosts as a whole: everybody's own file of it stays too. 0: none."""
    copying: Count = 0
    """The step whose copies are being made: its files are being read. 0: none."""
    copied_in_memory: Count = 0
    """The newest step that lies in other hosts' memory as a whole: everybody's own file of it stays in memory too. 0: none."""
    durable_step: Count | None = None
    """As `Admitted.durable_step`: older files on disks go by this one."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag="offer"):
    """To a standby: a rank is lost. It answers with a `Ready` of that rank, which says which of the rank's files it can read."""

    run: RunNumber
    rank: RankNumber
    replaced: NodeName
    """The id that held the rank."""
    committed_step: Count
    """The newest step that all ranks hold; 0: none."""
    held: tuple[HeldCheckpoint, ...] = ()
    """What is known of the rank's files, newest first: as many as fit into a message."""
    began: tuple[GenerationStart, ...] = ()
    """As `Admitted.began`."""


class JobEnded(msgspec.Struct, frozen=True, kw_only=True, tag="job_ended"):
    """Nobody trains any more."""

    outcome: JobOutcome
    reason: ShortText


FromNode = Union[
    Register, Ready, Heartbeat, CheckpointReport, CheckpointInvalid, NotSaved, RendezvousOpen, StateLoaded, FirstStep,
    CollectiveFailed, Failure, Done, Leave, BarrierFromNode, CopyFromNode, Exited, StopJob,
]  # fmt: skip
FromScheduler = Union[
    Admitted, Refused, HeartbeatAck, Received, Interrupt, Rollback, Rendezvous, StateAgreed, Committed, Offer,
    BarrierFromScheduler, CopyFromScheduler, JobEnded,
]  # fmt: skip
