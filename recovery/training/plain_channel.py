"""The engine's own connections are plain text. Who asks a framework for TLS is told so: the framework secures its own only."""

from __future__ import annotations

import logging

_logger = logging.getLogger("recovery.training")
_SAID = (
    "event=channel_not_secured %s secures the connections of %s, not the engine's own: what goes to MS_SCHED_HOST:MS_SCHED_PORT "
    "(plans, resume tokens, paths; no weights) is plain text. Keep that port inside a network that you trust"
)


def warn_of(setting: str, framework: str) -> None:
    """Say that a setting does not cover us.

    Args:
        setting: as the script wrote it: `enable_ssl=True`.
        framework: whose connections it does cover.
    """
    _logger.warning(_SAID, setting, framework)
