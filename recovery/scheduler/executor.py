"""Carries out what the scheduler's machine asks. Never decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from typing_extensions import assert_never

from recovery import clock, log
from recovery.core.effects import Answer, Exit, Log, Persist, Report
from recovery.core.messages import Admitted
from recovery.core.records import EventRecord
from recovery.core.scheduler.effects import (
    CloseConnection,
    EndWatch,
    KeepConnection,
    SchedulerEffect,
    SchedulerTimer,
    Send,
    SetTimer,
    WatchProcess,
)
from recovery.core.scheduler.stimuli import ProcessGone
from recovery.scheduler.process_watch import ProcessWatch
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
        on_timer: Callable[[SchedulerTimer], None],
        on_gone: Callable[[ProcessGone], None],
        on_exit: Callable[[str, str], None],
    ) -> None:
        """Join the parts.

        Args:
            server: where messages go.
            writer: the store's writer; None when nothing is persisted.
            on_timer: called in the loop when a timer is due.
            on_gone: called in the loop when a process that was watched has ended.
            on_exit: called in the loop with code and reason when the machine asks the process to end.
        """
        self._server, self._writer = server, writer
        self._on_timer, self._on_exit = on_timer, on_exit
        self._loop = asyncio.get_running_loop()
        self._timers: dict[SchedulerTimer, asyncio.TimerHandle] = {}
        self._watch = ProcessWatch(on_gone)

    def carry_out(self, effect: SchedulerEffect) -> None:
        """Do one effect."""
        match effect:
            case Persist():
                self._persist(effect)
            case Send():
                self._server.send(effect.connection, effect.message)
            case CloseConnection():
                self._server.close_connection(effect.connection, effect.reason, is_fault=effect.is_fault)
            case KeepConnection():
                self._server.refused_for_now(effect.connection)
            case SetTimer():
                self._set_timer(effect)
            case WatchProcess():
                self._watch.begin(effect)
            case EndWatch():
                self._watch.end(effect.node_id)
            case Log():
                level = logging.WARNING if effect.warning else logging.INFO
                _logger.log(level, "event=%s %s", effect.event, effect.text)
            case Exit():
                self._on_exit(effect.code, effect.reason)
            case _:
                assert_never(effect)

    def _persist(self, persist: Persist) -> None:
        if self._writer is None:
            self.release(persist)
        else:
            self._writer.submit(persist.records, persist)

    def release(self, persist: Persist) -> None:
        """The write is durable (or nothing is persisted): log its events, then let the answers go."""
        for record in persist.records:
            if isinstance(record, EventRecord):
                _logger.info("%s", log.format_event(record, clock.wall_ms()))
        for step in persist.then:
            match step:
                case Answer():
                    if isinstance(step.message, Admitted):
                        self._server.admitted(step.connection)
                    self._server.send(step.connection, step.message)
                case Exit():
                    self._on_exit(step.code, step.reason)
                case _:
                    assert not isinstance(step, Report), "the scheduler reports to nobody"
                    assert_never(step)

    def _set_timer(self, effect: SetTimer) -> None:
        older = self._timers.pop(effect.timer, None)
        if older is not None:
            older.cancel()
        delay_s = max(0, effect.at_ms - clock.monotonic_ms()) / 1000
        self._timers[effect.timer] = self._loop.call_later(delay_s, self._due, effect.timer)

    def _due(self, timer: SchedulerTimer) -> None:
        del self._timers[timer]
        self._on_timer(timer)

    def stop(self) -> None:
        """Cancel every timer and every watch."""
        self._watch.stop()
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
