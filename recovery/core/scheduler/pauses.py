"""What shows the scheduler that it did not run for a while (SIGSTOP, a frozen machine): nobody has missed a limit that ended meanwhile.

What the others sent is not read yet. So the wait begins again, with its whole limit.
"""

from __future__ import annotations

from recovery.core.effects import Log

PAUSE_MS = 1_000
"""A timer that is so late shows that this process itself was paused. A busy loop is late by tens of milliseconds; at twice it a pause of
two seconds could cost a lease that ended within it."""


def was_paused(due_ms: int, now_ms: int) -> bool:
    """Was this process paused as a timer was due?"""
    return now_ms - due_ms >= PAUSE_MS


def begins_again(limit: str, due_ms: int, now_ms: int) -> Log:
    """Say that this limit counts from now on."""
    late_s = (now_ms - due_ms) / 1000
    return Log(
        "paused", f"this process was paused and looks {late_s:.1f} s late: {limit} begins again", warning=True
    )
