"""Which refusals become a row: each of a node that is known, and of strangers so few that no peer fills the store with names."""

from __future__ import annotations

from collections import OrderedDict

from recovery.core.ids import NodeId

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
        """Take a refusal. Gives for how many a row about it stands; 0: there is to be none.

        Args:
            node_id: of the node that was refused.
            code: why.
            peer: the address that it came from.
            is_known: the job has a node of this id: there is a bounded number of these.
            now_ms: on the clock of this scheduler's process.
        """
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
