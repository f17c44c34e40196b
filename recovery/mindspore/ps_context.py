"""`set_ps_context`, which MindSpore's documents call before `init()`: handed on to MindSpore, here and in its scheduler."""

from __future__ import annotations

from typing import Any

import mindspore

from recovery.training import unsecured_channel

_given: dict[str, Any] = {}


def set_ps_context(**arguments: Any) -> None:
    """Call `mindspore.set_ps_context`, and again with the same arguments in the process that serves as MindSpore's scheduler.

    Every process that takes part in MindSpore's own connections needs them, its scheduler too, and only this call knows the
    passwords: MindSpore wipes its copy. Call it before `init()`.

    `enable_ssl=True` secures MindSpore's connections. The engine's own stay plain text: a warning (`channel_not_secured`) says so where they
    stay on one host, and where they would cross a network the call is refused.

    Args:
        **arguments: as MindSpore names them (config_file_path, enable_ssl, client_password, server_password, ...).

    Raises:
        ValueError: MindSpore knows no such argument.
        UsageError: `enable_ssl=True` with an MS_SCHED_HOST that is no loopback address.
    """
    if arguments.get("enable_ssl"):
        unsecured_channel.check("enable_ssl=True", "MindSpore")
    mindspore.set_ps_context(**arguments)
    _given.update(arguments)


def given() -> dict[str, Any]:
    """Everything that was set."""
    return dict(_given)
