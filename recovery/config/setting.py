"""What a row of the table of settings says of one variable."""

from __future__ import annotations

from enum import Enum

import msgspec


class SettingKind(str, Enum):
    """How the text of a variable is read."""

    INTEGER = "whole number"
    SECONDS = "whole number of seconds"
    DECIMAL_SECONDS = "seconds, with up to three decimals"
    CHOICE = "one of a set of words"
    NODE_ID = "node id"
    HOST = "host"
    ADDRESS = "IP address"
    PATH = "path"
    SECRET = "secret"  # noqa: S105 - the name of a kind
    ANY = "any text"


class Fate(str, Enum):
    """What becomes of a variable."""

    HONOURED = "honoured"
    PASSED_THROUGH = "passed through"
    ACCEPTED = "accepted, no effect"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One variable of the environment."""

    name: str
    kind: SettingKind
    meaning: str
    rule: str
    """Completes "<name>=<value>: ..."."""
    example: str = ""
    """A value that is always right; the next step of every error shows it."""
    instead: str = ""
    """What to do where it is not set, if that is not to set it."""
    default: str = ""
    """As it would be typed; empty: none."""
    required: str = ""
    """When it must be set; empty: never."""
    low: int | None = None
    high: int | None = None
    """Bounds in the unit of the kind, both included. Durations shorter than `low` cannot work, longer than `high` are typing errors."""
    negative_is_for_ever: bool = False
    choices: tuple[str, ...] = ()
    fate: Fate = Fate.HONOURED
    because: str = ""
    """Why it has no effect."""
