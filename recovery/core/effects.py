"""What both machines may ask of the world. Imperative; carried out in order by an executor that never decides.

`Answer` and `Report` are no members of the machines' unions of effects: they fit only into `Persist.then`, so an acknowledgement cannot
leave before the write that it promises (mypy refuses it).
"""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.ids import ConnectionId
from recovery.core.messages import CheckpointReport, FromScheduler
from recovery.core.records import Record


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """To a node: what the write before it made true."""

    connection: ConnectionId
    message: FromScheduler


class Report(msgspec.Struct, frozen=True, tag="report"):
    """To the scheduler: what the worker's own write before it made true."""

    message: CheckpointReport


class Persist(msgspec.Struct, frozen=True, tag="persist"):
    """Write the records in one transaction; when it is durable, release `then` in order."""

    records: tuple[Record, ...]
    then: tuple[Union[Answer, Report, Exit], ...] = ()


class Log(msgspec.Struct, frozen=True, tag="log"):
    """Write one line to the log of this process, for people. `event` is a stable name, as the events of the job have."""

    event: str
    text: str
    warning: bool = False


class Exit(msgspec.Struct, frozen=True, tag="exit"):
    """End the process in order. `code` empty: success; else a code of recovery.errors."""

    code: str
    reason: str
