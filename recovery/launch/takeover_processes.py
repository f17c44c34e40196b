"""Processes that a host starts for ranks of other hosts (MS_TAKEOVER_AFTER), and ends again where they are not needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from recovery.core.ids import NodeId
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.launch import console, ranks_to_take
from recovery.launch.job_view import KnownJob
from recovery.launch.placement import Placed
from recovery.launch.process_supervisor import ProcessKeeper
from recovery.launch.ranks_to_take import MissingRank
from recovery.launch.scheduler_contact import Contact


class RankTakers:
    """Of one launcher."""

    def __init__(
        self,
        after_ms: int,
        contact: Contact,
        place: Callable[[MissingRank], Placed],
        start: Callable[[Placed], ProcessKeeper],
    ) -> None:
        """Nothing is missing yet.

        Args:
            after_ms: how long a rank must be missing before a host starts it.
            contact: with the scheduler.
            place: gives the process for a rank.
            start: keeps a process running.
        """
        self._after_ms, self._contact, self._place, self._start = after_ms, contact, place, start
        self._takers: dict[MissingRank, ProcessKeeper] = {}
        self._given_up: set[MissingRank] = set()
        """Whose files this host cannot reach; until the rank has another holder."""

    async def check(self, job: KnownJob, slots: Collection[str]) -> None:
        """Start what is due, and end what has nothing to do.

        Args:
            job: the scheduler's answer.
            slots: first node ids of the slots of this host.
        """
        still_missing = {
            MissingRank(node.rank or 0, NodeId(node.node_id)) for node in ranks_to_take.missing(job)
        }
        self._given_up &= still_missing
        holders = {node.node_id for node in job.nodes if node.rank is not None}
        for rank, taker in list(self._takers.items()):
            if taker.node_id not in holders:
                await self._end_if_idle(rank, taker, anything_missing=bool(still_missing))
            elif rank not in still_missing:
                # It has a rank, this one or another: now it is a worker like any other.
                del self._takers[rank]
        for rank in ranks_to_take.due(job, slots, self._after_ms):
            if rank not in self._takers and rank not in self._given_up:
                self._begin(rank)

    def _begin(self, rank: MissingRank) -> None:
        placed = self._place(rank)
        if re.match(NODE_ID_PATTERN, placed.node_id) is None:
            self._given_up.add(rank)
            said = f"its node id would be {placed.node_id}, which is longer than the 64 characters of an id"
            console.say(f"rank {rank.rank} of {rank.holder} is not started here: {said}", style="yellow")
            return
        said = f"nobody has taken it for {self._after_ms / 1000:g} s or more (MS_TAKEOVER_AFTER)"
        console.say(f"rank {rank.rank} of {rank.holder} is started on this host: {said}", style="yellow")
        self._takers[rank] = self._start(placed)

    async def _end_if_idle(self, rank: MissingRank, taker: ProcessKeeper, *, anything_missing: bool) -> None:
        """It has no rank, and will not get one: nothing is missing any more, or it was declined, so that the next host may try."""
        if not anything_missing:
            why = "all ranks are held again"
        elif reason := await self._contact.why_declined(taker.node_id):
            why = f"rank {rank.rank} is not taken here: {reason}"
            self._given_up.add(rank)
        else:
            return
        del self._takers[rank]
        await taker.dismiss(why)
