"""How MindSpore's own connections are secured: by `set_ps_context`, which its documents call before `init()`, else as the engine's are."""

from __future__ import annotations

import logging
from typing import Any

import mindspore

from recovery import config
from recovery.tls import process_channels
from recovery.training import secure_channel

_logger = logging.getLogger("recovery.mindspore")
_OF_THE_ENGINE = ("config_file_path", "enable_ssl", "client_password", "server_password")

_given: dict[str, Any] = {}


def set_ps_context(**arguments: Any) -> None:
    """Call `mindspore.set_ps_context`, and again with the same arguments in the process that serves as MindSpore's scheduler.

    Every process that takes part in MindSpore's own connections needs them, its scheduler too, and only this call knows the
    passwords: MindSpore wipes its copy. Call it before `init()`.

    What it says of TLS counts for the engine's own connections too, as `recovery.set_ps_context` does: every process of the job must say
    the same, and a launcher and the commands hear it by flags and variables (MS_ENABLE_SSL, MS_CONFIG_FILE_PATH ...).

    Args:
        **arguments: as MindSpore names them (config_file_path, enable_ssl, client_password, server_password, ...).

    Raises:
        ValueError: MindSpore knows no such argument.
        SettingError: a value is not of its type.
        UsageError: the process has joined its job already.
    """
    mindspore.set_ps_context(**arguments)
    secure_channel.set_ps_context(
        **{name: arguments[name] for name in _OF_THE_ENGINE if name in arguments},
    )
    _given.update(arguments)


def secure_as_the_engine() -> None:
    """Give MindSpore what the variables say of TLS, where the script has said nothing of it: both sides' connections are alike."""
    if "enable_ssl" in _given:
        return
    settings = config.load().secure_channel
    if not process_channels.is_on(settings):
        return
    found = process_channels.arguments_of(settings)
    missing = [name for name, value in found.items() if value is None]
    if missing:
        _logger.warning(
            "event=channel_not_secured MindSpore's own connections are plain text: it needs %s in every process as well. "
            "Set MS_CLIENT_PASSWORD_FILE and MS_SERVER_PASSWORD_FILE, or call recovery.mindspore.set_ps_context",
            " and ".join(missing),
        )
        return
    mindspore.set_ps_context(**found)
    _given.update(found)


def given_arguments() -> dict[str, Any]:
    """Everything that was set."""
    return dict(_given)
