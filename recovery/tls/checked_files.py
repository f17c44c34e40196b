"""Reads the files of the secure channel: bounded, without waiting, and only where nobody else could have put them."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path

from recovery.errors import ChannelFileError

BYTES_MAX = 1 << 20
"""Of a bundle or a list. A revocation list of 20,000 entries is as long; a bundle has 4 KiB."""
PASSWORD_BYTES_MAX = 1_023
"""As MindSpore bounds it."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def read_secret(path: Path, field: str, *, bytes_max: int = BYTES_MAX) -> bytes:
    """Read what nobody but this user may read: no link, mode 0600 or less, in a directory that others cannot write.

    Args:
        path: absolute.
        field: the key or variable that names it, for the error.
        bytes_max: longer files are refused, in bytes.

    Raises:
        ChannelFileError: the kind says what is wrong with it.
    """
    return _read(path, field, bytes_max, _OTHERS, "others than the owner may read or change it", links=False)


def read_public(path: Path, field: str, *, bytes_max: int = BYTES_MAX) -> bytes:
    """Read what everybody may know and only the owner or root may change; as for `read_secret` otherwise. A link is followed."""
    return _read(path, field, bytes_max, _OTHERS_WRITE, "others than the owner may change it", links=True)


def read_password(path: Path, field: str) -> bytes:
    """Read a password: one line of UTF-8, its end of line taken off.

    Raises:
        ChannelFileError: the file is not one that a secret is read from, or it holds no single line.
    """
    refused = partial(ChannelFileError, "PASSWORD_FILE", file=str(path), field=field)
    data = read_secret(path, field, bytes_max=PASSWORD_BYTES_MAX + 2)
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        raise refused(reason="is empty")
    if any(byte in line for byte in (b"\n", b"\r", b"\0")):
        raise refused(reason="holds more than one line")
    try:
        line.decode()
    except UnicodeDecodeError:
        raise refused(reason="is not UTF-8") from None
    return line


def _read(path: Path, field: str, bytes_max: int, forbidden: int, rule: str, *, links: bool) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    too_big = partial(ChannelFileError, "FILE_TOO_BIG", file=str(path), field=field, most=bytes_max)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise _not_opened(path, field, error, links=links) from error
    try:
        facts = os.fstat(descriptor)
        _check(path, field, facts, forbidden, rule)
        if facts.st_size > bytes_max:
            raise too_big(size=facts.st_size)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise ChannelFileError("FILE_MISSING", file=str(path), field=field, reason=error.strerror) from error
    finally:
        os.close(descriptor)
    if len(data) > bytes_max:
        raise too_big(size=f"more than {bytes_max}")
    return data


def _not_opened(path: Path, field: str, error: OSError | ValueError, *, links: bool) -> Exception:
    if isinstance(error, ValueError):
        return ChannelFileError("FILE_MISSING", file=ascii(str(path)), field=field, reason=str(error))
    if error.errno == errno.ELOOP and not links:
        return ChannelFileError("FILE_SYMLINK", file=str(path), field=field)
    if error.errno == errno.ENXIO:
        return ChannelFileError("FILE_NOT_REGULAR", file=str(path), field=field, kind="socket")
    return ChannelFileError("FILE_MISSING", file=str(path), field=field, reason=error.strerror)


def _check(path: Path, field: str, facts: os.stat_result, forbidden: int, rule: str) -> None:
    refused = partial(ChannelFileError, file=str(path), field=field)
    for is_kind, kind in _KINDS:
        if is_kind(facts.st_mode):
            raise refused("FILE_NOT_REGULAR", kind=kind)
    user = os.geteuid()
    if facts.st_uid not in (user, 0):
        raise refused("FILE_OWNER", owner=facts.st_uid, user=user)
    if facts.st_mode & forbidden:
        wanted = "0600" if forbidden == _OTHERS else "go-w"
        raise refused("FILE_PERM", mode=_mode(facts.st_mode), rule=rule, wanted=wanted)
    place = path.parent
    above = place.stat().st_mode
    if above & stat.S_IWOTH and not above & stat.S_ISVTX:
        everybody = "everybody may put another file there"
        refused = partial(ChannelFileError, "FILE_PERM", file=str(place), field=f"where {field} lies")
        raise refused(mode=_mode(above), rule=everybody, wanted="o-w")


def _mode(mode: int) -> str:
    return f"{stat.S_IMODE(mode):04o}"
