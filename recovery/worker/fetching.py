"""Brings one contribution here from the first node that has it whole: transport and files, joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from recovery.checkpoint.contribution import Manifest
from recovery.checkpoint.fetched import Receipt, there_already
from recovery.checkpoint.manifest import BYTES_MAX
from recovery.checkpoint.verify import Wanted
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointDigestError, CheckpointManifestError, CheckpointWriteError
from recovery.transport.access import Access
from recovery.transport.file_client import PATIENCE, FileClient, Patience, SourceError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Source(NamedTuple):
    """A node that is said to have it."""

    node_id: str
    address: str
    """host:port of its file server."""


class Failure(NamedTuple):
    """Why it did not come from one node."""

    node_id: str
    reason: str
    damaged: bool
    """What that node has is not what was named: no other node need ask it."""


class NotFetchedError(Exception):
    """No source gave it, or it cannot be written here."""

    def __init__(self, failures: Sequence[Failure], own_reason: str = "") -> None:
        """Keep what each source did.

        Args:
            failures: of each source that was asked.
            own_reason: what is wrong on this side; empty: nothing.
        """
        self.failures, self.own_reason = tuple(failures), own_reason
        super().__init__(own_reason or "; ".join(f"{one.node_id}: {one.reason}" for one in failures))


class Fetch(NamedTuple):
    """What is to be brought, and how."""

    wanted: Wanted
    directory: Path
    """Where it is to lie."""
    sources: tuple[Source, ...]
    """In the order in which they are asked."""
    access: Access
    place_is_ours: Callable[[], bool]
    """Asked before a name is given: a process that was replaced meanwhile gives none."""
    patience: Patience = PATIENCE


async def fetch(task: Fetch) -> HeldCheckpoint:
    """Bring it, and publish it. Files that one source has given whole are kept when the next one is asked for the rest.

    Raises:
        NotFetchedError: it did not come. Nothing of it is left here.
    """
    already = await _in_thread(there_already, task.directory, task.wanted)
    if already is not None:
        return already
    failures: list[Failure] = []
    receipt, done = Receipt(task.directory, task.wanted), set[int]()
    try:
        for source in task.sources:
            try:
                await _bring(task, source, receipt, done)
                return await _in_thread(receipt.publish, task.place_is_ours)
            except SourceError as error:
                failures.append(Failure(source.node_id, error.reason, damaged=False))
            except (CheckpointDigestError, CheckpointManifestError) as error:
                failures.append(Failure(source.node_id, str(error), damaged=True))
    except CheckpointWriteError as error:
        # Another source would not help.
        raise NotFetchedError(failures, str(error)) from error
    finally:
        await _in_thread(receipt.__exit__, None, None, None)
    raise NotFetchedError(failures)


async def _bring(task: Fetch, source: Source, receipt: Receipt, done: set[int]) -> None:
    async with FileClient(source.address, task.access, task.patience) as holder:
        manifest: Manifest | None = receipt.manifest
        if manifest is None:
            content = await holder.manifest(task.wanted.digest, BYTES_MAX)
            manifest = await _in_thread(receipt.accept, content)
        for number, listed in enumerate(manifest.files):
            if number in done:
                continue
            await _in_thread(receipt.begin, number)

            async def take(piece: bytes) -> None:
                await _in_thread(receipt.take, piece)

            await holder.file(task.wanted.digest, number, listed.file_bytes, take)
            await _in_thread(receipt.end, number)
            done.add(number)


async def _in_thread(call: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
    """Wait for a blocking call also where this task is cancelled: behind it a descriptor is closed that the call may write to."""
    working = asyncio.ensure_future(asyncio.to_thread(call, *arguments, **named))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise
