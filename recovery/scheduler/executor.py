"""Carries out what the cluster machine asks. Never decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from typing_extensions import assert_never

from recovery import clock, log
from recovery.core.effects import Answer, Exit, Persist, Report, Say, SetTimer
from recovery.core.messages import Admitted
from recovery.core.records import EventRecord
from recovery.core.scheduler.effects import CloseConnection, SchedulerEffect, Send
from recovery.store.writer import Writer
from recovery.transport.server import Server

_logger = logging.getLogger("recovery.scheduler")


class Executor:
    """Effects to store, connections, timers and log."""

    def __init__(
        self,
        *,
        server: Server,
        writer: Writer | None,
        on_timer: Callable[[str], None],
        on_exit: Callable[[str, str], None],
    ) -> None:
        """Join the parts.

        Args:
            server: where messages go.
            writer: the store's writer; None when nothing is persisted.
            on_timer: called in the loop when a timer is due.
            on_exit: called in the loop with code and reason when the machine asks the process to end.
        """
        self._server, self._writer = server, writer
        self._on_timer, self._on_exit = on_timer, on_exit
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def carry_out(self, effect: SchedulerEffect) -> None:
        """Do one effect."""
        if isinstance(effect, Persist):
            self._persist(effect)
        elif isinstance(effect, Send):
            self._server.send(effect.connection, effect.message)
        elif isinstance(effect, CloseConnection):
            self._server.close_connection(effect.connection, effect.reason)
        elif isinstance(effect, SetTimer):
            self._set_timer(effect)
        elif isinstance(effect, Say):
            _logger.log(
                logging.WARNING if effect.warning else logging.INFO, "event=%s %s", effect.event, effect.text
            )
        elif isinstance(effect, Exit):
            self._on_exit(effect.code, effect.reason)
        else:
            assert_never(effect)

    def _persist(self, persist: Persist) -> None:
        if self._writer is None:
            self.release(persist)
        else:
            self._writer.submit(persist.records, persist)

    def release(self, persist: Persist) -> None:
        """The write is durable (or nothing is persisted): tell the story, then let the answers go."""
        for record in persist.records:
            if isinstance(record, EventRecord):
                _logger.info("%s", log.format_event(record, clock.wall_ms()))
        for step in persist.then:
            if isinstance(step, Answer):
                if isinstance(step.message, Admitted):
                    self._server.admitted(step.connection)
                self._server.send(step.connection, step.message)
            elif isinstance(step, Exit):
                self._on_exit(step.code, step.reason)
            else:
                assert not isinstance(step, Report), "the scheduler reports to nobody"

    def _set_timer(self, timer: SetTimer) -> None:
        older = self._timers.pop(timer.key, None)
        if older is not None:
            older.cancel()
        delay_s = max(0, timer.at_ms - clock.monotonic_ms()) / 1000
        self._timers[timer.key] = self._loop.call_later(delay_s, self._due, timer.key)

    def _due(self, key: str) -> None:
        del self._timers[key]
        self._on_timer(key)

    def stop(self) -> None:
        """Cancel every timer."""
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
