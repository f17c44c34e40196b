"""A scheduler whose disk does not keep up pauses before its queue is full: nothing that has happened is half carried out."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest

from recovery import config
from recovery.core.ids import Generation, NodeId, RequestId
from recovery.core.messages import (
    Admitted,
    CheckpointReport,
    FromScheduler,
    Heartbeat,
    HeartbeatAck,
    Interrupt,
    Ready,
    Received,
    Rollback,
)
from recovery.core.records import EventKind, Record
from recovery.core.scheduler.job_states import new_job
from recovery.core.scheduler.machine import SchedulerMachine
from recovery.scheduler.service import StoppedBySignal, _Service
from recovery.store import writer as writer_module
from recovery.store.reader import read_events
from recovery.store.repository import SchedulerStore
from tests.cluster.harness import free_port
from tests.core.desk import checkpoint
from tests.transport.wire import HOST, Node, register, run, until

WAIT_S = 60.0


class SlowDisk:
    """A real store whose writes wait until they may."""

    def __init__(self, store: SchedulerStore) -> None:
        self._store = store
        self.answers = threading.Event()
        self.answers.set()
        self.is_waited_for = False

    def apply(self, records: Sequence[Record], *, wall_ms: int) -> None:
        self.is_waited_for = True
        # Longer than a test waits for anything, which then says what has not come.
        assert self.answers.wait(2 * WAIT_S)
        self.is_waited_for = False
        self._store.apply(records, wall_ms=wall_ms)

    def check(self) -> None:
        """Asked by a writer that has had no work for a while, as on a loaded machine."""
        self._store.check()


class Peer(Node):
    """A worker's connection, with what a job asks of it."""

    def __init__(self, port: int, number: int, workers: int) -> None:
        super().__init__(port)
        self.number = number
        self._register = msgspec.structs.replace(
            register(f"worker_{number}"), worker_count=workers, request_id=RequestId(f"r-{number}")
        )

    async def ask_in(self) -> None:
        await self.client.connect(WAIT_S)
        self.client.send(self._register)

    def save(self, step: int) -> None:
        held = checkpoint(step, path=f"{step}")
        self.client.send(CheckpointReport(request_id=RequestId(f"save-{step}"), checkpoint=held))

    def heard(self, kind: type[FromScheduler]) -> int:
        return sum(isinstance(message, kind) for message in self.messages)


@asynccontextmanager
async def scheduler(place: Path, workers: int) -> AsyncIterator[tuple[_Service, SlowDisk, int]]:
    """A whole scheduler in this process, on a disk that the test holds."""
    port = free_port()
    environment = {
        "MS_ROLE": "MS_SCHED",
        "MS_WORKER_NUM": str(workers),
        "MS_SCHED_HOST": HOST,
        "MS_SCHED_PORT": str(port),
        "MS_ENABLE_RECOVERY": "1",
        "MS_RECOVERY_PATH": str(place),
        # What a token costs is no matter of the disk.
        "MS_JOB_TOKEN": "off",
        "MS_RECONNECT_GRACE": "0.05",
        # A lease that runs out is looked at, and with it all that waits for the disk: no test here waits as long.
        "MS_NODE_TIMEOUT": "600",
    }
    settings = config.load(environment)
    store = SchedulerStore.open(place)
    disk = SlowDisk(store)
    service = _Service(
        settings,
        SchedulerMachine(new_job("job", settings.rules), settings.rules),
        cast("SchedulerStore", disk),
        None,
    )
    serving = asyncio.create_task(service.run())
    try:
        await until(lambda: hasattr(service, "_executor"), "start")
        yield service, disk, port
    finally:
        disk.answers.set()
        service._finish(None)
        await serving
        store.close()


def test_a_scheduler_that_is_asked_to_stop_tells_what_it_has_decided_before_it_closes_connections(
    tmp_path: Path,
) -> None:
    heard: list[int] = []

    async def main() -> None:
        async with scheduler(tmp_path, 2) as (service, disk, port):
            await until(lambda: not waiting(service), "a calm store")
            disk.answers.clear()
            peer = Peer(port, 0, 2)
            await peer.ask_in()
            await until(lambda: service._machine.state.nodes, "its arrival")
            service._on_signal(signal.SIGTERM)
            await until(lambda: service._over, "the end of the process's work")
            heard.append(peer.heard(Admitted))
            disk.answers.set()
            await until(lambda: peer.lost, "a closed connection")
            heard.append(peer.heard(Admitted))

    with pytest.raises(StoppedBySignal):
        run(main())
    assert heard == [0, 1]


def waiting(service: _Service) -> int:
    assert service._writer is not None
    return service._writer._waiting


def test_everybody_who_asked_while_the_disk_was_stuck_is_let_in_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_MAX", 12)
    workers = 24

    async def main() -> None:
        async with scheduler(tmp_path, workers) as (service, disk, port):
            await until(lambda: not waiting(service), "a calm store")
            disk.answers.clear()
            peers = [Peer(port, number, workers) for number in range(workers)]
            for peer in peers:
                await peer.ask_in()
            await until(lambda: service._holding, "a full queue")
            await until(lambda: len(service._server._connections) == workers, "every connection")
            known = len(service._machine.state.nodes)
            assert 0 < known < workers / 2, "it takes no more than fits"
            assert waiting(service) <= 12 + 8, "one stimulus more than the bound at most"
            assert not any(peer.messages for peer in peers)

            disk.answers.set()
            await until(lambda: all(peer.heard(Admitted) == 1 for peer in peers), "every admission")
            assert not any(peer.lost for peer in peers)
            for peer in peers:
                await peer.client.close()

    run(main())
    assert len(read_events(tmp_path, limit=10_000)) >= workers
    assert caplog.text.count("event=store_behind") >= 1


def test_a_loss_while_the_disk_is_stuck_reaches_the_survivors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scheduler(tmp_path, 2) as (service, disk, port):
            peers = [Peer(port, number, 2) for number in range(2)]
            for peer in peers:
                await peer.ask_in()
                await until(lambda peer=peer: peer.heard(Admitted), "admission")  # type: ignore[misc]  # bound now
                peer.client.send(
                    Ready(request_id=RequestId(f"ready-{peer.number}"), generation=Generation(0), step=0)
                )
            await until(lambda: all(peer.heard(Rollback) for peer in peers), "the plan")
            survivor, victim = peers
            survivor.save(1)
            await until(lambda: survivor.heard(Received) == 2, "the answer to a report: nothing is under way")
            monkeypatch.setattr(writer_module, "QUEUE_MAX", 12)
            disk.answers.clear()
            survivor.save(2)
            await until(lambda: disk.is_waited_for, "a write that takes no more of the queue")
            for step in range(3, 10):
                survivor.save(step)
            await until(lambda: service._holding, "a full queue")
            await victim.client.close()
            await until(lambda: service._held, "a loss that waits")
            survivor.client.send(Heartbeat(sequence=1, generation=Generation(1), step=8))

            disk.answers.set()
            await until(lambda: survivor.heard(Interrupt), "the interrupt")
            await until(lambda: survivor.heard(HeartbeatAck), "the answer to the heartbeat")
            await until(lambda: survivor.heard(Received) == 10, "the answer to every report")
            assert not survivor.lost
            await survivor.client.close()

    run(main())
    events = [stored.event for stored in read_events(tmp_path, limit=10_000)]
    assert NodeId("worker_1") in {event.node_id for event in events if event.kind is EventKind.NODE_LOST}
