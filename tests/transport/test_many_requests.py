"""A worker with more unanswered requests than its connection holds back comes back, on a real connection."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.scheduler.checkpoints.copying import ORDERS_MAX
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Send, WorkerEffect
from recovery.core.worker.requests import IN_FLIGHT_MAX
from recovery.transport.client import Client
from recovery.transport.outbox import MESSAGES_MAX
from tests.core.driven_worker import DrivenWorker
from tests.core.test_windows import saving
from tests.transport.wire import HOST, WAIT_S, Receiver, register, run, serving, until

SAVES = 4 * MESSAGES_MAX


def test_a_worker_with_more_unanswered_saves_than_an_outbox_takes_comes_back() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.Disconnected("killed", 0.5))
    saving(driven, 1, SAVES)
    driven.handle(s.Connected())
    lost: list[str] = []

    async def main() -> None:
        async with serving() as (receiver, port):

            def carry_out(effects: list[WorkerEffect]) -> None:
                for effect in effects:
                    if isinstance(effect, Send):
                        client.send(effect.message)

            client = Client(
                host=HOST,
                port=port,
                rules=driven.rules,
                on_message=lambda message: carry_out(driven.receive(message)),
                on_lost=lost.append,
            )
            await client.connect(WAIT_S)
            client.send(register())
            await until(lambda: receiver.messages, "registration")
            carry_out(driven.admitted(resumed=True).effects)
            answered: set[str] = set()
            await until(lambda: lost or answer_reports(receiver, answered) == SAVES, "every report")
            assert not lost
            await client.close()

    run(main())


def answer_reports(receiver: Receiver, answered: set[str]) -> int:
    """Answer each that has come, once; how many there were."""
    for connection, report, _ in receiver.messages:
        if isinstance(report, m.CheckpointReport) and report.request_id not in answered:
            answered.add(report.request_id)
            receiver.server.send(connection, m.Received(request_id=report.request_id))
    return len(answered)


def test_a_window_leaves_most_of_an_outbox_free() -> None:
    assert 4 * IN_FLIGHT_MAX <= MESSAGES_MAX
    assert 4 * ORDERS_MAX <= MESSAGES_MAX
