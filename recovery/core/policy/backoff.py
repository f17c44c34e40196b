"""When to try again, and for how long?"""

from __future__ import annotations

from recovery.core.phases import PhaseReport
from recovery.core.rules import Rules

_NEXT_GENERATION_MS_MIN, _NEXT_GENERATION_MS_MAX = 100, 10_000
_LONG_PHASE_MS = 1_000
"""A step that takes longer is told of each second."""
SHUTDOWN_GRACE_MS = 2_000
"""How long a leaving process waits for the scheduler to take its last message."""


def next_dial_ms(attempt: int, jitter: float, rules: Rules) -> int:
    """Wait before dial number `attempt` (0-based): doubling from the smallest wait to the largest, half of it random (`jitter`: in [0, 1)).

    The random half keeps a thousand workers from dialling a restarted scheduler in the same instant.
    """
    full = min(rules.backoff_ms_max, rules.backoff_ms_min * 2 ** min(attempt, 16))
    return int(full / 2 + full / 2 * jitter)


def next_generation_ms(times: int) -> int:
    """Wait before the next generation, where so many in a row ended alike: none behind the first, then doubling.

    All of them are stored, and a world that breaks before its first step breaks ten times in a second.
    """
    if times < 2:  # noqa: PLR2004 - "in a row"
        return 0
    return min(_NEXT_GENERATION_MS_MAX, _NEXT_GENERATION_MS_MIN << min(times - 2, 16))


def next_heartbeat_ms(jitter: float, rules: Rules, phase: PhaseReport | None = None) -> int:
    """Wait before the next heartbeat: uniform between the bounds, so that nodes do not beat together.

    What the main thread does is told each second once it lasts (`phase`), where the scheduler judges by that.
    """
    usual = int(rules.heartbeat_ms_min + (rules.heartbeat_ms_max - rules.heartbeat_ms_min) * jitter)
    is_long = rules.step_timeout_ms is None and phase is not None and phase.lasting_ms >= _LONG_PHASE_MS
    return min(usual, _LONG_PHASE_MS) if is_long else usual


def unreachable_limit_ms(rules: Rules, *, leaving: bool, member: bool, trains_on: bool) -> int | None:
    """How long the scheduler may be unreachable; None: for ever.

    A worker that waits for others: as long as the cluster forms. One that trains: for ever with recovery, since training needs no scheduler.
    """
    if leaving:
        return SHUTDOWN_GRACE_MS
    if not member or (rules.recovery_enabled and not trains_on):
        return rules.topology_timeout_ms
    return None if rules.recovery_enabled else rules.heartbeat_retry_timeout_ms
