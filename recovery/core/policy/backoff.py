"""When to try again?"""

from __future__ import annotations

from recovery.core.rules import Rules


def next_dial_ms(attempt: int, jitter: float, rules: Rules) -> int:
    """Wait before dial number `attempt` (0-based): doubling from the smallest wait to the largest, half of it random.

    The random half keeps a thousand workers from dialling a restarted scheduler in the same instant.

    Args:
        attempt: how many dials have failed since the last success.
        jitter: random number in [0, 1).
        rules: the bounds.
    """
    full = min(rules.backoff_ms_max, rules.backoff_ms_min * 2 ** min(attempt, 16))
    return int(full / 2 + full / 2 * jitter)


def next_heartbeat_ms(jitter: float, rules: Rules) -> int:
    """Wait before the next heartbeat: uniform between the bounds, so that nodes do not beat together."""
    return int(rules.heartbeat_ms_min + (rules.heartbeat_ms_max - rules.heartbeat_ms_min) * jitter)
