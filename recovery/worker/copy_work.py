"""Carries out what the machine asks for copies: brings them here, lets them go, and says what this node holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from recovery.checkpoint.durable_files import reason_of
from recovery.checkpoint.verify import Wanted
from recovery.core.held import HeldCheckpoint, HeldCopy
from recovery.core.ids import Rank, RequestId, RunId
from recovery.core.policy.retention import copy_is_needed
from recovery.core.records import CheckpointRecord, Record
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Fetch, RetainCopies
from recovery.transport.access import Access
from recovery.worker.fetching import FetchRequest, FetchResult, NotFetchedError
from recovery.worker.held_copies import Ordered

if TYPE_CHECKING:
    from recovery.worker.file_exchange import FileExchange
    from recovery.worker.held_copies import Copies

_logger = logging.getLogger("recovery.worker")
_NO_PLACE = "this node keeps nothing: it has no MS_RECOVERY_PATH"


class CopyWork:
    """The copies of one node, as its machine sees them. Belongs to the connection's loop; what blocks runs elsewhere."""

    def __init__(
        self,
        copies: Copies | None,
        exchange: FileExchange,
        *,
        world_size: int,
        access: Access,
        host: Callable[[], str],
        still_owns_rank: Callable[[], bool],
    ) -> None:
        """Join the parts.

        Args:
            copies: where they lie; None: recovery is off.
            exchange: brings them.
            world_size: of the job.
            access: how other nodes' file servers are asked.
            host: where others reach this node; empty: nowhere, or nobody is to. May block.
            still_owns_rank: asked before a name is given, from a thread that may wait.
        """
        self._copies, self._exchange = copies, exchange
        self._world_size, self._access, self._still_owns_rank = world_size, access, still_owns_rank
        self._host, self._address = host, ""

    def carry_out(
        self,
        effect: Fetch | RetainCopies,
        new_request: Callable[[], RequestId],
        deliver: Callable[[s.WorkerStimulus], None],
    ) -> None:
        """Do one effect.

        Args:
            effect: what is asked for.
            new_request: draws the id of the report that follows.
            deliver: takes what came of a `Fetch`, in the loop of now.
        """
        loop = asyncio.get_running_loop()
        if isinstance(effect, RetainCopies):
            if self._copies is not None:
                loop.run_in_executor(None, _retain, self._copies, effect)
            return
        if self._copies is None:
            deliver(s.FetchFailed(new_request(), effect.fetch_id, (), _NO_PLACE))
            return
        copies, order = self._copies, Ordered(effect.job, effect.rank, effect.checkpoint)
        wish = FetchRequest(
            wanted=Wanted(
                job=effect.job,
                run=effect.checkpoint.run,
                rank=effect.rank,
                world_size=self._world_size,
                step=effect.checkpoint.step,
                digest=effect.checkpoint.digest,
            ),
            place=lambda: copies.directory_for(order),
            sources=effect.sources,
            access=self._access,
            still_owns_rank=self._still_owns_rank,
        )

        def came(outcome: FetchResult | NotFetchedError) -> None:
            if isinstance(outcome, FetchResult):
                deliver(s.Fetched(new_request(), effect.fetch_id, outcome.checkpoint, outcome.faults))
            else:
                deliver(s.FetchFailed(new_request(), effect.fetch_id, outcome.faults, outcome.own_reason))

        def leave_thread(outcome: FetchResult | NotFetchedError) -> None:
            loop.call_soon_threadsafe(came, outcome)

        self._exchange.fetch(wish, leave_thread, ahead=effect.for_plan)

    def address(self) -> str:
        """Where others fetch what this node holds (host:port); empty: nowhere. Blocks, until it is known.

        It stays: who dials again has half a second, and a name server may take ten.
        """
        if not self._address and self._copies is not None:
            host = self._host()
            self._address = self._exchange.address(host) if host else ""
        return self._address

    def note_saved(self, records: Iterable[Record]) -> None:
        """This node has saved checkpoints that others may ask for."""
        for record in records:
            # A folder is not copied, so nobody asks for it.
            if isinstance(record, CheckpointRecord) and self._copies and not record.path.endswith("/"):
                self._copies.note_own(record.digest, record.path)

    def held(
        self, job: str, run: RunId, rank: Rank | None, own: Iterable[HeldCheckpoint]
    ) -> tuple[HeldCopy, ...]:
        """List the copies of other ranks, newest step first, and note what this node holds itself. Blocks.

        Args:
            job: whose.
            run: of which run of it.
            rank: this node's own; None: it was never given one.
            own: what was found of that.
        """
        if self._copies is None:
            return ()
        for checkpoint in own:
            if checkpoint.is_folder:
                continue
            self._copies.note_own(checkpoint.digest, checkpoint.path)
        self._copies.sweep(job)
        return tuple(
            HeldCopy(rank=whose, checkpoint=found)
            for whose, found in self._copies.held(job, run)
            if whose != rank
        )


def _retain(copies: Copies, effect: RetainCopies) -> None:
    began = [(start.generation, start.step) for start in effect.began]
    try:
        copies.keep_only(
            effect.job,
            effect.run,
            lambda _, copy: copy_is_needed(
                copy, oldest=effect.oldest, oldest_in_memory=effect.oldest_in_memory, began=began
            ),
        )
    except OSError as error:
        _logger.warning("event=copies_not_retained reason=%r", reason_of(error))
    except Exception:
        _logger.exception("event=copies_not_retained")
