"""One node as the scheduler's machine sees it: its record, plus what no other incarnation of the scheduler needs to know.

Which nodes of a role hold a slot, are ready, are done or wait as standbys is counted as it changes, since a registration must not walk over every
node.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from recovery.core.causes import Cause
from recovery.core.ids import ConnectionId, NodeId, RequestId
from recovery.core.messages import FromScheduler, Heartbeat, ProcessIdentity, Ready, Role, Skipped
from recovery.core.policy.ranks import SlotNames, slot_of
from recovery.core.policy.registration_table import Held, Window
from recovery.core.programs import Program
from recovery.core.records import NodeRecord, NodeState, SlotRecord


class Counted(NamedTuple):
    """What was counted of one node."""

    slot: str = ""
    """The slot whose name it holds, whether it is here or not; empty: none."""
    has_slot: bool = False
    is_vacant: bool = False
    """It has a slot and a rank, and is lost or has left."""
    is_absent: bool = False
    """It is lost, or gone with a rank, and the name of a slot is still its own."""
    is_standby: bool = False
    is_ready: bool = False
    is_ready_standby: bool = False
    is_done: bool = False


class Slots:
    """The counts of one role."""

    def __init__(self, *, forming: bool) -> None:
        """Begin without nodes. Whether the job is forming says what a slot is."""
        self.forming = forming
        self.taken = self.ready = self.done = self.vacant = self.absent = self.standbys = (
            self.ready_standbys
        ) = 0
        self.names = SlotNames()
        """Of the slots that are taken."""
        self.holders: dict[str, NodeId] = {}
        """By the name of a slot: the node that holds that name, here or not."""
        self._counted: dict[NodeId, Counted] = {}

    def has_slot(self, record: NodeRecord, slot: str) -> bool:
        """While forming, a slot belongs to a node that is here; afterwards to one that has a rank of this run. A standby holds none."""
        if not slot:
            return False
        if self.forming:
            return record.state.is_here
        return record.rank is not None

    def count(self, record: NodeRecord, slot: str, *, said_ready: bool, done: bool) -> None:
        """Count what a node has become, instead of what was counted of it before."""
        before = self._counted.get(record.node_id, Counted())
        has_slot, is_here = self.has_slot(record, slot), record.state.is_here
        left_empty = bool(slot) and not is_here
        has_rank, is_lost = record.rank is not None, record.state is NodeState.LOST
        now = Counted(
            slot=slot,
            has_slot=has_slot,
            is_vacant=left_empty and has_rank,
            is_absent=left_empty and (has_rank or is_lost),
            is_standby=is_here and not slot,
            is_ready=has_slot and record.state is NodeState.LIVE and said_ready,
            is_ready_standby=not slot and record.state is NodeState.LIVE and said_ready,
            is_done=has_slot and done,
        )
        self.taken += now.has_slot - before.has_slot
        self.ready += now.is_ready - before.is_ready
        self.done += now.is_done - before.is_done
        self.vacant += now.is_vacant - before.is_vacant
        self.absent += now.is_absent - before.is_absent
        self.standbys += now.is_standby - before.is_standby
        self.ready_standbys += now.is_ready_standby - before.is_ready_standby
        if (now.has_slot, now.slot) != (before.has_slot, before.slot):
            if before.has_slot:
                self.names.remove(NodeId(before.slot))
            if now.has_slot:
                self.names.add(NodeId(now.slot))
        if now.slot != before.slot:
            if self.holders.get(before.slot) == record.node_id:
                del self.holders[before.slot]
            if now.slot:
                self.holders[now.slot] = record.node_id
        self._counted[record.node_id] = now

    @property
    def all_done(self) -> bool:
        """Has every node that has a slot trained to the end?"""
        return self.done == self.taken


NEXT_STATES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.LIVE: frozenset({NodeState.LIVE, NodeState.SUSPECT, NodeState.LOST, NodeState.LEFT}),
    NodeState.SUSPECT: frozenset({NodeState.LIVE, NodeState.LOST, NodeState.LEFT}),
    NodeState.LOST: frozenset({NodeState.LIVE, NodeState.LEFT}),
    NodeState.LEFT: frozenset({NodeState.LIVE}),
}
"""All moves of a node. LIVE to LIVE is a new connection of the same incarnation."""


class StepWait(NamedTuple):
    """For how long a rank's heartbeats have named one step."""

    generation: int
    step: int
    lasting_ms: int
    """Without the time in which nothing was heard though it was due."""
    heard_ms: int
    """When the newest of them came."""


class Node:
    """A node of the scheduler's state. Changed only by the modules of this package."""

    step_wait: StepWait | None = None
    """None: it does not train, or is not looked at."""

    step_unknown = False
    """It was here when this scheduler was started again, and has not said since at which step it is."""
    newest_beat: Heartbeat | None = None
    """What it told of its training last, for people; None: nothing yet."""

    stepped_ms: int | None = None
    """When it said last that it had made a step; None: not to this scheduler."""

    program: Program | None = None
    """What it runs, as it said."""

    differs = ""
    """How that differs from what another host runs, where its admission is the first to show it."""

    earlier: Node | None = None
    """The incarnation before, where it is not known how it ended: its launcher's report may still come."""

    stores = False
    """It sends its checkpoints to object storage, as it said when it registered."""

    def __init__(self, record: NodeRecord, *, heard_ms: int, slot: str | None = None) -> None:
        """Start from what is stored.

        `slot`: the name of the slot that it holds, as a row says; empty: none; None: there is no row, it is that of its own name.
        """
        self._record, self.held_rank = record, record.rank
        self._slot: str = record.node_id if slot is None else slot
        self._slot_is_stored = slot is not None
        self._ready: Ready | None = None
        self._done = False
        self._slots: Slots | None = None
        self.heard_ms = self.suspect_until_ms = heard_ms
        self.connection: ConnectionId | None = None
        self.lease_check_ms = heard_ms
        """When its lease is looked at next. If that is long past, the scheduler itself was paused."""
        self.window_ends_ms = heard_ms + record.rejoin_left_ms
        self.came_from = self.serves = ""
        """Address that its newest connection came from, and where its files can be fetched (host:port), as it said there; empty: unknown, none."""
        self.process: ProcessIdentity | None = None
        """Which process its current incarnation is: with it, its end can be proven. None: it did not say."""
        self.is_watched = False
        """Its process's end would be reported. Not while it is live: its connection tells."""
        self.proven_dead = False
        """Its process is known to have ended, and it was not heard since."""
        self.hangs = False
        """It was lost by its lease while its connection stood open: nothing of it answers, and nothing of it ended either."""
        self.replaces = NodeId("")
        """The lost id that this process was started in the place of, as it said; empty: none."""
        self.starts_again = False
        """It starts its program again whenever its generation ends, as it said."""
        self.is_restarting = False
        """It is about to, as far as anybody knows: its connection closed when its generation had ended, and it was not heard since."""
        self.waits_by_choice = False
        """It was started as a standby (MS_STANDBY). A node that was not, and waits as one, waits for a slot."""
        self.given_up = False
        """Its launcher has seen it end, and does not start it again."""
        self.passed_over: frozenset[Skipped] = frozenset()
        """What it reported last that it passed over: only what is new becomes an event."""
        self.asked, self.ask_again_ms = 0, 0
        """How often it was asked on this connection what it can read of its own rank's files, and when it is asked once more."""
        self.sent_generation = self.knew_generation = 0
        """Newest plan that was sent on the current connection, and the one that it knew before, of whichever scheduler. A Ready from before either is a leftover."""
        self.answers: OrderedDict[RequestId, FromScheduler] = OrderedDict()
        """The newest answers, for repeats of their requests."""

    @property
    def is_awaited(self) -> bool:
        """Was this scheduler just started again, so that the node comes back by itself, or is lost?"""
        return self.step_unknown and self.record.state is NodeState.SUSPECT

    @property
    def record(self) -> NodeRecord:
        """The row as it is now."""
        return self._record

    @record.setter
    def record(self, record: NodeRecord) -> None:
        self._record = record
        self.held_rank = self.held_rank if record.rank is None else record.rank
        self.count()

    def told_step(self, step: int) -> None:
        """It has just said at which step it is."""
        if step > self._record.step:
            self.stepped_ms = self.heard_ms
        self.record = msgspec.structs.replace(self._record, step=step)

    @property
    def slot(self) -> str:
        """The name of the slot that it holds: the id of its first holder. Empty: none, it is a standby or its rank was taken."""
        return self._slot

    @slot.setter
    def slot(self, slot: str) -> None:
        self._slot, self._slot_is_stored = slot, True
        self.count()

    @property
    def slot_record(self) -> SlotRecord:
        """The row that says so."""
        return SlotRecord(node_id=self._record.node_id, slot=self._slot)

    @property
    def is_standby(self) -> bool:
        """Does it wait for a rank, as far as it is here?"""
        return self._record.role is Role.WORKER and not self._slot

    @property
    def is_vacant(self) -> bool:
        """Is it gone from a slot that has a rank?"""
        return bool(self._slot) and self._record.rank is not None and not self._record.state.is_here

    @property
    def place(self) -> str:
        """The id of the first process of the slot that its process was started in, whether it holds that one or not; there it is started again."""
        return slot_of(self._record.node_id, self.replaces)

    @property
    def slot_is_stored(self) -> bool:
        """Is there a row that says which slot it holds?"""
        return self._slot_is_stored

    @property
    def took_over(self) -> bool:
        """Has it a slot that another id held before? Then its own directories may hold nothing of its rank."""
        return bool(self._slot) and self._slot_is_stored

    @property
    def ready(self) -> Ready | None:
        """Its Ready, while it waits for the next plan; None while it does not."""
        return self._ready

    @ready.setter
    def ready(self, ready: Ready | None) -> None:
        self._ready = ready
        self.count()

    @property
    def is_warming_up(self) -> bool:
        """Is it connected, but has neither had a plan nor said that it can follow one? It imports, or loads what it needs."""
        record = self._record
        return record.state is NodeState.LIVE and not record.generation and self._ready is None

    @property
    def done(self) -> bool:
        """Whether it has trained to the end."""
        return self._done

    @done.setter
    def done(self, done: bool) -> None:
        self._done = done
        self.count()

    def count_in(self, slots: Slots | None) -> None:
        """Be counted there from now on; None: another incarnation of the id is counted instead."""
        self._slots = slots
        self.count()

    def count(self) -> None:
        """Let what it is now be counted."""
        if self._slots is not None:
            self._slots.count(self._record, self._slot, said_ready=self._ready is not None, done=self._done)

    def keeps_rank(self, now_ms: int, lease_ms: int) -> bool:
        """Is it lost only for as long as its program needs to start again? For a lease at most from when it was last heard."""
        return self.is_restarting and now_ms < self.heard_ms + lease_ms

    def move(
        self, state: NodeState, *, reason: str = "", cause: Cause = Cause.OTHER, rejoin_left_ms: int = 0
    ) -> NodeRecord:
        """Go to `state` and give the row to persist."""
        assert state in NEXT_STATES[self.record.state], (
            f"a node cannot go from {self.record.state} to {state}"
        )
        self.record = msgspec.structs.replace(
            self.record, state=state, reason=reason, cause=cause, rejoin_left_ms=rejoin_left_ms
        )
        return self.record

    def held(self, *, has_slot: bool) -> Held:
        """Say what the registration policy calls this node's state. A node that never followed a plan left no rank to be replaced in."""
        if self.record.state is NodeState.LOST:
            return Held.LOST if has_slot or (not self._slot and not self.record.generation) else Held.REPLACED
        return {
            NodeState.LIVE: Held.LIVE,
            NodeState.SUSPECT: Held.SUSPECT,
            NodeState.LEFT: Held.LEFT,
        }[self.record.state]

    def window(self, now_ms: int) -> Window:
        """Is the rejoin window open?"""
        return Window.OPEN if now_ms < self.window_ends_ms else Window.OVER

    def remember(self, request: RequestId, answer: FromScheduler, *, at_most: int) -> None:
        """Keep the answer for a repeat of the request; the oldest goes when there are too many."""
        self.answers[request] = answer
        while len(self.answers) > at_most:
            self.answers.popitem(last=False)
