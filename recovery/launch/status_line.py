"""One line at the bottom of a terminal while one waits: ranks up, step, steps per second, generation."""

from __future__ import annotations

import asyncio
from typing import Any

from rich.status import Status

from recovery import clock
from recovery.core.records import NodeState
from recovery.launch import console
from recovery.transport import inspection_client
from recovery.transport.access import Access

_POLL_S = 1.0


class Pace:
    """Steps per second, over the time between the last two changes that were seen."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._step, self._at_ms, self._per_s = 0, 0, 0.0

    def note(self, step: int, now_ms: int) -> float:
        """Take the step as seen now; gives the pace."""
        if step != self._step:
            if self._at_ms and step > self._step:
                self._per_s = (step - self._step) * 1000 / max(1, now_ms - self._at_ms)
            self._step, self._at_ms = step, now_ms
        return self._per_s


def line_of(status: dict[str, Any], pace: Pace, now_ms: int) -> str:
    """The line for a view of the job."""
    workers = [node for node in status["nodes"] if node["role"] == "worker"]
    # While the job forms nobody has a rank; then standbys and ids of the past have none.
    ranked = [node for node in workers if node.get("rank") is not None] or workers
    up = sum(node["state"] == NodeState.LIVE.value for node in ranked)
    step = max((node["step"] for node in workers), default=0)
    parts = [
        f"{up}/{status['world_size']} ranks",
        f"step {step}",
        f"{pace.note(step, now_ms):.1f} step/s",
        f"generation {status['generation']}",
        status["state"],
    ]
    return "  ".join(parts) + (f": {status['reason']}" if status["reason"] else "")


async def show(host: str, port: int, access: Access) -> None:
    """Keep the line up to date until cancelled."""
    pace = Pace()
    with Status("starting", console=console.console, spinner="line") as shown:
        while True:
            try:
                status = await inspection_client.ask(host, port, "/status", access=access)
                shown.update(line_of(status, pace, clock.monotonic_ms()))
            except inspection_client.NoAnswerError as error:
                shown.update(f"no answer from the scheduler: {error}")
            await asyncio.sleep(_POLL_S)
