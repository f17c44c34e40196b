"""The scheduler's executor between a real store and a real wire: no answer leaves before the write that it promises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from recovery.core.effects import Answer, Persist
from recovery.core.ids import RequestId
from recovery.core.messages import HeartbeatAck, Received
from recovery.core.records import Record
from recovery.core.scheduler.effects import Send
from recovery.scheduler.executor import Executor
from recovery.store.reader import read_scheduler
from recovery.store.repository import SchedulerStore
from recovery.store.writer import Writer
from tests.store import samples
from tests.transport.wire import Node, run, serving, until

WAIT_S = 60.0


def void(_: object) -> None:
    """Forget what a call returned."""


class SlowStore:
    """A real store on a disk that takes its time."""

    def __init__(self, store: SchedulerStore) -> None:
        self._store = store
        self.disk_answers = threading.Event()

    def check(self) -> None:
        pass

    def apply(self, records: Sequence[Record], *, wall_ms: int) -> None:
        assert self.disk_answers.wait(WAIT_S)
        self._store.apply(records, wall_ms=wall_ms)


def test_an_answer_waits_for_the_disk_and_what_promises_nothing_overtakes_it(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    disk = SlowStore(store)

    async def main() -> None:
        async with serving() as (receiver, port):
            loop = asyncio.get_running_loop()
            writer = Writer(
                disk,
                on_durable=lambda ticket: void(loop.call_soon_threadsafe(release, ticket)),
                on_failure=lambda error: None,
                wall_ms=lambda: 1,
            )
            executor = Executor(
                on_gone=lambda gone: None,
                server=receiver.server,
                writer=writer,
                on_timer=print,
                on_exit=lambda code, reason: None,
            )

            def release(ticket: object) -> None:
                assert isinstance(ticket, Persist)
                executor.release(ticket)

            node = Node(port)
            await node.join()
            connection = receiver.messages[0][0]
            answer = Answer(connection, Received(request_id=RequestId("r-2")))
            executor.carry_out(Persist((samples.job(7),), (answer,)))
            executor.carry_out(Send(connection, HeartbeatAck(sequence=1)))
            await until(lambda: len(node.messages) > 1, "the heartbeat's answer")

            assert node.messages[1:] == [HeartbeatAck(sequence=1)]
            assert read_scheduler(tmp_path).job is None, "nothing is written yet"

            disk.disk_answers.set()
            await until(lambda: len(node.messages) > 2, "the answer")
            assert node.messages[2] == answer.message
            assert read_scheduler(tmp_path).job == samples.job(7)
            await node.client.close()
            assert await asyncio.to_thread(writer.close, WAIT_S)

    run(main())
    store.close()
