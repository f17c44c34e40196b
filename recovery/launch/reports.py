"""Tells the scheduler how a process ended: then it knows why, and need not wait whether the process comes back."""

from __future__ import annotations

import contextlib
from typing import Protocol

from recovery.core.ids import NodeId
from recovery.core.messages import Exited
from recovery.core.rules import Rules
from recovery.transport.client import Client

_DIAL_S = 2.0
"""The scheduler may be dead itself: then it learns from the node's next life what there is to know."""


class Report(Protocol):
    """Tells how a process ended. It never raises: a report is help, not duty."""

    async def __call__(self, node_id: NodeId, pid: int, reason: str, *, gives_up: bool) -> None:
        """Tell it.

        Args:
            node_id: whose process.
            pid: its process id.
            reason: how it ended.
            gives_up: it is not started again, so that the job cannot go on.
        """


def reporter(host: str, port: int) -> Report:
    """Give a function that tells the scheduler at this address."""

    async def report(node_id: NodeId, pid: int, reason: str, *, gives_up: bool) -> None:
        client = Client(
            host=host,
            port=port,
            rules=Rules(worker_count=1),
            on_message=lambda message: None,
            on_lost=lambda why: None,
        )
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no thread to look up a name
            await client.connect(_DIAL_S)
            client.send(Exited(node_id=node_id, pid=pid, reason=reason, gives_up=gives_up))
            await client.close()

    return report
