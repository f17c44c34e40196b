"""Reads one variable at a time, by its row of `recovery.config.table`: one reader per kind, and the error that names what to type instead."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from recovery.config.foreign_launchers import StartedBy, recognise
from recovery.config.secret import NOT_SHOWN, Secret
from recovery.config.setting import Fate, Setting, SettingKind
from recovery.config.table import BY_NAME, SETTINGS
from recovery.core.ids import NodeId
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.errors import SettingError

OFF = "off"
"""A secret that is set to this is none."""
_SHOWN_CHARACTERS = 80
"""So much of a wrong value is repeated in its error: enough to recognise it, little enough for one line."""
_DIGITS_MAX = 12
"""More digits than any bound has. Python refuses to convert beyond 4,300, and nobody means them."""
_HOST_CHARACTERS_MAX = 253
_PLACE = r"[^\s@?#/][^\s@?#]*"
_URL = re.compile(rf"(?!file:|local:)[a-z][a-z0-9+.-]*://{_PLACE}|(?:file|local|hdfs):///+{_PLACE}")
"""Without a place behind it a scheme would be read as the name of a directory. A path alone is one on the disk, and on the HDFS that the host is set up for."""
_WEB_ADDRESS = re.compile(r"http://[^\s@?#/]+/[^\s@#]*")
_SECRET = re.compile(r"[!-~]{16,256}", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"(-?)([0-9]+)(?:\.([0-9]{1,3}))?", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the value of one variable comes from."""

    name: str
    value: str
    """As typed; empty when unset without a default."""
    source: str
    """`environment`; `mpirun` or `rank table`, whose variables are translated; or `default`."""
    rule: str
    fate: Fate


class Reader:
    """Reads one variable at a time, by its row."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Take the variables, and those that another start method is translated into.

        Raises:
            SettingError: mpirun or a rank table has started this process in a way that cannot be read.
            UsageError: as for `recognise`.
        """
        self.start = recognise(environ)
        self._environ = {**environ, **self.start.variables}

    @classmethod
    def of_one(cls, name: str, environ: Mapping[str, str]) -> Reader:
        """Of one variable alone: for a launcher or a command, where the others are those of the processes of a job. Raises as `Reader`."""
        return cls({name: environ[name]} if name in environ else {})

    def given(self, name: str) -> bool:
        """True when the variable is set, even to nothing."""
        return name in self._environ

    def text(self, name: str, *, required: bool | None = None) -> str:
        """The text of a variable, or its default; empty when unset without one."""
        row = BY_NAME[name]
        value = self._environ.get(name)
        if value:
            return value
        if value is None and not (bool(row.required) if required is None else required):
            return row.default
        also_when = f" and be set {row.required}" if value is None else ""
        raise SettingError(
            "SETTING_MISSING",
            field=name,
            state="not set" if value is None else "empty",
            value="",
            rule=row.rule + also_when,
            next_step=_next_step(row) if value is not None or not row.instead else row.instead,
        )

    def choice(self, name: str) -> str:
        """One of the row's choices."""
        text = self.text(name)
        if text not in BY_NAME[name].choices:
            raise _refused("SETTING_RANGE", BY_NAME[name], text)
        return text

    def switch(self, name: str) -> bool:
        """True for exactly "1"."""
        return self.choice(name) == "1"

    def whole(self, name: str, *, also: int | None = None) -> int:
        """A whole number within the row's bounds, or `also`."""
        row, text = BY_NAME[name], self.text(name)
        if _WHOLE.fullmatch(text) is None:
            raise _refused("SETTING_TYPE", row, text)
        if row.negative_is_for_ever and text.startswith("-") and text.strip("-0"):
            return -1
        if len(text) > _DIGITS_MAX:
            raise _refused("SETTING_RANGE", row, text)
        number = int(text)
        if number != also and not _within(row, number, 1):
            raise _refused("SETTING_RANGE", row, text)
        return number

    def whole_ms(self, name: str) -> int | None:
        """A whole number of seconds as milliseconds; None: negative, which means for ever."""
        seconds = self.whole(name)
        return None if seconds < 0 else seconds * 1_000

    def bounded_ms(self, name: str) -> int:
        """A whole number of seconds as milliseconds, of a row that knows no for ever."""
        return self.whole(name) * 1_000

    def decimal_ms(self, name: str) -> int:
        """Seconds with up to three decimals, as milliseconds. No float on the way: 0.3 s is 300 ms."""
        row, text = BY_NAME[name], self.text(name)
        match = _DECIMAL.fullmatch(text)
        if match is None:
            raise _refused("SETTING_TYPE", row, text)
        sign, seconds, decimals = match.groups(default="")
        if sign or len(seconds) > _DIGITS_MAX:
            raise _refused("SETTING_RANGE", row, text)
        number_ms = int(seconds) * 1_000 + int(decimals.ljust(3, "0"))
        if not _within(row, number_ms, 1_000):
            raise _refused("SETTING_RANGE", row, text)
        return number_ms

    def decimal_ms_or(self, word: str, name: str) -> int | None:
        """As `decimal_ms`; None: it is this word."""
        return None if self.text(name) == word else self.decimal_ms(name)

    def node_id(self, name: str, *, required: bool) -> NodeId | None:
        """A node id, or None when unset and not required."""
        text = self.text(name, required=required)
        if not text:
            return None
        if re.match(NODE_ID_PATTERN, text) is None:
            raise _refused("SETTING_TYPE", BY_NAME[name], text)
        return NodeId(text)

    def host(self, name: str) -> str:
        """An IP address or host name, IPv6 without its brackets."""
        text = self.text(name)
        bare = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
        if not (_is_address(bare) or _is_host_name(bare)):
            raise _refused("SETTING_TYPE", BY_NAME[name], text)
        return bare

    def address(self, name: str) -> str:
        """An IP address, or empty when unset."""
        text = self.text(name)
        if text and not _is_address(text):
            raise _refused("SETTING_TYPE", BY_NAME[name], text)
        return text

    def path(self, name: str, *, required: bool) -> Path | None:
        """An absolute path, or None when unset and not required."""
        text = self.text(name, required=required)
        if not text:
            return None
        if text != text.strip() or not text.isprintable():
            raise _refused("SETTING_TYPE", BY_NAME[name], text)
        try:
            return Path(text).absolute()
        except OSError as gone:
            raise SettingError(
                "SETTING_RANGE",
                field=name,
                value=_shown(text),
                rule=f"is relative, and the working directory cannot be read ({gone.strerror})",
                next_step=f"Start from a directory that exists, or set {name} to an absolute path.",
            ) from gone

    def url(self, name: str) -> str:
        """A URL of a place for files, or empty when unset."""
        return self._matching(name, _URL)

    def web_address(self, name: str) -> str:
        """An http:// URL of a host and a path, or empty when unset."""
        return self._matching(name, _WEB_ADDRESS)

    def _matching(self, name: str, pattern: re.Pattern[str]) -> str:
        text = self.text(name, required=False)
        if text and (pattern.fullmatch(text) is None or not text.isprintable()):
            # What was meant as a password is not shown.
            raise _refused("SETTING_TYPE", BY_NAME[name], text if "@" not in text else NOT_SHOWN)
        return text

    def secret(self, name: str) -> Secret | None:
        """A secret, `off` as it stands, or None when unset."""
        text = self.text(name)
        if text and text != OFF and _SECRET.fullmatch(text) is None:
            raise _refused("SETTING_TYPE", BY_NAME[name], NOT_SHOWN)
        return Secret(text) if text else None

    def sources(self) -> tuple[Source, ...]:
        """Where each value comes from, for people."""
        return tuple(
            Source(
                name=row.name,
                value=self._shown(row),
                source=self._source(row.name),
                rule=row.rule,
                fate=row.fate,
            )
            for row in SETTINGS
        )

    def _shown(self, row: Setting) -> str:
        value = self._environ.get(row.name, row.default)
        return NOT_SHOWN if row.kind is SettingKind.SECRET and value not in ("", OFF) else value

    def _source(self, name: str) -> str:
        if name in self.start.variables:
            return self.start.started_by.value
        return StartedBy.DYNAMIC_CLUSTER.value if self.given(name) else "default"


def _within(row: Setting, number: int, unit: int) -> bool:
    """True when the number, in 1/`unit` of the row's unit, is within its bounds."""
    return (row.low is None or row.low * unit <= number) and (row.high is None or number <= row.high * unit)


def _is_address(text: str) -> bool:
    """True for an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return text.isascii() and text.isprintable()


def _is_host_name(text: str) -> bool:
    """True for a name that could resolve. A last label of digits alone is a mistyped address."""
    labels = text.removesuffix(".").split(".")
    return (
        len(text) <= _HOST_CHARACTERS_MAX
        and all(_LABEL.fullmatch(label) for label in labels)
        and not labels[-1].isdecimal()
    )


def _shown(text: str) -> str:
    """A value as an error repeats it."""
    return (
        text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
    )


def _next_step(row: Setting) -> str:
    use_default = f", or unset it to get {row.default}" if row.default else ""
    return f"Set it, for example {row.name}={row.example}{use_default}."


def _refused(code: str, row: Setting, text: str) -> SettingError:
    return SettingError(code, field=row.name, value=_shown(text), rule=row.rule, next_step=_next_step(row))
