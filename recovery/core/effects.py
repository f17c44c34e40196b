"""What a machine may ask of the world. Imperative; carried out in order by an executor that never decides.

`Answer` and `Report` are no members of the unions below: they fit only into `Persist.then`, so an acknowledgement cannot leave
before the write that it promises (mypy refuses it).
"""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.ids import ConnectionId, Generation, Rank, RunId
from recovery.core.messages import Admitted, FromNode, FromScheduler, Past, Rollback
from recovery.core.records import Record
from recovery.core.stimuli import Hangs


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """To a node: what the write before it made true."""

    connection: ConnectionId
    message: FromScheduler


class Report(msgspec.Struct, frozen=True, tag="report"):
    """To the scheduler: what the worker's own write before it made true."""

    message: FromNode


class Persist(msgspec.Struct, frozen=True, tag="persist"):
    """Write the records in one transaction; when it is durable, release `then` in order."""

    records: tuple[Record, ...]
    then: tuple[Union[Answer, Report, Exit], ...] = ()


class Send(msgspec.Struct, frozen=True, tag="send"):
    """To a node; promises nothing that must be durable."""

    connection: ConnectionId
    message: FromScheduler


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """To the scheduler, if connected; promises nothing that must be durable."""

    message: FromNode


class CloseConnection(msgspec.Struct, frozen=True, tag="close_connection"):
    """Close one connection after what was sent on it."""

    connection: ConnectionId
    reason: str


class SetTimer(msgspec.Struct, frozen=True, tag="set_timer"):
    """Deliver `TimerFired(key)` at `at_ms`. A later one with the same key replaces it."""

    key: str
    at_ms: int


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """Dial the scheduler now; tells `Connected` or `ConnectFailed`."""


class Disconnect(msgspec.Struct, frozen=True, tag="disconnect"):
    """Close the connection to the scheduler, if any."""


class Interrupt(msgspec.Struct, frozen=True, tag="interrupt"):
    """Stop the main thread at its step, waking whatever it waits in."""

    generation: Generation
    reason: str


class OpenGeneration(msgspec.Struct, frozen=True, tag="open_generation"):
    """Let the main thread enter training by this plan."""

    plan: Rollback


class OpenRendezvous(msgspec.Struct, frozen=True, tag="open_rendezvous"):
    """Tell the main thread where rank 0 listens."""

    generation: Generation
    address: str


class ReplaceProcess(msgspec.Struct, frozen=True, tag="replace_process"):
    """exec in place with the resume token: the main thread did not come back."""

    reason: str
    hangs: Hangs


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """This process is an incarnation of its node now: open its store and name it in every log line."""

    admitted: Admitted


class FindCheckpoints(msgspec.Struct, frozen=True, tag="find_checkpoints"):
    """Look which checkpoints of this job, run and rank lie in this node's directories; tells `CheckpointsFound`."""

    job: str
    run: RunId
    rank: Rank | None = None
    """None: this process was never given one, so a file's rank is looked at when it is loaded."""
    past: Past | None = None
    """Another job that this process remembers to have trained: what is held of that one is told too."""


class Confirmed(msgspec.Struct, frozen=True, tag="confirmed"):
    """After a pause: the scheduler still knows this incarnation; the main thread may step and save again."""


class Retain(msgspec.Struct, frozen=True, tag="retain"):
    """Older checkpoints may go now: this step is held by all ranks."""

    step: int


class Say(msgspec.Struct, frozen=True, tag="say"):
    """One line for the person who reads the log. `event` is a stable word."""

    event: str
    text: str
    warning: bool = False


class Exit(msgspec.Struct, frozen=True, tag="exit"):
    """End the process in order. `code` empty: success; else a code of recovery.errors."""

    code: str
    reason: str


SchedulerEffect = Union[Persist, Send, CloseConnection, SetTimer, Say, Exit]
WorkerEffect = Union[
    Persist,
    Tell,
    SetTimer,
    Connect,
    Disconnect,
    Interrupt,
    OpenGeneration,
    OpenRendezvous,
    ReplaceProcess,
    Joined,
    FindCheckpoints,
    Confirmed,
    Retain,
    Say,
    Exit,
]
