"""The file `job_token` of the recovery path: a random secret that every process of the job can read, and nobody else.

Whichever process of the job comes first makes it, whole: it gets its name only once it is written. It stays as long as the directory does.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from recovery import file_systems
from recovery.config.reader import OFF
from recovery.config.secret import Secret
from recovery.errors import RecoveryPathError
from recovery.store.paths import fsync_directory, lacking, prepare_directory, refused

NAME = "job_token"
_BYTES = 32
_BYTES_MAX = 4_096
_TOKEN = re.compile(r"[!-~]{16,256}", re.ASCII)
_NEXT_STEP = "Remove it while no process of the job runs: the next one makes a new one."


def token_of(given: Secret | None, recovery_path: Path | None) -> str | None:
    """Give the job's token as a process of the job has it.

    Args:
        given: MS_JOB_TOKEN; None: unset.
        recovery_path: where the job's state is; None: nowhere, so that unset means none.

    Returns:
        The token; None: the network is trusted.

    Raises:
        RecoveryPathError: as for `shared`.
    """
    if given is not None:
        return None if given.reveal() == OFF else given.reveal()
    return None if recovery_path is None else shared(recovery_path)


def source_of(given: Secret | None, recovery_path: Path | None) -> Callable[[], str | None] | None:
    """Give what reads the token again where it lies in a file; None: it does not, and is what it was at the start.

    Args:
        given: MS_JOB_TOKEN; None: unset.
        recovery_path: where the job's state is; None: nowhere.
    """
    return None if given is not None or recovery_path is None else partial(stored, recovery_path)


def shared(recovery_path: Path) -> str:
    """Give the token of this path; made if there is none.

    Raises:
        RecoveryPathError: the directory cannot be used, or what lies there is not a secret of this user alone.
    """
    path = recovery_path / NAME
    found = stored(recovery_path)
    if found is not None:
        return found
    prepare_directory(recovery_path)
    try:
        _make(path, secrets.token_hex(_BYTES))
    except OSError as error:
        raise refused(recovery_path, error) from error
    made = stored(recovery_path)
    if made is None:
        raise _unusable(path, "it was removed at once")
    return made


def stored(recovery_path: Path) -> str | None:
    """Give the token of this path; None: there is no file.

    Raises:
        RecoveryPathError: what lies there cannot be read, or is not a secret of this user alone.
    """
    path = recovery_path / NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(path, f"it cannot be opened ({error.strerror})") from error
    try:
        _check(path, os.fstat(descriptor))
        text = os.read(descriptor, _BYTES_MAX).decode("ascii", "replace").strip()
    except OSError as error:
        raise _unusable(path, f"it cannot be read ({error.strerror})") from error
    finally:
        os.close(descriptor)
    if _TOKEN.fullmatch(text) is None:
        raise _unusable(path, "it holds no token")
    return text


def _check(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise _unusable(path, "it is not a regular file")
    if facts.st_uid not in (os.geteuid(), 0):
        raise _unusable(path, f"it belongs to user {facts.st_uid}")
    if facts.st_mode & 0o077:
        raise _unusable(
            path, f"others may read or write it (mode {stat.S_IMODE(facts.st_mode):04o}, not 0600)"
        )


def _make(path: Path, token: str) -> None:
    """Write it under another name, and link it in: of several processes that come first one is first, and the others read its token."""
    written = path.with_name(f".{NAME}.{secrets.token_hex(8)}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if lacks := file_systems.without_modes(descriptor):
                raise lacking(path.parent, lacks)
            file.write(f"{token}\n")
            file.flush()
            os.fsync(file.fileno())
        _link(written, path)
        fsync_directory(path.parent)
    except FileExistsError:
        return
    finally:
        written.unlink()


def _link(written: Path, path: Path) -> None:
    try:
        os.link(written, path)
    except OSError as error:
        if error.errno in file_systems.NO_LINKS:
            raise lacking(path.parent, file_systems.WITHOUT_LINKS) from error
        raise


def _unusable(path: Path, reason: str) -> RecoveryPathError:
    return RecoveryPathError(path=str(path), reason=reason, next_step=_NEXT_STEP)
