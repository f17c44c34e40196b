"""What a launcher knows of its job by asking the scheduler.

Which nodes it has, which processes of this launcher were ever let in, what an earlier launcher has left, and whether a rank that was given up is
taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

import msgspec

from recovery import clock
from recovery.core.causes import Cause
from recovery.core.ids import NodeId
from recovery.core.policy.ranks import natural_key
from recovery.core.records import JobState, NodeState
from recovery.launch.node_ids import is_of
from recovery.launch.placement import Placed, ProcessKind

_MAY_BE_REFUSED = (NodeState.LOST.value, NodeState.SUSPECT.value)
"""A window guards the id of a lost node. A node that left may return at once, and one that is connected is there."""
_ASK_AGAIN_S = 0.05
_ANSWER_S = 1.0
"""How long one answer may take: of a host that is not there nobody says that it is not."""
SCHEDULER_HERE_S = 10.0
"""A scheduler that this launcher starts on the store of a job answers within two seconds."""
_VERDICT_MS = 15_000
"""How long the scheduler may take to find another process for a rank, or none: three offers that nobody answers."""
_VERDICT_POLL_S = 0.2
_SILENT_MS = 5_000
"""How long a scheduler that has answered before may be silent meanwhile: it is started again in a second or two."""


class KnownNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as far as a launcher looks at it."""

    node_id: str
    pid: int = 0
    rank: int | None = None
    state: str = ""
    silent_ms: int = 0
    host: str = ""
    """Its address; empty: a release before this one answers."""
    cause: str = ""
    step: int = 0


class KnownScheduler(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler that answers."""

    incarnation: int = 0
    """It rises with each start."""


class KnownJob(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the scheduler."""

    job: str
    state: str
    nodes: tuple[KnownNode, ...]
    scheduler: KnownScheduler = KnownScheduler()
    generation: int = 0
    began_at_step: int = 0

    @property
    def is_over(self) -> bool:
        """Has the job finished or failed?"""
        return self.state in (JobState.FINISHED.value, JobState.FAILED.value)

    @property
    def reached(self) -> tuple[int, int]:
        """The newest generation, and the step that it has come to; 0: it has made none."""
        newest = max((node.step for node in self.nodes if node.rank is not None), default=0)
        return self.generation, newest if newest > self.began_at_step else 0

    def needs(self, first: NodeId, *, is_standby: bool) -> bool:
        """Does the job wait for a process of this slot? One of its ids holds a rank, or ranks are not given yet.

        Args:
            first: the id that the slot's first process had; the later ones begin with it.
            is_standby: whether the slot was a standby's at first: nobody waits for one that holds no rank.
        """
        if self.state == JobState.FORMING.value and not is_standby:
            return True
        return any(node.rank is not None and is_of(node.node_id, first) for node in self.nodes)

    def has_handed_over(self, node_id: str, pid: int) -> bool:
        """Has this process left as planned, with its rank going to a standby?"""
        return any(
            (node.node_id, node.pid, node.state) == (node_id, pid, NodeState.LEFT.value)
            and node.cause == Cause.RANK_HANDED_OVER.value
            for node in self.nodes
        )

    def left_behind(self, first: NodeId) -> NodeId | None:
        """The id whose rank an earlier launcher's process of this slot had; None: none, or it waits for nobody there.

        Args:
            first: the id that the slot's first process had.
        """
        of_slot = [node for node in self.nodes if is_of(node.node_id, first)]
        if self.is_over or not any(node.state in _MAY_BE_REFUSED for node in of_slot):
            return None
        return NodeId(
            max(of_slot, key=lambda node: (node.rank is not None, natural_key(node.node_id))).node_id
        )


class SchedulerQueries(Protocol):
    """Asks the scheduler."""

    async def known_job(self) -> KnownJob | None:
        """Ask for the job and its nodes; None: it does not answer."""


async def trains_here(contact: SchedulerQueries, placed: Collection[Placed]) -> bool:
    """Does any of these processes hold a rank? A worker may; of a standby the scheduler knows it, and without its answer nothing is saved either."""
    if any(one.kind is ProcessKind.WORKER for one in placed):
        return True
    standbys = [one.node_id for one in placed if one.kind is ProcessKind.STANDBY]
    job = await contact.known_job() if standbys else None
    return job is not None and any(job.needs(node_id, is_standby=True) for node_id in standbys)


class Members:
    """Which processes were let in, as far as it was asked. What is known needs no question when a process has died."""

    def __init__(self, contact: SchedulerQueries) -> None:
        """Nothing is asked yet."""
        self._contact = contact
        self._pids: dict[str, int] = {}
        """By node id: the process that held it last."""

    @property
    def ids(self) -> Collection[str]:
        """All node ids that the scheduler was seen to know."""
        return self._pids.keys()

    def includes(self, node_id: str, pid: int) -> bool:
        """Is it known that this process was let in?"""
        return self._pids.get(node_id) == pid

    async def refresh(self, processes: Iterable[tuple[str, int]]) -> None:
        """Ask, where it is not known of all of these (node id, process id) that they were let in."""
        if not all(self.includes(*process) for process in processes):
            await self._ask()

    async def was_member(self, node_id: str, pid: int) -> bool | None:
        """Was this process ever let in? None: the scheduler does not answer."""
        if self.includes(node_id, pid):
            return True
        return self.includes(node_id, pid) if await self._ask() else None

    def note(self, job: KnownJob) -> None:
        """Take an answer that was given to another question."""
        self._pids |= {node.node_id: node.pid for node in job.nodes}

    async def _ask(self) -> bool:
        job = await self._contact.known_job()
        if job is not None:
            self.note(job)
        return job is not None


class EarlierJob:
    """What the scheduler knows of this host's slots before their first processes start: an earlier launcher may have left lost ids behind.

    One question for all processes of a launcher.
    """

    def __init__(
        self, contact: SchedulerQueries, *, meanwhile: Callable[[], Awaitable[None]], patience_s: float
    ) -> None:
        """Nothing is asked yet.

        Args:
            contact: with the scheduler.
            meanwhile: what the first start waits for anyway. So long a scheduler that does not answer costs nothing.
            patience_s: how long it is waited for in any case.
        """
        self._contact, self._meanwhile, self._patience_ms = contact, meanwhile, patience_s * 1000
        self._asking: asyncio.Task[KnownJob | None] | None = None

    async def known(self) -> KnownJob | None:
        """What is known of the job; None: no answer came in time."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> KnownJob | None:
        begun_ms, meanwhile = clock.monotonic_ms(), asyncio.ensure_future(self._meanwhile())
        try:
            while (job := await self._answer()) is None:
                if meanwhile.done() and clock.monotonic_ms() - begun_ms >= self._patience_ms:
                    break
                await asyncio.sleep(_ASK_AGAIN_S)
        finally:
            meanwhile.cancel()
        return job

    async def _answer(self) -> KnownJob | None:
        try:
            return await asyncio.wait_for(self._contact.known_job(), _ANSWER_S)
        except asyncio.TimeoutError:
            return None


async def is_taken_over(
    scheduler: SchedulerQueries,
    is_needed: Callable[[KnownJob], bool],
    report: Callable[[], Awaitable[bool]],
    *,
    informed: int,
    was_heard: bool,
) -> bool:
    """The rank of a process that is not started again: does another process take it? False where that is not known in time.

    The scheduler decides, and may be started again meanwhile.

    Args:
        scheduler: is asked.
        is_needed: whether a job still waits for the process that is given up.
        report: says once more that it is, and whether that was sent. A scheduler stores nothing of that, so each one that was started meanwhile is informed.
        informed: the incarnation of the scheduler that knows; 0: of none.
        was_heard: whether any scheduler of the job has ever answered.
    """
    heard_ms = clock.monotonic_ms()
    give_up_ms = heard_ms + _VERDICT_MS
    while clock.monotonic_ms() < give_up_ms:
        job = await scheduler.known_job()
        if job is not None:
            heard_ms = clock.monotonic_ms()
            if job.is_over:
                return False
            if not is_needed(job):
                return True
            if job.scheduler.incarnation > informed:
                informed = job.scheduler.incarnation if await report() else informed
                heard_ms = clock.monotonic_ms()
        elif not was_heard or clock.monotonic_ms() - heard_ms > _SILENT_MS:
            return False
        await asyncio.sleep(_VERDICT_POLL_S)
    return False
