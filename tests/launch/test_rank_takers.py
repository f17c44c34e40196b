"""Processes for ranks of other hosts: started once, ended when they have nothing to do."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from recovery.core.ids import NodeId
from recovery.launch.job_view import KnownJob, KnownNode
from recovery.launch.placement import Placed, ProcessKind
from recovery.launch.process_supervisor import ProcessKeeper
from recovery.launch.ranks_to_take import MissingRank
from recovery.launch.scheduler_contact import Contact
from recovery.launch.takeover_processes import RankTakers


class Declines(Contact):
    """Says of some nodes why they were declined."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    @override
    async def why_declined(self, node_id: NodeId) -> str:
        return self.reasons.get(node_id, "")


class Started(ProcessKeeper):
    """Of a process that is not run here: only who was started and dismissed counts."""

    def __init__(self, placed: Placed) -> None:
        self.placed, self.dismissed = placed, ""

    @property
    @override
    def node_id(self) -> NodeId:
        return self.placed.node_id

    @override
    async def dismiss(self, reason: str) -> None:
        self.dismissed = reason


class Host:
    """A launcher on host `h`."""

    def __init__(self) -> None:
        self.contact, self.started = Declines(), list[Started]()
        self.takers = RankTakers(1_000, self.contact, self._place, self._start)

    def _place(self, rank: MissingRank) -> Placed:
        return Placed(
            name=f"takeover_{rank.rank}",
            kind=ProcessKind.STANDBY,
            node_id=NodeId(f"t{rank.rank}"),
            rank=None,
            local_index=0,
            command=(),
            variables={},
            cpus=(),
        )

    def _start(self, placed: Placed) -> ProcessKeeper:
        self.started.append(Started(placed))
        return self.started[-1]

    def look(self, **ranks: int | None) -> list[str]:
        """Show it who holds which rank: names with `lost_` are lost. Gives who was dismissed by now."""
        nodes = [
            KnownNode(
                node_id=name.removeprefix("lost_"),
                rank=rank,
                host="g" if name.startswith("lost_") else "h",
                state="lost" if name.startswith("lost_") else "live",
                silent_ms=60_000,
            )
            for name, rank in ranks.items()
        ]
        job = KnownJob(job="j", state="interrupted", nodes=tuple(nodes))
        asyncio.run(self.takers.check(job, ["a", *(one.node_id for one in self.started)]))
        return [str(one.node_id) for one in self.started if one.dismissed]


def names(host: Host) -> list[str]:
    return [str(one.node_id) for one in host.started]


def test_each_missing_rank_is_started_once() -> None:
    host = Host()
    host.look(a=0, lost_b=1, lost_c=2)
    host.look(a=0, lost_b=1, lost_c=2)
    assert names(host) == ["t1", "t2"]


def test_takers_may_have_taken_each_others_ranks() -> None:
    host = Host()
    host.look(a=0, lost_b=1, lost_c=2)
    assert host.look(a=0, t1=2, lost_b=1, lost_c=None, t2=None) == []
    assert names(host) == ["t1", "t2"], "rank 1 is not started a second time"
    assert host.look(a=0, t1=2, t2=1, lost_b=None, lost_c=None) == []


def test_who_was_declined_is_ended_and_not_started_again() -> None:
    host = Host()
    host.look(a=0, lost_b=1)
    host.contact.reasons["t1"] = "it cannot read the rank's file of step 5"
    assert host.look(a=0, lost_b=1, t1=None) == ["t1"]
    assert host.started[0].dismissed == "rank 1 is not taken here: it cannot read the rank's file of step 5"
    host.look(a=0, lost_b=1)
    assert names(host) == ["t1"]


def test_who_is_not_needed_any_more_is_ended() -> None:
    host = Host()
    host.look(a=0, lost_b=1)
    assert host.look(a=0, b=1, t1=None) == ["t1"]
    host.look(a=0, lost_b=1)
    assert names(host) == ["t1", "t1"], "it was lost again, and may be taken again"
