"""`recovery.set_ps_context`: what MindSpore's documents give to `set_ps_context` before `init()`, for scripts of any framework."""

from __future__ import annotations

from pathlib import Path

from recovery.errors import UsageError
from recovery.tls import process_channels

_joined = False
"""True from the moment on at which the channel is made."""


def set_ps_context(
    *,
    config_file_path: str | Path | None = None,
    enable_ssl: bool | None = None,
    client_password: str | None = None,
    server_password: str | None = None,
) -> None:
    """Say with which certificates this process speaks to the others. Call it before `init()` or `run`; it wins over the MS_* variables.

    Args:
        config_file_path: config.json.
        enable_ssl: whether connections are TLS. Every process of the job must say the same.
        client_password: of the PKCS#12 file that dials.
        server_password: of the one that listens; only a scheduler needs it.

    Raises:
        SettingError: a value is not of its type.
        UsageError: the process has joined its job already.
    """
    given = {
        "enable_ssl": enable_ssl,
        "config_file_path": config_file_path,
        "client_password": client_password,
        "server_password": server_password,
    }
    # `init()` hands on what it was given: nothing, most of the time.
    if _joined and any(value is not None for value in given.values()):
        raise UsageError(
            field="recovery.set_ps_context()",
            reason="came after the process had joined its job",
            next_step="Call it before recovery.init(), or before the function of @recovery.run.",
        )
    process_channels.give(**given)


def note_joined(joined: bool = True) -> None:
    """From now on it would be too late; False: the script begins again, and says the same again."""
    global _joined  # noqa: PLW0603 - a process joins once
    _joined = joined
