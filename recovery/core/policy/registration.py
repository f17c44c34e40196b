"""May this id register now?

The answer is a row of the table below. The first column is what the scheduler holds of the id, the others what is brought
and what the moment is. docs/design/registration.md explains each row; tests/core/test_policy_tables.py walks every combination
and finds exactly one row each.
"""

from __future__ import annotations

from enum import Enum
from typing import Union

import msgspec

from recovery.core.rules import Rules


class Held(str, Enum):
    """What the scheduler holds of the id."""

    UNKNOWN = "unknown"
    LIVE = "live"
    SUSPECT = "suspect"
    LOST = "lost"
    LEFT = "left"
    REPLACED = "replaced"
    """Lost, and its slot was given to another id. A lost standby, which held none, is LOST."""


class Token(str, Enum):
    """The resume token that is brought."""

    NONE = "none"
    SAME = "same"
    """That of the current incarnation."""
    EARLIER = "earlier"
    """That of an incarnation before the current one."""
    FOREIGN = "foreign"
    """One that this store never gave."""


class Window(str, Enum):
    """The rejoin window of the id."""

    OPEN = "open"
    OVER = "over"


class Slots(str, Enum):
    """Is there a slot for this id? Its own slot counts as free for it."""

    FREE = "free"
    STANDBY = "standby"
    """No free one, or it asks for none, but one more may wait as a standby (MS_STANDBY_NUM, MS_REPLACES)."""
    HELD = "held"
    """It was started for the rank of an id that has not been lost yet (MS_REPLACES)."""
    NONE = "none"


class Verdict(str, Enum):
    """What a row says."""

    ADMIT = "admit"
    ADMIT_STANDBY = "admit_standby"
    """It is let in without a rank, and is offered one when a rank is lost."""
    RESUME = "resume"
    UNKNOWN_TOKEN = "unknown_token"  # noqa: S105 - a verdict, not a secret
    NODE_ALIVE = "node_alive"
    REJOIN_WINDOW = "rejoin_window"
    FENCED = "fenced"
    WORLD_FULL = "world_full"
    SLOT_HELD = "place_held"
    """It asks again: the id whose rank it was started for may still be there."""


class Situation(msgspec.Struct, frozen=True):
    """One point of the table."""

    held: Held
    token: Token
    window: Window
    slots: Slots


class Row(msgspec.Struct, frozen=True):
    """One row; each column is the set of values that it covers."""

    held: frozenset[Held]
    token: frozenset[Token]
    window: frozenset[Window]
    slots: frozenset[Slots]
    verdict: Verdict

    def matches(self, situation: Situation) -> bool:
        """Is the situation one of this row's?"""
        return (
            situation.held in self.held
            and situation.token in self.token
            and situation.window in self.window
            and situation.slots in self.slots
        )


def _row(
    held: tuple[Held, ...],
    token: tuple[Token, ...],
    window: tuple[Window, ...],
    slots: tuple[Slots, ...],
    verdict: Verdict,
) -> Row:
    return Row(frozenset(held), frozenset(token), frozenset(window), frozenset(slots), verdict)


# Nothing that proves to be the holder.
_NEW = (Token.NONE, Token.FOREIGN)
_KNOWN = (Held.LIVE, Held.SUSPECT, Held.LOST, Held.LEFT, Held.REPLACED)
_GONE = (Held.LOST, Held.REPLACED)
_ANY_WINDOW = tuple(Window)
_ANY_SLOTS = tuple(Slots)
_OVER = (Window.OVER,)

# fmt: off
ROWS: tuple[Row, ...] = (
    #    held                        token                                          window           slots             answer
    # An id that this store does not know. A token for it comes from another store: the node registers again, without it.
    _row((Held.UNKNOWN,),            (Token.SAME, Token.EARLIER, Token.FOREIGN),    _ANY_WINDOW,     _ANY_SLOTS,       Verdict.UNKNOWN_TOKEN),
    _row((Held.UNKNOWN,),            (Token.NONE,),                                 _ANY_WINDOW,     (Slots.FREE,),    Verdict.ADMIT),
    _row((Held.UNKNOWN,),            (Token.NONE,),                                 _ANY_WINDOW,     (Slots.STANDBY,), Verdict.ADMIT_STANDBY),
    _row((Held.UNKNOWN,),            (Token.NONE,),                                 _ANY_WINDOW,     (Slots.HELD,),    Verdict.SLOT_HELD),
    _row((Held.UNKNOWN,),            (Token.NONE,),                                 _ANY_WINDOW,     (Slots.NONE,),    Verdict.WORLD_FULL),
    # A newer incarnation was admitted: the bringer is a leftover, whatever the state of the newer one.
    _row(_KNOWN,                     (Token.EARLIER,),                              _ANY_WINDOW,     _ANY_SLOTS,       Verdict.FENCED),
    # The holder itself comes back: network jitter, a scheduler restart, an exec of itself.
    _row((Held.LIVE, Held.SUSPECT),  (Token.SAME,),                                 _ANY_WINDOW,     _ANY_SLOTS,       Verdict.RESUME),
    _row((Held.LOST,),               (Token.SAME,),                                 _ANY_WINDOW,     (Slots.FREE,),    Verdict.RESUME),
    # A standby that was lost comes back as one. Nothing of it can be stale: it never held a rank.
    _row((Held.LOST,),               (Token.SAME,),                                 _ANY_WINDOW,     (Slots.STANDBY,), Verdict.RESUME),
    _row((Held.LOST,),               (Token.SAME,),                                 _ANY_WINDOW,     (Slots.HELD,),    Verdict.SLOT_HELD),
    _row((Held.LOST,),               (Token.SAME,),                                 _ANY_WINDOW,     (Slots.NONE,),    Verdict.FENCED),
    _row((Held.LEFT, Held.REPLACED), (Token.SAME,),                                 _ANY_WINDOW,     _ANY_SLOTS,       Verdict.FENCED),
    # Somebody else uses the id of a living node. The holder is untouched and its lease is not refreshed.
    _row((Held.LIVE, Held.SUSPECT),  _NEW,                                          _ANY_WINDOW,     _ANY_SLOTS,       Verdict.NODE_ALIVE),
    # A lost id is refused until its window ends, against network jitter and malicious registration (MindSpore's rule).
    _row(_GONE,                      _NEW,                                          (Window.OPEN,),  _ANY_SLOTS,       Verdict.REJOIN_WINDOW),
    _row(_GONE,                      _NEW,                                          _OVER,           (Slots.FREE,),    Verdict.ADMIT),
    _row(_GONE,                      _NEW,                                          _OVER,           (Slots.STANDBY,), Verdict.ADMIT_STANDBY),
    _row(_GONE,                      _NEW,                                          _OVER,           (Slots.HELD,),    Verdict.SLOT_HELD),
    _row(_GONE,                      _NEW,                                          _OVER,           (Slots.NONE,),    Verdict.WORLD_FULL),
    # A node that left on purpose may return at once.
    _row((Held.LEFT,),               _NEW,                                          _ANY_WINDOW,     (Slots.FREE,),    Verdict.ADMIT),
    _row((Held.LEFT,),               _NEW,                                          _ANY_WINDOW,     (Slots.STANDBY,), Verdict.ADMIT_STANDBY),
    _row((Held.LEFT,),               _NEW,                                          _ANY_WINDOW,     (Slots.HELD,),    Verdict.SLOT_HELD),
    _row((Held.LEFT,),               _NEW,                                          _ANY_WINDOW,     (Slots.NONE,),    Verdict.WORLD_FULL),
)
# fmt: on

_BY_SITUATION: dict[Situation, Verdict] = {
    situation: row.verdict
    for row in ROWS
    for situation in (
        Situation(held, token, window, slots)
        for held in sorted(row.held)
        for token in sorted(row.token)
        for window in sorted(row.window)
        for slots in sorted(row.slots)
    )
}


class Admit(msgspec.Struct, frozen=True):
    """A new incarnation begins."""

    standby: bool = False
    """It holds no rank."""


class Resume(msgspec.Struct, frozen=True):
    """The current incarnation goes on."""


class Refuse(msgspec.Struct, frozen=True):
    """Not now, or never (`retry_after_ms` None)."""

    code: str
    reason: str
    retry_after_ms: int | None = None
    holder_connected: bool = False


Decision = Union[Admit, Resume, Refuse]


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """An id that must be lost before a process is let in, and has not been lost."""

    node_id: str
    is_connected: bool
    silent_ms: int
    ask_again_ms: int
    """When the applicant may ask again."""
    fills: bool = False
    """It was not started for that one's rank: all slots are taken, and that one has any of them."""


class Applicant(msgspec.Struct, frozen=True, kw_only=True):
    """The facts around one registration, gathered by the scheduler's machine."""

    node_id: str
    situation: Situation
    silent_ms: int
    """How long the id has been silent."""
    suspect_left_ms: int
    """What is left of the grace or lease after which a living holder would count as lost."""
    window_left_ms: int
    """What is left of the rejoin window."""
    standby: bool = False
    """It asks to wait as a standby (MS_STANDBY)."""
    replaced: Replaced | None = None
    """The holder of the rank that it was started for; or of one of the slots, where all are taken."""


def decide(applicant: Applicant, rules: Rules) -> Decision:
    """Decide on one registration.

    Args:
        applicant: the process that asks, in which situation.
        rules: for the texts (durations) of a refusal.

    Returns:
        Admit (a new incarnation), Resume (the same one), or Refuse with its code, sentence and the exact time to ask again.

    Source: design of the re-registration policy, docs/design/registration.md; the 30 s rule is MindSpore's.
    """
    node = applicant.node_id
    verdict = _BY_SITUATION[applicant.situation]
    if verdict is Verdict.ADMIT:
        return Admit()
    if verdict is Verdict.ADMIT_STANDBY:
        return Admit(standby=True)
    if verdict is Verdict.RESUME:
        return Resume()
    if verdict is Verdict.NODE_ALIVE:
        return _node_alive(applicant, rules)
    if verdict is Verdict.REJOIN_WINDOW:
        return Refuse(
            "REJOIN_WINDOW",
            f'node "{node}" was last heard {applicant.silent_ms / 1000:.1f} s ago and may return in '
            f"{applicant.window_left_ms / 1000:.1f} s (MS_REJOIN_WINDOW={rules.rejoin_window_ms / 1000:g}).",
            applicant.window_left_ms,
        )
    if verdict is Verdict.SLOT_HELD:
        return _slot_held(applicant)
    if verdict is Verdict.WORLD_FULL and applicant.standby:
        return _no_standby(node, rules)
    return _REFUSALS[verdict](node, rules)


def _node_alive(applicant: Applicant, rules: Rules) -> Refuse:
    """Its holder is connected, or nobody is and the holder may still come back: two things for the reader to do."""
    node, heard = applicant.node_id, f"heard {applicant.silent_ms / 1000:.1f} s ago"
    if applicant.situation.held is Held.LIVE:
        return Refuse(
            "NODE_ALIVE",
            f'node "{node}" is held by a process that is connected and was {heard}. '
            "Give each process its own MS_NODE_ID, or end that process.",
            applicant.suspect_left_ms,
            holder_connected=True,
        )
    return Refuse(
        "NODE_ALIVE",
        f'the process that holds node "{node}" is not connected; it is believed alive, and may come back, for another '
        f"{applicant.suspect_left_ms / 1000:.1f} s (MS_RECONNECT_GRACE={rules.reconnect_grace_ms / 1000:g}; "
        f"MS_NODE_TIMEOUT={rules.lease_ms / 1000:g} after a restart of the scheduler). "
        "A process that takes its place keeps this MS_NODE_ID.",
        applicant.suspect_left_ms,
    )


def _slot_held(applicant: Applicant) -> Refuse:
    """The holder of the rank that it was started for may still be alive."""
    replaced = applicant.replaced
    assert replaced is not None, "a slot is held by somebody"
    how = "connected" if replaced.is_connected else "not connected, and may come back"
    why = f'comes for the rank of "{replaced.node_id}"'
    if replaced.fills:
        why = f'finds all places taken, one of them by "{replaced.node_id}"'
    return Refuse(
        "NODE_ALIVE",
        f'node "{applicant.node_id}" {why}, whose process is {how}: heard {replaced.silent_ms / 1000:.1f} s ago.',
        replaced.ask_again_ms,
        holder_connected=replaced.is_connected,
    )


def _no_standby(node: str, rules: Rules) -> Refuse:
    if not rules.recovery_enabled:
        why = "without recovery (MS_ENABLE_RECOVERY=0) a lost rank ends the job"
        return Refuse("WORLD_FULL", f'node "{node}" would wait as a standby (MS_STANDBY=1), and {why}.')
    return Refuse(
        "WORLD_FULL",
        f'node "{node}" would wait as a standby (MS_STANDBY=1), and all places for one are taken: the scheduler has '
        f"MS_STANDBY_NUM={rules.standby_count}. Start fewer standbys, or set it to their number.",
    )


_REFUSALS = {
    Verdict.UNKNOWN_TOKEN: lambda node, rules: Refuse(
        "UNKNOWN_TOKEN",
        f'node "{node}" brings a token that this scheduler\'s store never gave. It registers again, without it.',
        0,
    ),
    Verdict.FENCED: lambda node, rules: Refuse(
        "FENCED",
        f'node "{node}" has a newer incarnation, or its slot is taken. This process may not go on and ends itself.',
    ),
    Verdict.WORLD_FULL: lambda node, rules: Refuse(
        "WORLD_FULL",
        f'node "{node}" is extra: all {rules.worker_count} slots are taken (MS_WORKER_NUM={rules.worker_count}). '
        "Start fewer workers, or use the MS_NODE_ID of the one that is to be replaced.",
    ),
}
