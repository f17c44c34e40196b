"""How long a worker tries to reach a scheduler that it does not reach."""

from __future__ import annotations

from recovery.core.rules import Rules
from recovery.core.worker.departure import SHUTDOWN_GRACE_MS


def unreachable_limit_ms(rules: Rules, *, leaving: bool, member: bool, trains_on: bool) -> int | None:
    """A worker that waits for others: as long as the cluster forms. One that trains: for ever with recovery, since training needs no scheduler.

    Args:
        rules: durations.
        leaving: the process ends.
        member: it was admitted once.
        trains_on: one step follows the other without a scheduler.
    """
    if leaving:
        return SHUTDOWN_GRACE_MS
    if not member or (rules.recovery_enabled and not trains_on):
        return rules.topology_timeout_ms
    return None if rules.recovery_enabled else rules.heartbeat_retry_timeout_ms
