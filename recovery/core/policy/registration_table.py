"""What becomes of an id that registers: a row of the table below.

The first column is what the scheduler holds of the id, the others what is brought and what the moment is. docs/design/registration.md explains each
row; tests/core/test_registration_policy.py walks every combination and finds exactly one row each.
"""

from __future__ import annotations

from enum import Enum

import msgspec


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

BY_SITUATION: dict[Situation, Verdict] = {
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
