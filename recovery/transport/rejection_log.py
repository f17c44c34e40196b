"""Log lines about rejected peers: one per address and minute, with a count, so that a flood of garbage is no flood of lines."""

from __future__ import annotations

import logging

from typing_extensions import override

from recovery import clock

PERIOD_MS = 60_000
"""Between two lines about one address."""
ADDRESSES_MAX = 1_024
"""Remembered. The rest share one line, or a scan from many addresses would fill the memory."""
_OTHERS = "other addresses"

_logger = logging.getLogger("recovery.transport")


class RejectionLog:
    """Logs at once what is new, and counts what repeats."""

    def __init__(self) -> None:
        """Begin with nothing logged."""
        self._logged_at_ms: dict[str, int] = {}
        self._unlogged: dict[str, int] = {}

    def note(self, peer: str, reason: str) -> None:
        """Log that `peer` (an address) was turned away, or count it when a line about it is younger than a minute."""
        now_ms = clock.monotonic_ms()
        if peer not in self._logged_at_ms and len(self._logged_at_ms) >= ADDRESSES_MAX:
            self._forget_old(now_ms)
            if len(self._logged_at_ms) >= ADDRESSES_MAX:
                peer = _OTHERS
        logged_at_ms = self._logged_at_ms.get(peer)
        if logged_at_ms is not None and now_ms - logged_at_ms < PERIOD_MS:
            self._unlogged[peer] = self._unlogged.get(peer, 0) + 1
            return
        self._logged_at_ms[peer] = now_ms
        count = self._unlogged.pop(peer, 0) + 1
        _logger.warning("event=peer_refused peer=%s count=%d reason=%r", peer, count, reason)

    def _forget_old(self, now_ms: int) -> None:
        recent = {peer: at_ms for peer, at_ms in self._logged_at_ms.items() if now_ms - at_ms < PERIOD_MS}
        self._logged_at_ms = recent
        self._unlogged = {peer: count for peer, count in self._unlogged.items() if peer in recent}


class AiohttpLogger(logging.Logger):
    """What aiohttp is given as its logger: its tracebacks about what unregistered peers sent become notes of the rejection log."""

    def __init__(self, rejections: RejectionLog) -> None:
        """Belong to no hierarchy, print nothing by itself."""
        super().__init__("recovery.transport.http", level=logging.CRITICAL + 1)
        self._rejections = rejections

    @override
    def debug(self, msg: object, *args: object, **kwargs: object) -> None:
        """Aiohttp logs here that a first request was no HTTP at all."""
        self._note(args, kwargs)

    @override
    def exception(self, msg: object, *args: object, **kwargs: object) -> None:
        """Aiohttp logs here that a request was malformed."""
        self._note(args, kwargs)

    def _note(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, BaseException):
            peer = str(args[0]) if args else "unknown"
            self._rejections.note(peer, f"no HTTP request ({type(error).__name__})")
