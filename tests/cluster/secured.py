"""A job whose connections are encrypted, and whose secrets are known to the test that looks for them afterwards."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

from recovery import clock
from recovery.store import job_token_file
from recovery.tls import issue

_DAYS = 30
_LOOK_S = 0.1
_KEEP_SECRETS = (issue.PASSWORD, job_token_file.NAME)


def with_tls(directory: Path, *hosts: str) -> dict[str, str]:
    """Variables of all processes of a job over TLS, with an authority of its own.

    Args:
        directory: where `certs` is made.
        *hosts: where the scheduler is reached; without one, on this host alone.
    """
    place = directory / "certs"
    issue.create(place, nodes=(), hosts=hosts or ("127.0.0.1",), days=_DAYS, now=clock.utc_now())
    return {
        "MS_ENABLE_SSL": "1",
        "MS_CONFIG_FILE_PATH": str(place / issue.CONFIG),
        "MS_CLIENT_PASSWORD_FILE": str(place / issue.PASSWORD),
        "MS_SERVER_PASSWORD_FILE": str(place / issue.PASSWORD),
    }


def password_of(variables: Mapping[str, str]) -> str:
    """What opens the files that `with_tls` has made."""
    return Path(variables["MS_CLIENT_PASSWORD_FILE"]).read_text().strip()


def new_token() -> str:
    """A job token that stands nowhere else."""
    return f"canary{secrets.token_hex(16)}"


def files_with(directory: Path, *canaries: str) -> list[Path]:
    """Files below a directory that hold one of these secrets, but for those that are there to keep them."""
    found = []
    for path in sorted(directory.rglob("*")):
        # Files of a job that runs come and go.
        with contextlib.suppress(FileNotFoundError):
            if path.name not in _KEEP_SECRETS and path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                found += [path for canary in canaries if canary.encode() in content]
    return found


class CommandLines:
    """Looks at the command lines of all processes of this machine for secrets, as anybody on it may. Use as a context manager."""

    def __init__(self, *canaries: str) -> None:
        """Look for these."""
        self._canaries = [canary.encode() for canary in canaries]
        self.looks = 0
        self.found: list[bytes] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            for pid in psutil.pids():
                # It may end meanwhile.
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                    self.found += [line for canary in self._canaries if canary in line]
            self.looks += 1

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(10)
