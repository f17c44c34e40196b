"""Processes that were refused: those that wait on their connection for their time, and which refusals become a row.

A process that was refused for now and is still connected is answered the moment its time may have come, not when it asks again. At most one connection
per node id waits, the one that asked last: of two processes of one id only one can be let in, and one of a host that vanished would keep its turn for
ever. What is beyond the bound is refused and closed; it asks again by itself.

Each refusal of a node that is known becomes a row, and of strangers so few that no peer fills the store with names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from recovery.core.ids import ConnectionId, NodeId
from recovery.core.messages import Register
from recovery.core.policy.ranks import first_id
from recovery.core.scheduler.stimuli import MessageReceived
from recovery.core.tokens import is_request_of

BESIDE_SLOTS = 64
"""How many may wait beside one for each slot of the job. Every lost id has one; the others wait for an id that somebody else holds."""


class Waiting(msgspec.Struct, frozen=True):
    """One registration that was refused for now."""

    received: MessageReceived
    """As it came. Its fresh token was never given to anybody."""
    register: Register
    due_ms: int | None
    """When it may be let in if nothing happens before, on the monotonic clock; None: something must happen."""


class WaitingList:
    """All of them, in the order in which they came."""

    def __init__(self, *, at_most: int) -> None:
        """Nobody waits yet."""
        self._at_most = at_most
        self._by_connection: dict[ConnectionId, Waiting] = {}
        self._by_node: dict[NodeId, ConnectionId] = {}
        self._may_be_let_in: dict[ConnectionId, None] = {}
        """Whose time may have come since `take`, in the order in which that happened."""

    def next_due_after(self, now_ms: int) -> int | None:
        """When the next of them may be let in if nothing happens before; None: nobody by time alone."""
        times_ms = (entry.due_ms for entry in self._by_connection.values() if entry.due_ms is not None)
        return min((due_ms for due_ms in times_ms if due_ms > now_ms), default=None)

    def add(self, one: Waiting) -> ConnectionId | None:
        """Let it wait. Gives the connection that waits no more: an earlier one of its id, or its own, where all of them are taken."""
        connection, node_id = one.received.connection, one.register.node_id
        assert connection not in self._by_connection, "a connection waits once"
        earlier = self._by_node.get(node_id)
        if earlier is None and len(self._by_connection) >= self._at_most:
            return connection
        if earlier is not None:
            self.forget(earlier)
        self._by_connection[connection], self._by_node[node_id] = one, connection
        return earlier

    def forget(self, connection: ConnectionId) -> None:
        """It waits no more: it asks again, or is gone."""
        entry = self._by_connection.pop(connection, None)
        if entry is not None:
            del self._by_node[entry.register.node_id]
            self._may_be_let_in.pop(connection, None)

    def forget_process(self, connection: ConnectionId, register: Register) -> ConnectionId | None:
        """A process asks on this connection now. To be let in on an earlier one, too, would end this one: gives the one on which it waits no more, if any."""
        self.forget(connection)
        earlier = self._by_node.get(register.node_id)
        if earlier is None or not is_request_of(register.request_secret, register.request_id):
            return None
        if self._by_connection[earlier].register.request_id != register.request_id:
            return None
        self.forget(earlier)
        return earlier

    def note_free(self, node_id: NodeId, slot: str) -> None:
        """Something has happened to a node: a process that waits for its id, its rank, the slot that it holds or was started in may be let in."""
        names = {node_id, NodeId(slot or node_id)}
        self._note(lambda entry: not names.isdisjoint(_waits_for(entry.register)))

    def note_due(self, now_ms: int) -> None:
        """Time has passed."""
        self._note(lambda entry: entry.due_ms is not None and entry.due_ms <= now_ms)

    def note_all(self) -> None:
        """Something has happened to the job."""
        self._note(lambda entry: True)

    def _note(self, concerns: Callable[[Waiting], bool]) -> None:
        noted = (connection for connection, entry in self._by_connection.items() if concerns(entry))
        self._may_be_let_in.update(dict.fromkeys(noted))

    def take(self) -> list[Waiting]:
        """Those whose time may have come. They wait no more, unless they are refused again."""
        taken = [self._by_connection[connection] for connection in self._may_be_let_in]
        for entry in taken:
            self.forget(entry.received.connection)
        return taken

    def check(self) -> None:
        """Assert what is always true of it."""
        assert len(self._by_connection) <= self._at_most, "the number that wait is bounded"
        connections = {entry.register.node_id: key for key, entry in self._by_connection.items()}
        assert connections == self._by_node, "one connection per node id waits"
        assert not self._may_be_let_in, "each that may be let in was looked at"


def _waits_for(register: Register) -> tuple[str, ...]:
    """The names for which a registration may wait: its id, that which it replaces, and the place by which a fresh id is called."""
    return (register.node_id, register.replaces, first_id(register.node_id))


REMEMBERED = 1_024
"""Names whose newest refusal is known, so that a repeat is no news."""
NAMED_MAX = 16
"""Rows at once: about unknown names of one address, as many as a host has processes, and about one known id. Beyond them one row a minute counts the rest."""
PERIOD_MS = 60_000
ADDRESSES_MAX = 1_024
"""Counted by themselves. The rest are counted as one, or many addresses would do what many names did."""
_OTHERS = ""


class _Counted:
    """What was refused of one address, or of one known id."""

    def __init__(self) -> None:
        self.named = self.unnoted = self.noted_ms = 0


class Refusals:
    """Counts them."""

    def __init__(self) -> None:
        """Nobody was refused yet."""
        self._codes: OrderedDict[NodeId, str] = OrderedDict()
        self._addresses: dict[str, _Counted] = {}
        self._known: dict[NodeId, _Counted] = {}

    def note(self, node_id: NodeId, code: str, *, peer: str, is_known: bool, now_ms: int) -> int:
        """Take a refusal. Gives for how many a row about it stands; 0: there is to be none. Of ids that are known there is a bounded number."""
        if self._codes.get(node_id) == code:
            return 0
        self._codes[node_id] = code
        while len(self._codes) > REMEMBERED:
            self._codes.popitem(last=False)
        if is_known:
            return _count(self._known.setdefault(node_id, _Counted()), now_ms)
        if peer not in self._addresses and len(self._addresses) >= ADDRESSES_MAX:
            peer = _OTHERS
        return _count(self._addresses.setdefault(peer, _Counted()), now_ms)

    def forget(self, node_id: NodeId) -> None:
        """It is in: the next refusal is news again."""
        self._codes.pop(node_id, None)
        self._known.pop(node_id, None)


def _count(counted: _Counted, now_ms: int) -> int:
    counted.unnoted += 1
    if counted.named < NAMED_MAX:
        counted.named += 1
    elif now_ms - counted.noted_ms < PERIOD_MS:
        return 0
    counted.noted_ms = now_ms
    count, counted.unnoted = counted.unnoted, 0
    return count
