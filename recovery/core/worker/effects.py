"""What the worker's machine may ask of the world, beside what both may ask."""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.effects import Exit, Log, Persist
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.messages import (
    Admitted,
    FromNode,
    GenerationStart,
    HeldCheckpoint,
    JobHistory,
    Offer,
    Rollback,
    Source,
)
from recovery.core.worker.stimuli import Hangs, WorkerTimer


class SetTimer(msgspec.Struct, frozen=True, tag="set_timer"):
    """Deliver `TimerFired(timer)` at `at_ms`. A later one of the same timer replaces it."""

    timer: WorkerTimer
    at_ms: int


class Send(msgspec.Struct, frozen=True, tag="send"):
    """To the scheduler, if connected; promises nothing that must be durable."""

    message: FromNode


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """Dial the scheduler now; `Connected` or `ConnectFailed` follows."""


class Disconnect(msgspec.Struct, frozen=True, tag="disconnect"):
    """Close the connection to the scheduler, if any."""


class Interrupt(msgspec.Struct, frozen=True, tag="interrupt"):
    """Stop the main thread at its step, waking whatever it waits in."""

    generation: Generation
    reason: str


class OpenGeneration(msgspec.Struct, frozen=True, tag="open_generation"):
    """Let the main thread enter training by this plan."""

    plan: Rollback


class BeginSteps(msgspec.Struct, frozen=True, tag="begin_steps"):
    """Let the main thread go on from the state that it has taken from a rank's memory: all ranks have taken the same."""

    generation: Generation


class OpenRendezvous(msgspec.Struct, frozen=True, tag="open_rendezvous"):
    """Let the main thread know where rank 0 listens."""

    generation: Generation
    address: str


class StopAt(msgspec.Struct, frozen=True, tag="stop_at"):
    """Have the main thread save at the end of this step and wait there, if it has not passed it. `Positioned` follows."""

    drain: int
    generation: Generation
    step: int
    """0: only look where it is."""
    ends_training: bool = False
    """Training is to end there: nothing is saved for it before that is agreed on."""
    leaves_within_ms: int = 0
    """This process is to end behind it, and has so long at most; 0: it stays."""


class EndTraining(msgspec.Struct, frozen=True, tag="end_training"):
    """Let the main thread's loop end at the end of this step, at which all ranks stop. One that has passed it is a `DataPlaneBroke`."""

    generation: Generation
    step: int
    reason: str


class ResumeTraining(msgspec.Struct, frozen=True, tag="let_go"):
    """Let a main thread go on that waits at a step, or would."""


class LeaveAsAsked(msgspec.Struct, frozen=True, tag="leave_as_asked"):
    """Let the signal that was held back reach the main thread: the process leaves without its rank being handed over."""


class ReplaceProcess(msgspec.Struct, frozen=True, tag="replace_process"):
    """exec in place with the resume token: the main thread did not come back."""

    reason: str
    hangs: Hangs


class NoteAdmission(msgspec.Struct, frozen=True, tag="note_admission"):
    """Note that this process is an incarnation of its node now: its store may be opened, and the end of its own run alone counts."""

    admitted: Admitted


class FindCheckpoints(msgspec.Struct, frozen=True, tag="find_checkpoints"):
    """Look which checkpoints of this job, run and rank lie in this node's directories; `CheckpointsFound` follows."""

    search_id: int
    """1, 2, 3, ... of this process."""
    job: str
    run: RunId
    rank: Rank | None = None
    """None: this process was never given one, so a file's rank is looked at when it is loaded."""
    past: JobHistory | None = None
    """Another job that this process remembers to have trained: what is held of that one is looked for too."""
    offer: Offer | None = None
    """The rank is not this node's: its files are looked for where they are said to lie too."""
    began: tuple[GenerationStart, ...] = ()
    """As `Admitted.began`."""


class KeepDirectories(msgspec.Struct, frozen=True, tag="keep_directories"):
    """A rank that was offered is this process's now: note where its files lie, so that later searches look there too."""

    rank: Rank


class ConfirmRank(msgspec.Struct, frozen=True, tag="confirm_place"):
    """Let the main thread step and save again after a pause: the scheduler still knows this incarnation."""


class Retain(msgspec.Struct, frozen=True, tag="retain"):
    """Let older checkpoints go: this step is held by all ranks."""

    step: int
    pinned: tuple[int, ...] = ()
    """Steps that stay as well: the newest that lies on other hosts as a whole, and the one that is being copied there."""
    durable_step: int | None = None
    """As `messages.Committed.durable_step`."""
    pinned_in_memory: tuple[int, ...] = ()
    """As `pinned`, of what is in memory."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Get a contribution by its digest, verify it and publish it among this node's copies; `Fetched` or `FetchFailed` follows.

    One that lies there already, intact, is not fetched again. What fails at one source is asked of the next.
    """

    fetch_id: int
    """1, 2, 3, ... of this process."""
    job: str
    rank: Rank
    """Whose contribution; of a plan this node's own."""
    checkpoint: HeldCheckpoint
    """What is wanted; its path means nothing here."""
    sources: tuple[Source, ...]
    """To be asked in this order."""
    for_plan: bool = False
    """The main thread waits for it, as all ranks do: it goes ahead of copies."""


class RetainCopies(msgspec.Struct, frozen=True, tag="retain_copies"):
    """Let the copies of a run go that no plan can need any more, as `core/policy/retention.copy_is_needed` says."""

    job: str
    run: RunId
    oldest: int
    """Older steps of the run may go; 0: none is too old."""
    began: tuple[GenerationStart, ...]
    """Plans that this process was given: what was written before one of them and is newer than its step was rolled back."""
    oldest_in_memory: int = 0
    """As `oldest`, of what is in memory."""


class Upload(msgspec.Struct, frozen=True, tag="upload"):
    """Send the own contribution to a committed step to object storage, in the place of one before; `Uploaded` follows."""

    checkpoint: HeldCheckpoint


WorkerEffect = Union[
    Persist,
    Send,
    SetTimer,
    Connect,
    Disconnect,
    Interrupt,
    OpenGeneration,
    BeginSteps,
    OpenRendezvous,
    StopAt,
    EndTraining,
    ResumeTraining,
    LeaveAsAsked,
    ReplaceProcess,
    NoteAdmission,
    FindCheckpoints,
    KeepDirectories,
    ConfirmRank,
    Retain,
    Fetch,
    RetainCopies,
    Upload,
    Log,
    Exit,
]
