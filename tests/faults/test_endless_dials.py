"""A connection that ends as soon as it is there, for a reason that the next one does not change: nobody dials it in a hot loop."""

from __future__ import annotations

import functools
import operator
import time
from pathlib import Path

import msgspec
import pytest

from recovery.checkpoint import manifest, names
from recovery.core.ids import ConnectionId
from recovery.core.messages import FromNode, Register
from recovery.core.records import EventKind
from recovery.transport.server import Server
from tests.faults.fault_proxy import FaultProxy
from tests.faults.tiny_cluster import TinyCluster
from tests.transport.wire import HOST, RULES, admitted, run, until

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

MANY = 6_000
DIALS = 10
LEAST_S = 1.5
"""By the back-off so many dials take some three seconds; without it they took an eighth of one."""


def hold_more(directory: Path, *, first_step: int, count: int) -> None:
    """Give a rank many files more, newer than its newest one: what a rank holds whose peer could not save for days."""
    newest = max(directory.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    written = manifest.read_manifest(names.manifest_path(newest))
    for step in range(first_step, first_step + count):
        path = directory / names.file_name("tiny", epoch=1, step_in_epoch=step)
        path.hardlink_to(newest)
        files = (msgspec.structs.replace(written.files[0], name=path.name),)
        copy = msgspec.structs.replace(written, files=files, step=step, step_in_epoch=step)
        names.manifest_path(path).write_bytes(manifest.seal(copy)[1])


def test_a_worker_that_holds_six_thousand_checkpoints_is_in_and_the_plan_is_right(tmp_path: Path) -> None:
    with (
        TinyCluster(tmp_path, workers=2, window_s=0, environment={"MS_RECONNECT_GRACE": "0.1"}) as cluster,
        FaultProxy(cluster.port) as wire,
    ):
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill("worker_0")
        cluster.wait_event(EventKind.NODE_LOST, "worker_0")
        committed = cluster.events(EventKind.CHECKPOINT_COMMITTED)[-1].event.step
        hold_more(tmp_path / "ckpt" / "0", first_step=100_000, count=MANY)
        cluster.launch("worker_0", MS_SCHED_PORT=str(wire.port))
        cluster.wait_event(EventKind.PLAN_MADE, count=2)

        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == committed
        cluster.wait_step((committed or 0) + 5, generation=2)
        assert wire.accepted == 1, "one dial is enough"
        assert "event=checkpoints_left_out" in cluster.log("worker_0")
        ready = cluster.events(EventKind.NODE_READY, "worker_0")[-1].event
        assert ready.details.endswith("older checkpoints are not named")


def test_a_scheduler_that_disconnects_everybody_it_lets_in_is_dialled_ever_later(tmp_path: Path) -> None:
    async def main(cluster: TinyCluster) -> float:
        dials: list[ConnectionId] = []

        def hear(connection: ConnectionId, message: FromNode, peer: str) -> None:
            if isinstance(message, Register):
                dials.append(connection)
                server.admitted(connection)
                server.send(connection, admitted())
                server.close_connection(connection, "a reason that a new connection does not change")

        server = Server(rules=RULES, on_message=hear, on_lost=lambda connection, reason: None)
        await server.start(HOST, cluster.port)
        cluster.launch("worker_0")
        await until(lambda: dials, "the first dial")
        begun = time.monotonic()
        while (seen := len(dials)) < DIALS:
            await until(functools.partial(operator.ne, dials, dials[:seen]), "another dial")
        took_s = time.monotonic() - begun
        await server.stop()
        return took_s

    # The scheduler of this test proves nothing.
    with TinyCluster(tmp_path, workers=1, environment={"MS_JOB_TOKEN": "off"}) as cluster:
        took_s = run(main(cluster))

    assert took_s >= LEAST_S, f"{DIALS} dials in {took_s:.2f} s"
