"""What is worth keeping. The store writes these values and reads them back; it adds the wall time of the write by itself.

Field types are plain (str, int, bool, None, enums of str), so that one record is one row.
"""

from __future__ import annotations

from enum import Enum
from typing import Union

import msgspec

from recovery.core.causes import Cause
from recovery.core.copy_records import CopyRecord
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import HeldCheckpoint, Role


class JobState(str, Enum):
    """States of a job; the table of its moves stands in core/scheduler/job_states.py."""

    FORMING = "forming"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    FAILED = "failed"


class NodeState(str, Enum):
    """States of a node; the table of its moves stands in core/scheduler/node.py."""

    LIVE = "live"
    """Connected and heard within its lease."""
    SUSPECT = "suspect"
    """Its connection closed, or the scheduler restarted; it may come back with its token as if nothing happened."""
    LOST = "lost"
    """Gone: its generation is over and its id is refused until the rejoin window ends."""
    LEFT = "left"
    """It went on purpose; its id is free."""

    @property
    def is_here(self) -> bool:
        """Is it connected, or may it come back as if nothing had happened?"""
        return self in (NodeState.LIVE, NodeState.SUSPECT)


class CheckpointState(str, Enum):
    """What is known of one rank's file."""

    PUBLISHED = "published"
    """Complete, digested, durable on its rank."""
    COMMITTED = "committed"
    """The same step is held by every rank of the world."""
    INVALID = "invalid"
    """It failed its digest, or is gone. Never used again, never deleted by us."""
    FETCHING = "fetching"
    """The plan goes there, its own node does not have it, and fetches it from a node that holds a copy."""
    RETIRED = "retired"
    """Older than what the scheduler's checkpoint index keeps; its rank's directory says whether it is still there."""


class EventKind(str, Enum):
    """Names of the events. The same word stands in the log, the events table, JSON and the docs."""

    SCHEDULER_STARTED = "scheduler_started"
    """A new job begins."""
    SCHEDULER_RESTARTED = "scheduler_restarted"
    """The scheduler is back; `incarnation` counts its processes."""
    SCHEDULER_STOPPED = "scheduler_stopped"
    """The scheduler was asked to end by the signal in `reason`, and the job has not ended. Where no rank trains behind it the job is paused."""
    STORE_REBUILT = "store_rebuilt"
    """The scheduler's store was lost; `details` says what each worker reported of the job, and what nobody knew."""
    HISTORY_THINNED = "history_thinned"
    """The oldest rows of a kind that is only history were deleted from the scheduler's store; `reason` says how many of which, `details` names the kind."""
    NODE_ADMITTED = "node_admitted"
    """A process has an id, and a rank if the world is formed; `incarnation` counts the processes of the id."""
    NODE_RESUMED = "node_resumed"
    """The same process came back by its token; nothing was lost."""
    NODE_REFUSED = "node_refused"
    """An id was not given; `reason` begins with the code. One event until it changes."""
    PROGRAM_DIFFERS = "program_differs"
    """A process was admitted that runs another script than one of another host, with other arguments or other settings; `reason` names the first difference."""
    NODE_SUSPECTED = "node_suspected"
    """A connection closed; the node may come back within MS_RECONNECT_GRACE."""
    NODE_LOST = "node_lost"
    """A node did not come back or was silent for its lease; its rejoin window runs."""
    PROCESS_ENDED = "process_ended"
    """More was learned of a lost node: how its process ended, or that it has. With MS_REJOIN=proof its rejoin window ends by that."""
    NODE_LEFT = "node_left"
    """A process said that it ends; its id is free at once."""
    DRAIN_BEGUN = "drain_begun"
    """A rank is to be handed over to a standby at a step that is saved first; `details` names the nodes that go. Empty: the whole job is to end there."""
    DRAIN_ENDED = "drain_ended"
    """The rank was handed over at `step`, or the job saved for its end, or `reason` says why it was not."""
    TRAINING_STOPPED = "training_stopped"
    """Training ends at `step` on every rank, since a script has called `session.stop()`: `reason` names the rank, and why."""
    RANK_TAKEN_OVER = "rank_taken_over"
    """A standby has the rank of a lost node; `details` is that node's id, `reason` why it was lost."""
    TAKEOVER_DECLINED = "takeover_declined"
    """A standby was offered the rank of the node in `details` and does not get it; `reason` says what it lacks."""
    NODE_FAILED = "node_failed"
    """The user's own code raised; `details` holds the traceback."""
    RANKS_ASSIGNED = "ranks_assigned"
    """The world is formed; `details` holds every node's rank."""
    HANG_SUSPECTED = "hang_suspected"
    """A rank has not come on for longer than is known of what it does; `reason` names it, `details` holds the stack of its main thread."""
    HANG_CLEARED = "hang_cleared"
    """The rank that was suspected has come on by itself."""
    STRAGGLER_FOUND = "straggler_found"
    """A rank's own work on a batch takes longer than that of the others (MS_STRAGGLER_PERCENT), so that they wait for it in each step; `reason` names it, and which part is slow."""
    STRAGGLER_CLEARED = "straggler_cleared"
    """A rank that was slow is no slower than the others now."""
    GENERATION_INTERRUPTED = "generation_interrupted"
    """Training stops on every rank; `reason` names whose fault it was, `details` is `no step` where that was a rank that made none for MS_STEP_TIMEOUT."""
    NODE_READY = "node_ready"
    """A node waits for the next plan and has said which checkpoints it holds."""
    PLAN_MADE = "plan_made"
    """A generation begins at `step`; `reason` says why there."""
    RENDEZVOUS_OPENED = "rendezvous_opened"
    """Rank 0 listens for its world; `reason` is the address."""
    STATE_LOADED = "state_loaded"
    """A rank has formed the world and loaded `step`, or begins at step 0."""
    FIRST_STEP_DONE = "first_step_done"
    """A rank has applied its first step of this generation."""
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    """Every rank holds `step`."""
    CHECKPOINT_NOT_COMMON = "checkpoint_not_common"
    """Every rank holds `step`, and it is committed nowhere: `reason` says at which different places of the data they stand."""
    REPLICAS_DIFFER = "replicas_differ"
    """Every rank has saved `step`, and what must be alike on all of them is not: `reason` names ranks and tensors. It is not committed, unless `reason` says that training makes them differ."""
    CHECKPOINT_NOT_SAVED = "checkpoint_not_saved"
    """A rank could not save `step`; `reason` says why. Training goes on, older checkpoints stay; `details` is `in memory` where it was to lie there."""
    UPLOAD_FAILED = "upload_failed"
    """A rank could not send its checkpoint of `step` to object storage; `reason` says why. Told once a step: it is tried again until a newer one takes its place."""
    CHECKPOINT_INVALID = "checkpoint_invalid"
    """A file failed its digest; `details` names it. It is kept, the plan goes back further."""
    CHECKPOINT_PASSED_OVER = "checkpoint_passed_over"
    """A file was found and not taken, or is not there although it was committed; `details` is its path. Another event when it changes."""
    CHECKPOINT_COPIED = "checkpoint_copied"
    """Every rank's checkpoint of `step` lies on as many other hosts as it should."""
    COPY_FAILED = "copy_failed"
    """A checkpoint of the rank in `details` did not come from the nodes that `reason` names, or not at all."""
    COPIES_LIMITED = "copies_limited"
    """There are fewer hosts than MS_CHECKPOINT_COPIES asks for, or checkpoints are folders; `reason` says how many copies are made, or why none."""
    CHECKPOINT_FETCHED = "checkpoint_fetched"
    """A rank whose node had lost its checkpoint of `step` has it again, from a copy; `details` is its path there."""
    JOB_FINISHED = "job_finished"
    """Every rank is done."""
    RUN_CONTINUED = "run_continued"
    """A finished run goes on from its newest common checkpoint (MS_CONTINUE=1); `reason` is how it had ended."""
    JOB_FAILED = "job_failed"
    """The job ended without success; `reason` says why. A relaunch tries again."""


AS_STANDBY = "standby"
"""Details of a `node_admitted` of a process that holds no rank. Stores hold it in this word."""


JOB_STOPPED = "the job was stopped"
"""How the reason of a generation's end begins that a launcher has asked for: nothing failed. Stores hold it in this word."""


NO_STEP = "no step"
"""Details of a `generation_interrupted` by a rank that is connected and made no step for MS_STEP_TIMEOUT. Stores hold it in this word."""


STARTS_AGAIN = "it starts its program again"
"""Details of a `node_lost` of a survivor that replaces its program by exec. Stores hold it in this word."""


STARTED_AGAIN = "it started its program again"
"""Reason of a `node_resumed` of a survivor that has replaced its program by exec. Stores hold it in this word."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a recovery path. One row."""

    job: str
    worker_count: int
    server_count: int
    run: RunId
    state: JobState
    generation: Generation
    scheduler_incarnation: Incarnation
    reason: str = ""
    """Why it is interrupted or failed; the first failure, by name."""
    cause: Cause = Cause.OTHER
    about: str = ""
    """The node whose loss it is; empty: of none."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One training run of the job. Key: run."""

    run: RunId
    outcome: str = ""
    """A value of `JobOutcome`, or empty while it goes on."""
    reason: str = ""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One node id and its newest incarnation. Key: node_id."""

    node_id: NodeId
    role: Role
    rank: Rank | None
    incarnation: Incarnation
    state: NodeState
    token_digest: str
    """SHA-256 of the resume token, hex. The token itself is never stored."""
    admission_request: str
    """Request id of the admission, so that its repeat finds the same incarnation."""
    host: str
    pid: int
    generation: Generation = Generation(0)
    """Last generation whose plan it was given."""
    step: int = 0
    """Last step that it reported."""
    rejoin_left_ms: int = 0
    """What is left of the rejoin window, as of this write. An instant of a monotonic clock would mean nothing to the next process."""
    reason: str = ""
    cause: Cause = Cause.OTHER


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which slot a node holds, where that is not the slot of its own name. Key: node_id."""

    node_id: NodeId
    slot: str
    """The node id that held the slot first, by which ranks are given; empty: the node holds none, it is a standby."""


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which process an incarnation is: with it, its death can be proven. Key: node_id, incarnation."""

    node_id: NodeId
    incarnation: Incarnation
    boot_id: str
    """Of the kernel; empty: unknown."""
    pid_namespace: int
    """Inode of the pid namespace in which the incarnation's pid counts."""
    start_ticks: int
    """When it started, in clock ticks since boot."""


class IncarnationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a node id, kept for the event log. Key: node_id, incarnation."""

    node_id: NodeId
    incarnation: Incarnation
    rank: Rank | None
    host: str
    pid: int
    run: RunId
    ended: str = ""
    """Why it ended; empty while it goes on."""


class GenerationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One membership and its rollback plan. Key: run, generation."""

    run: RunId
    generation: Generation
    step: int
    epoch: int
    step_in_epoch: int
    because: str
    ended: str = ""
    """Why it ended; empty while it goes on."""
    ended_step: int = 0
    """Highest step that any rank had reported when it ended."""
    cause: Cause = Cause.OTHER
    """Of the row itself: whether its plan was made by a scheduler of this store, or reported to it."""


class LiveSourceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A rank in whose memory a generation's plan found the state, or a part of it. Key: run, generation, rank; without a row each rank has its checkpoint."""

    run: RunId
    generation: Generation
    rank: Rank
    structure: str
    """SHA-256 (hex) of the names, shapes and dtypes of what it holds."""
    replicas: str = ""
    """The ranks that take it, itself among them: `0,2`. Empty: all ranks do."""


class TrainingEndRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where training of a run ends, as a script has asked by `session.stop()`. Key: run; without a row it ends behind its last epoch."""

    run: RunId
    step: int
    """The step that was asked for, and once all ranks stop at one, that. 0: taken back, the finished run goes on."""
    reason: str
    """Which rank has asked, and its script's own words."""


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's checkpoint of one step. Key: run, step, rank."""

    run: RunId
    step: int
    rank: Rank
    generation: Generation
    epoch: int
    step_in_epoch: int
    path: str
    digest: str
    file_bytes: int
    state: CheckpointState
    reason: str = ""
    replica: str = ""
    """As `HeldCheckpoint.replica`."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rank is. Key: node_id. Written by the worker about once a second, not per step."""

    node_id: NodeId
    rank: Rank
    run: RunId
    generation: Generation
    incarnation: Incarnation
    step: int
    epoch: int
    step_in_epoch: int


class ActivityRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A time in which a rank trained without a pause. Key: node_id, run, generation, number. It lasts until the row was written."""

    node_id: NodeId
    run: RunId
    generation: Generation
    number: int
    """1, 2, 3, ... in a generation."""
    rank: Rank
    incarnation: Incarnation
    first_step: int
    """The newest step when it began."""
    step: int
    """The newest step when it was written."""
    lasting_ms: int
    """From its beginning until it was written, by the worker's monotonic clock."""
    due_ms: int
    """Within which the next note would follow if the rank went on; 0: training stopped there."""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the event log. Appended, never changed. Flat: no part of a cycle that a collector would look for."""

    kind: EventKind
    node_id: NodeId | None = None
    rank: Rank | None = None
    incarnation: Incarnation | None = None
    run: RunId | None = None
    generation: Generation | None = None
    step: int | None = None
    reason: str = ""
    because: str = ""
    """The first failure that this follows from."""
    details: str = ""
    """Longer text: a traceback, a table of what each node holds."""


class DirectoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A directory where this node's training saves checkpoints, so that its next incarnation can look there. Key: path, prefix."""

    path: str
    prefix: str
    run: RunId


Record = Union[
    JobRecord,
    RunRecord,
    NodeRecord,
    SlotRecord,
    ProcessRecord,
    IncarnationRecord,
    GenerationRecord,
    LiveSourceRecord,
    TrainingEndRecord,
    CheckpointRecord,
    CopyRecord,
    StepRecord,
    ActivityRecord,
    EventRecord,
    DirectoryRecord,
]


def to_held(record: CheckpointRecord | CopyRecord) -> HeldCheckpoint:
    """Give a stored row the form that travels; a copy's path is that on its holder."""
    return HeldCheckpoint(**{field: getattr(record, field) for field in HeldCheckpoint.__struct_fields__})


def to_record(rank: Rank, held: HeldCheckpoint, state: CheckpointState, reason: str = "") -> CheckpointRecord:
    """Give what travelled the form that is stored."""
    return CheckpointRecord(**msgspec.structs.asdict(held), rank=rank, state=state, reason=reason)
