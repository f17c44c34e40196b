"""Connections between their acceptance and the admission of their node: how many there may be, and for how long.

Three kinds. A *silent* connection has sent no whole HTTP request, a *waiting* one has, and no message of ours behind it. Beyond
the bound of either kind the oldest is closed: a real worker sends its request in the millisecond it connects and its registration in
the millisecond it is answered, so that neither flood keeps one out. A *spoken* one has sent a message and waits to be admitted, for
as long as the disk takes: there is room for every node of the job, and who comes beyond that is refused with 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from typing_extensions import override

from recovery.transport.rejection_log import ComplainingLogger, RejectionLog

FIRST_MESSAGE_S = 5.0
"""From acceptance to the first valid message, or to the end of an HTTP answer. A worker needs milliseconds, and half a second on
a machine that swaps; at half of it a stopped-and-continued worker would be lost, at twice a flood holds its places twice as long."""
SILENT_MAX = 256
"""Connections without a whole request. Each costs a descriptor; together with WAITING_MAX they are half of the usual 1,024."""
WAITING_MAX = 256
"""Connections with a request but without a message. Of which address the oldest is closed beyond it: of the one with the most, so that
one hostile address harms only itself. At a quarter of it a burst of requests could close a worker's before its first word arrives."""
SPOKEN_BESIDE = 256
"""Connections with a message but without admission, beside one for each node of the job: strangers who are told why they are refused."""


class _Visit:
    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.peer = _address(transport)
        self.deadline: asyncio.TimerHandle | None = None
        self.unregistered = self.spoke = False


class ConnectionLimiter(web.Server):
    """aiohttp's connection factory, with a count of who has not registered yet."""

    def __init__(self, handler: Any, complaints: RejectionLog, *, nodes: int) -> None:
        """Take the handler of requests. Created inside the loop.

        Args:
            handler: called with each request.
            complaints: told about those that are turned away.
            nodes: how many the job has.
        """
        super().__init__(
            handler,
            logger=ComplainingLogger(complaints),
            access_log=None,
            keepalive_timeout=0,  # the deadlines here hold instead
            lingering_time=0,  # nobody has a body to send
            max_line_size=2_048,
            max_field_size=2_048,
        )
        self._complaints = complaints
        self._visits: dict[web.RequestHandler, _Visit] = {}
        self._silent: dict[web.RequestHandler, _Visit] = {}
        self._waiting: dict[str, dict[web.RequestHandler, _Visit]] = {}
        """By address, oldest first."""
        self._waiting_count = self._spoken_count = 0
        self._spoken_max = nodes + SPOKEN_BESIDE
        self.empty = asyncio.Event()
        self.empty.set()

    # --- called by aiohttp ---------------------------------------------------------------------------------------------

    @override
    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """A socket was accepted."""
        super().connection_made(handler, transport)
        visit = self._visits[handler] = self._silent[handler] = _Visit(transport)
        self.empty.clear()
        self._arm(visit, FIRST_MESSAGE_S, f"no message of ours within {FIRST_MESSAGE_S:g} s")
        if len(self._silent) > SILENT_MAX:
            oldest = next(iter(self._silent))
            self._turn_away(self._silent.pop(oldest), f"silent, and more than {SILENT_MAX} connections are")

    @override
    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """A socket is closed, whoever closed it."""
        super().connection_lost(handler, exc)
        self.settle(handler)
        self._silent.pop(handler, None)
        self._visits.pop(handler, None)
        if not self._visits:
            self.empty.set()

    # --- called by the server ------------------------------------------------------------------------------------------

    def enter(self, handler: web.RequestHandler) -> bool:
        """Count a connection that has sent a request as unregistered. False: no room, answer 503."""
        visit = self._visits.get(handler)
        if visit is None:
            return False
        self._silent.pop(handler, None)
        if visit.unregistered:
            return True
        if self._spoken_count >= self._spoken_max:
            return False
        visit.unregistered = True
        self._waiting.setdefault(visit.peer, {})[handler] = visit
        self._waiting_count += 1
        if self._waiting_count > WAITING_MAX:
            crowd = max(self._waiting.values(), key=len)
            oldest = next(iter(crowd))
            why = f"no message behind its request, and more than {WAITING_MAX} connections are without"
            self._turn_away(self._no_longer_waits(oldest), why)
        return True

    def _no_longer_waits(self, handler: web.RequestHandler) -> _Visit:
        visit = self._visits[handler]
        same = self._waiting.get(visit.peer, {})
        if same.pop(handler, None) is not None:
            self._waiting_count -= 1
            if not same:
                del self._waiting[visit.peer]
        return visit

    def heard(self, handler: web.RequestHandler, silence_s: float, cut_off: Callable[[str], None]) -> None:
        """A valid message came, but no admission yet: from now on the connection may be silent for `silence_s` seconds.

        Args:
            handler: whose connection.
            silence_s: seconds until it is cut off, unless it is heard again or admitted.
            cut_off: called with the reason then.
        """
        visit = self._visits.get(handler)
        if visit is not None and visit.unregistered:
            if not visit.spoke:
                self._no_longer_waits(handler)
                visit.spoke = True
                self._spoken_count += 1
            self._arm(visit, silence_s, f"not admitted and silent for {silence_s:g} s", cut_off)

    def settle(self, handler: web.RequestHandler) -> None:
        """The node is admitted (or gone): no deadline, no counting any more."""
        visit = self._visits.get(handler)
        if visit is None:
            return
        if visit.deadline is not None:
            visit.deadline.cancel()
            visit.deadline = None
        if visit.unregistered:
            self._no_longer_waits(handler)
            self._spoken_count -= visit.spoke
            visit.unregistered = visit.spoke = False

    def abort_all(self) -> None:
        """Close every socket at once."""
        for visit in list(self._visits.values()):
            visit.transport.abort()

    def abort_silent(self) -> None:
        """Close those that are in nobody's hands yet."""
        for visit in list(self._silent.values()):
            visit.transport.abort()

    # --- deadlines -----------------------------------------------------------------------------------------------------

    def _arm(
        self, visit: _Visit, seconds: float, reason: str, cut_off: Callable[[str], None] | None = None
    ) -> None:
        if visit.deadline is not None:
            visit.deadline.cancel()
        loop = asyncio.get_running_loop()
        visit.deadline = loop.call_later(seconds, self._turn_away, visit, reason, cut_off)

    def _turn_away(self, visit: _Visit, reason: str, cut_off: Callable[[str], None] | None = None) -> None:
        self._complaints.note(visit.peer, reason)
        if cut_off is not None:
            cut_off(reason)
        visit.transport.abort()


def _address(transport: asyncio.Transport) -> str:
    """The peer's address without its port; a socket that is closed already has none."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else "unknown"
