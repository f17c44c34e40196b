"""`cipher_list`: which entries are used, which are ignored with a warning, which are refused.

TLS 1.3 chooses its own suites, all of them good; the list is about TLS 1.2 only. What the documents of MindSpore list and what
is not offered here (finite-field DHE, keys agreed beforehand, a blank inside a name) is ignored by position, since every reader copies that list.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from recovery.errors import ChannelSettingError

ALLOWED = (
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-CCM",
    "ECDHE-ECDSA-AES256-CCM",
)
"""Forward secret, authenticated encryption. Those of MindSpore's nine that need no key agreed beforehand."""

_ENTRIES_MAX = 64
_SHOWN_CHARACTERS = 40
_WEAK = re.compile(r"NULL|EXP|\bADH|AECDH|RC4|RC2|DES|MD5|SECLEVEL|\bLOW\b|SEED|IDEA|SRP|COMPLEMENTOF", re.I)
_TLS_13 = re.compile(r"TLS_[A-Z0-9_]+")
_LISTED_ELSEWHERE = re.compile(
    r"(ECDHE|DHE)-(RSA|DSS|PSK)-(AES(128|256)-(GCM-SHA(256|384)|CCM)|CHACHA20-POLY1305)|ECDHE-PSK-CHACHA20-POLY1305"
)
"""Names that the documents list and that are not offered here."""


class Chosen(NamedTuple):
    """What becomes of a list."""

    names: tuple[str, ...]
    """In the order of the list, each once."""
    ignored: tuple[str, ...]
    """`6 'DHE-DSS-AES128-GCM-SHA256'`: position and entry."""


def choose(text: str, file: str) -> Chosen:
    """Read a list; empty: all that are allowed.

    Args:
        text: names with `:` between them.
        file: where it stands, for the error.

    Raises:
        ChannelSettingError: an entry is no protection; an entry is unknown, or none that can be used is left.
    """
    if not text:
        return Chosen(ALLOWED, ())
    entries = text.split(":")
    if len(entries) > _ENTRIES_MAX:
        raise _refused(file, f"has {len(entries)} entries, at most {_ENTRIES_MAX} are read")
    names: list[str] = []
    ignored: list[str] = []
    for position, entry in enumerate(entries, start=1):
        if entry in ALLOWED:
            names.append(entry)
        elif _is_ignored(entry):
            ignored.append(f"{position} {_shown(entry)!r}")
        else:
            raise _why_refused(file, position, entry)
    if not names:
        raise _refused(file, f"none of its {len(entries)} entries can be used")
    return Chosen(tuple(dict.fromkeys(names)), tuple(ignored))


def _is_ignored(entry: str) -> bool:
    without_blanks = "".join(entry.split())
    return without_blanks in ALLOWED or _LISTED_ELSEWHERE.fullmatch(without_blanks) is not None


def _why_refused(file: str, position: int, entry: str) -> ChannelSettingError:
    shown = _shown(entry)
    if _WEAK.search(entry):
        return ChannelSettingError(
            "CONFIG_CIPHER_WEAK", file=file, position=position, entry=shown, allowed=", ".join(ALLOWED)
        )
    if not entry:
        return _refused(file, f"entry {position} is empty")
    if entry[0] in "@!+-":
        return _refused(file, f"entry {position} {shown!r} is an operator, and only names are read")
    if _TLS_13.fullmatch(entry):
        return _refused(
            file,
            f"entry {position} {shown!r} is a suite of TLS 1.3, which chooses its own and cannot be set here",
        )
    return _refused(file, f"entry {position} {shown!r} is unknown")


def _refused(file: str, reason: str) -> ChannelSettingError:
    return ChannelSettingError("CONFIG_CIPHER", file=file, reason=reason, allowed=", ".join(ALLOWED))


def _shown(entry: str) -> str:
    return entry if len(entry) <= _SHOWN_CHARACTERS else f"{entry[:_SHOWN_CHARACTERS]}..."
