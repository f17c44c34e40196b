"""The engine's own connections are plain text. A script that asks its framework for TLS is warned: it secures the framework's own only."""

from __future__ import annotations

import ipaddress
import logging

from recovery import config
from recovery.errors import SettingError, UsageError

_logger = logging.getLogger("recovery.training")
_WARNING = (
    "event=channel_not_secured %s secures the connections of %s, not the engine's own: what goes to MS_SCHED_HOST:MS_SCHED_PORT "
    "(plans, resume tokens, paths; no weights) is plain text. It stays on this host"
)


def check(setting: str, framework: str) -> None:
    """Refuse a setting that promises a secure channel where ours would cross a network in plain text.

    On a loopback address nothing leaves the host, so a warning is enough there.

    Args:
        setting: as the script wrote it, for example `enable_ssl=True`.
        framework: the one whose connections it does cover.

    Raises:
        UsageError: MS_SCHED_HOST is no loopback address.
    """
    try:
        host = config.load().sched_host
    except SettingError:
        # `init` reports what is wrong with it.
        host = ""
    if host and not _is_loopback(host):
        raise UsageError(
            field=setting,
            reason=f"it secures the connections of {framework}, not the engine's own, which would cross the network to "
            f"MS_SCHED_HOST={host} in plain text (plans, resume tokens, paths; no weights)",
            next_step="Leave it out inside a network that you trust, or run the job on one host with MS_SCHED_HOST=127.0.0.1.",
        )
    _logger.warning(_WARNING, setting, framework)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
