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
from recovery.core.copy_messages import FetchFault
from recovery.core.held import HeldCheckpoint, Source
from recovery.errors import CheckpointDigestError, CheckpointManifestError, CheckpointWriteError
from recovery.transport.access import Access
from recovery.transport.file_client import PATIENCE, FileClient, Patience, SourceError

_P = ParamSpec("_P")
_T = TypeVar("_T")


_REASON_CHARS_MAX = 1_024
"""As `message_fields.ShortText`."""


class NotFetchedError(Exception):
    """No source gave it, or it cannot be written here."""

    def __init__(self, faults: Sequence[FetchFault], own_reason: str = "") -> None:
        """Keep what each source did.

        Args:
            faults: of each source that was asked.
            own_reason: what is wrong on this side; empty: nothing.
        """
        self.faults, self.own_reason = tuple(faults), own_reason
        super().__init__(
            own_reason or "; ".join(f"{fault.source.node_id}: {fault.reason}" for fault in faults)
        )


class FetchResult(NamedTuple):
    """It is here."""

    checkpoint: HeldCheckpoint
    faults: tuple[FetchFault, ...]
    """Of the sources that were asked before and did not give it."""


class FetchRequest(NamedTuple):
    """What is to be brought, and how."""

    wanted: Wanted
    place: Callable[[], Path]
    """Where it is to lie: asked when its turn comes. Blocks, and raises CheckpointWriteError where there is no room for it."""
    sources: tuple[Source, ...]
    """In the order in which they are asked."""
    access: Access
    still_owns_rank: Callable[[], bool]
    """Asked before a name is given: a process that was replaced meanwhile gives none."""
    patience: Patience = PATIENCE


async def fetch(wish: FetchRequest) -> FetchResult:
    """Bring it, and publish it. Files that one source has given whole are kept when the next one is asked for the rest.

    Raises:
        NotFetchedError: it did not come. Nothing of it is left here.
    """
    faults: list[FetchFault] = []
    try:
        directory = await _in_thread(wish.place)
        already = await _in_thread(there_already, directory, wish.wanted)
        if already is not None:
            return FetchResult(already, ())
        return await _from_any(wish, directory, faults)
    except CheckpointWriteError as error:
        # Another source would not help.
        raise NotFetchedError(faults, _sayable(str(error))) from error


async def _from_any(wish: FetchRequest, directory: Path, faults: list[FetchFault]) -> FetchResult:
    """Ask one source after the other; notes why each did not give it.

    Raises:
        NotFetchedError: none did.
        CheckpointWriteError: it cannot be written here.
    """
    receipt, done = Receipt(directory, wish.wanted), set[int]()
    try:
        for source in wish.sources:
            try:
                await _bring(wish, source, receipt, done)
                held = await _in_thread(receipt.publish, wish.still_owns_rank)
                return FetchResult(held, tuple(faults))
            except SourceError as error:
                faults.append(_fault(source, error.reason, damaged=error.damaged))
            except (CheckpointDigestError, CheckpointManifestError) as error:
                faults.append(_fault(source, str(error), damaged=True))
    finally:
        await _in_thread(receipt.__exit__, None, None, None)
    raise NotFetchedError(faults)


def _fault(source: Source, reason: str, *, damaged: bool) -> FetchFault:
    return FetchFault(source=source, reason=_sayable(reason), damaged=damaged)


def _sayable(reason: str) -> str:
    """A message must be able to carry any reason, whatever path it names."""
    return reason.encode(errors="backslashreplace").decode()[:_REASON_CHARS_MAX]


async def _bring(wish: FetchRequest, source: Source, receipt: Receipt, done: set[int]) -> None:
    async with FileClient(source.address, wish.access, wish.patience) as holder:
        manifest: Manifest | None = receipt.manifest
        if manifest is None:
            content = await holder.manifest(wish.wanted.digest, BYTES_MAX)
            manifest = await _in_thread(receipt.accept, content)
        for number, listed in enumerate(manifest.files):
            if number in done:
                continue
            await _in_thread(receipt.begin, number)

            async def take(piece: bytes) -> None:
                await _in_thread(receipt.take, piece)

            await holder.file(wish.wanted.digest, number, listed.file_bytes, take)
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
