"""Processes that a host starts for ranks of other hosts (MS_TAKEOVER_AFTER), and ends again where they are not needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from recovery.core.ids import NodeId
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.launch import console, missing_ranks
from recovery.launch.known_job import KnownJob
from recovery.launch.missing_ranks import MissingRank
from recovery.launch.placement import Placed
from recovery.launch.process_keeper import ProcessKeeper
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

    async def look(self, job: KnownJob, places: Collection[str]) -> None:
        """Start what is due, and end what has nothing to do.

        Args:
            job: the scheduler's answer.
            places: first node ids of the places of this host.
        """
        still_missing = {
            MissingRank(node.rank or 0, NodeId(node.node_id)) for node in missing_ranks.missing(job)
        }
        self._given_up &= still_missing
        for rank in [rank for rank in self._takers if rank not in still_missing]:
            await self._end_unless_it_has_it(job, rank)
        for rank in [rank for rank in self._takers if rank in still_missing]:
            await self._end_if_declined(rank)
        for rank in missing_ranks.due(job, places, self._after_ms):
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

    async def _end_unless_it_has_it(self, job: KnownJob, rank: MissingRank) -> None:
        """The rank has a holder again: this process, or another one, beside which it would only wait."""
        taker = self._takers.pop(rank)
        holders = [node.node_id for node in job.nodes if node.rank == rank.rank]
        if taker.node_id not in holders:
            await taker.dismiss(f"rank {rank.rank} is held by {', '.join(holders) or 'nobody'} again")

    async def _end_if_declined(self, rank: MissingRank) -> None:
        """It was offered the rank and did not get it, so the next host may try."""
        taker = self._takers[rank]
        reason = await self._contact.why_declined(taker.node_id)
        if reason:
            del self._takers[rank]
            self._given_up.add(rank)
            await taker.dismiss(f"rank {rank.rank} is not taken here: {reason}")
