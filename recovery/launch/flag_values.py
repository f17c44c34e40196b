"""From what was typed behind a flag to its value: a reader for each kind, which refuses with a named error.

Every reader takes the flag's name and the text, and raises SettingError: SETTING_TYPE or SETTING_RANGE.
"""

from __future__ import annotations

import ipaddress
import re
import signal
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from recovery.errors import SettingError

_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)
_STREAMS = ("0", "1", "2", "3")
_DIGITS_MAX = 12
"""More digits than any bound has: what is cut off is out of every range anyway."""
_LOG_NAME_FIELDS = ("ip", "hostname")
"""What a --worker_log_name may hold in braces."""
_FLAG = "--"
"""What the next flag begins with: it is what stands behind a flag whose value was forgotten."""


_Choice = TypeVar("_Choice", bound=Enum)


def as_typed(_flag: str, text: str) -> str:
    """Read what says something only with other flags."""
    return text


class Flag(NamedTuple):
    """One flag of a command that starts jobs."""

    read: Callable[[str, str], Any] = as_typed
    """From (flag, text as typed) to the value; raises a named error."""
    help: str = ""
    aliases: tuple[str, ...] = ()
    default: object = None
    """For help; None: there is none, or that of the field."""
    field: str = ""
    """Of `JobSpec`, where the flag's value is all that is to be known for it."""


def refuse(flag: str, text: object, rule: str, example: str) -> SettingError:
    """The error of a value that is not of its kind.

    Args:
        flag: without its hyphens.
        text: what is wrong of it.
        rule: after "must be".
        example: a value that may be typed.
    """
    return SettingError(
        "SETTING_RANGE",
        field=f"--{flag}",
        value=text,
        rule=f"must be {rule}",
        next_step=f"Give, for example, --{flag}={example}.",
    )


def _whole(flag: str, text: str) -> int:
    try:
        return int(text[:_DIGITS_MAX])
    except ValueError:
        raise SettingError(
            "SETTING_TYPE",
            field=f"--{flag}",
            value=text,
            rule="must be a whole number",
            next_step=f"Give, for example, --{flag}=4.",
        ) from None


def number(minimum: int, maximum: int | None, rule: str, example: str) -> Callable[[str, str], int]:
    """Give a reader of whole numbers of a range.

    Args:
        minimum: the least.
        maximum: the greatest; None: there is none.
        rule: the range in words, after "must be".
        example: a value that may be typed.
    """

    def read(flag: str, text: str) -> int:
        value = _whole(flag, text)
        if value < minimum or (maximum is not None and value > maximum):
            raise refuse(flag, text, rule, example)
        return value

    return read


def switch(flag: str, text: str) -> bool:
    """Read True or False."""
    if text not in ("True", "False"):
        raise refuse(flag, text, "True or False", "True")
    return text == "True"


def one_of(kind: type[_Choice], example: str) -> Callable[[str, str], _Choice]:
    """Give a reader of the values of an enumeration.

    Args:
        kind: the enumeration.
        example: a value that may be typed.
    """

    def read(flag: str, text: str) -> _Choice:
        try:
            return kind(text)
        except ValueError:
            *others, last = (member.value for member in kind)
            raise refuse(flag, text, f"{', '.join(others)} or {last}", example) from None

    return read


def host(flag: str, text: str) -> str:
    """Read an address or a host name; an IPv6 address may stand in brackets."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        looks_like_an_address = re.fullmatch(r"[0-9.]+|.*:.*", text) is not None
        if looks_like_an_address or _HOST.fullmatch(text) is None:
            raise refuse(
                flag, text, "an IPv4 address, an IPv6 address or a host name", "192.168.1.10"
            ) from None
        return text
    return bare


def tail(flag: str, text: str) -> tuple[int, ...] | None:
    """Read the ranks whose log is shown; None: all."""
    if text == "-1":
        return None
    ranks = text.split(",")
    if not all(rank.isascii() and rank.isdigit() for rank in ranks):
        raise refuse(flag, text, "-1 for all, or ranks with commas", "0,3")
    return tuple(int(rank) for rank in ranks)


def tee(flag: str, text: str) -> tuple[int, ...] | None:
    """Read as torchrun does which streams are shown, of all ranks or by rank. One log holds both streams, so any means all of it."""
    if text in _STREAMS:
        return None if text != "0" else ()
    places = [place.partition(":") for place in text.split(",")]
    if not all(rank.isascii() and rank.isdigit() and streams in _STREAMS for rank, _, streams in places):
        raise refuse(flag, text, "0, 1, 2 or 3, or ranks with one of them", "0:3,1:3")
    return tuple(int(rank) for rank, _, streams in places if streams != "0")


def signals(flag: str, text: str) -> tuple[int, ...]:
    """Read names of signals, with or without SIG."""
    names = [name if name.startswith("SIG") else f"SIG{name}" for name in text.upper().split(",")]
    known = [signal.Signals.__members__.get(name) for name in names]
    # The launcher itself needs to know when its children end.
    taken = (None, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)
    numbers = tuple(int(number) for number in known if number is not None and number not in taken)
    if len(numbers) < len(names):
        raise refuse(flag, text, "names of signals that a process can handle, with commas", "SIGUSR1,SIGUSR2")
    return numbers


def log_name(flag: str, text: str) -> str:
    """Read a file name that may hold `_LOG_NAME_FIELDS` in braces."""
    left = text
    for field in _LOG_NAME_FIELDS:
        left = left.replace(f"{{{field}}}", "")
    is_plain = "/" not in text and "{" not in left and "}" not in left and text.isprintable()
    if not text or not is_plain or text.startswith(_FLAG):
        raise refuse(flag, text, "a file name that may hold {ip} and {hostname}", "worker_{hostname}")
    return text


def path(flag: str, text: str) -> Path:
    """Read a path."""
    if not text or "\0" in text or text.startswith(_FLAG):
        raise refuse(flag, text, "a path", "logs")
    return Path(text)


def said_twice(flag: str, other: str, value: object) -> SettingError:
    """The error of two flags that are both given, and say the same."""
    return SettingError(
        "SETTING_CONFLICT",
        field=f"--{flag}",
        value=value,
        rule=f"says the same as --{other}, which is given too",
        next_step="Give one of the two.",
    )


count = number(1, None, "greater than 0", "8")
"""Reads a number of workers."""
port = number(1024, 65535, "from 1024 to 65535", "8118")
"""Reads where the scheduler listens."""
node_rank = number(-1, None, "0 or more, or -1 for automatic ranks", "0")
"""Reads the position of a host."""
seconds = number(-(10**9), 10**9, "a number of seconds", "600")
"""Reads how long all workers are waited for."""
max_restarts = number(0, 1000, "from 0 to 1000", "3")
"""Reads how often a process is started again."""
standby_num = number(0, 1000, "from 0 to 1000", "1")
"""Reads how many processes wait."""
