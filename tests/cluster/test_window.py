"""The rejoin window as it is: 30 seconds."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from recovery import clock
from recovery.core.messages import FromScheduler, Refused
from recovery.core.principals import PrincipalKind
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from recovery.store.job_token_file import stored
from recovery.transport.access import Access
from recovery.transport.client import Client
from recovery.transport.job_token import Caller, JobToken
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed
from tests.transport.wire import HOST, register, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

WINDOW_MS = 30_000
ASKS_AT_MS = 10_000
"""Far from both ends of the window: a slow machine asks late, and still within it."""
ROUNDED_MS = 50
"""Times of two clocks, cut off to milliseconds."""


def test_eight_workers_one_killed_is_refused_until_thirty_seconds(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, workers=8, window_s=30.0, environment={"JOB_HELD_STEP": "30"}) as cluster:
        cluster.start()
        cluster.wait_step(14)
        survivors = {name: process.pid for name, process in cluster.processes.items() if name != "worker_5"}
        # Its connection closes after this, and before the event of it is written.
        killed_ms = clock.wall_ms()
        cluster.kill_and_relaunch("worker_5")
        cluster.go_on()
        cluster.wait_event(EventKind.NODE_LOST, "worker_5")
        [suspected] = cluster.events(EventKind.NODE_SUSPECTED, "worker_5")
        cluster.wait(lambda: clock.wall_ms() >= killed_ms + ASKS_AT_MS, "a third of the window")
        asked_ms = clock.wall_ms()
        token = JobToken.of(stored(tmp_path / "recovery"))
        refused = asyncio.run(ask_to_be_let_in(cluster.port, "worker_5", workers=8, token=token))
        answered_ms = clock.wall_ms()
        assert refused.code == "REJOIN_WINDOW", "let in before 30 s"
        assert refused.retry_after_ms is not None
        assert asked_ms + refused.retry_after_ms <= suspected.wall_ms + WINDOW_MS + ROUNDED_MS
        assert answered_ms + refused.retry_after_ms >= killed_ms + WINDOW_MS - ROUNDED_MS

        cluster.wait_event(EventKind.NODE_ADMITTED, "worker_5", count=2)
        admitted = cluster.events(EventKind.NODE_ADMITTED, "worker_5")[-1]
        assert admitted.wall_ms >= killed_ms + WINDOW_MS - ROUNDED_MS
        assert (admitted.event.rank, admitted.event.incarnation) == (5, 2)
        refusals = re.findall(
            r"event=refused REJOIN_WINDOW: .*may return in (\d+\.\d) s", cluster.log("worker_5")
        )
        assert len(refusals) == 1, "one line says how long"
        assert 0 < float(refusals[0]) <= 30.0

        cluster.wait_end()
        assert survivors == {name: cluster.processes[name].pid for name in survivors}
        cluster.check_same_as(undisturbed(workers=8))


async def ask_to_be_let_in(port: int, node: str, *, workers: int, token: JobToken | None) -> Refused:
    """The answer to a try with no token; the process that waits for its turn is not disturbed by it."""
    heard: list[FromScheduler] = []
    client = Client(
        host=HOST,
        port=port,
        rules=Rules(worker_count=workers),
        on_message=heard.append,
        on_lost=lambda _: None,
        access=Access(Caller(PrincipalKind.NODE, node, token)),
    )
    await client.connect(5)
    client.send(msgspec.structs.replace(register(node), worker_count=workers))
    await until(lambda: heard, "answer")
    await client.close()
    answer = heard[0]
    assert isinstance(answer, Refused), f"{node} was let in: {answer}"
    return answer
