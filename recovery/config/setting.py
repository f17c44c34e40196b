"""What a row of the table of settings says of one variable."""

from __future__ import annotations

from enum import Enum

import msgspec
from typing_extensions import Required, TypedDict, Unpack


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


class _Rest(TypedDict, total=False):
    """What a row says beside what follows from its kind."""

    meaning: Required[str]
    example: str
    """Not said: the default."""
    default: str
    required: str
    instead: str


def choice(name: str, choices: tuple[str, ...], **rest: Unpack[_Rest]) -> Setting:
    """One of some words."""
    rest.setdefault("example", rest.get("default", ""))
    rule = f"must be {', '.join(choices[:-1])} or {choices[-1]}"
    return Setting(name=name, kind=SettingKind.CHOICE, rule=rule, choices=choices, **rest)


def switch(
    name: str, *, meaning: str, example: str = "0", on: str = "on", off: str = "off", default: str = "0"
) -> Setting:
    """0 or 1."""
    return msgspec.structs.replace(
        choice(name, ("0", "1"), meaning=meaning, example=example, default=default),
        rule=f"must be 1 ({on}) or 0 ({off})",
    )


_NUMBERS = {
    SettingKind.INTEGER: ("a whole number", ""),
    SettingKind.SECONDS: ("a whole number of seconds", ""),
    SettingKind.DECIMAL_SECONDS: ("a number of seconds", ", with at most three decimals"),
}


def number(
    kind: SettingKind,
    name: str,
    low: int,
    high: int,
    *,
    negative: str = "",
    beside: str = "",
    **rest: Unpack[_Rest],
) -> Setting:
    """A number between two bounds, which its rule names.

    Args:
        kind: of it.
        name: of the variable.
        low: the least.
        high: the greatest.
        negative: what a negative one is for; empty: none is taken.
        beside: what the rule says besides.
        rest: as of any row.
    """
    what, how = _NUMBERS[kind]
    also = f", or a negative one for {negative}" if negative else ""
    rest.setdefault("example", rest.get("default", ""))
    return Setting(
        name=name,
        kind=kind,
        rule=f"must be {what} from {low} to {high}{how}{also}{beside}",
        low=low,
        high=high,
        negative_is_for_ever=bool(negative),
        **rest,
    )


def path(what: str, name: str, **rest: Unpack[_Rest]) -> Setting:
    """The path of a file or a directory."""
    rule = f"must be the path of a {what}, in printable characters, without spaces at its ends"
    return Setting(name=name, kind=SettingKind.PATH, rule=rule, **rest)


def node_id(name: str, **rest: Unpack[_Rest]) -> Setting:
    """The name of a process in the cluster."""
    rule = "must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and begin with a letter or digit"
    rest.setdefault("example", "worker_0")
    return Setting(name=name, kind=SettingKind.NODE_ID, rule=rule, **rest)
