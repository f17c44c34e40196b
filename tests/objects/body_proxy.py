"""A way to an HTTP server on loopback that understands requests: it breaks, holds or slows the bodies that a test chooses.

Unlike `cutting_proxy` it counts bytes of bodies, so a file is cut in its middle, and unlike `faults.fault_proxy` it leaves the other requests alone.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from typing_extensions import override

from tests.objects.way import Way

_BYTES = 1 << 16
_RESET = struct.pack("ii", 1, 0)
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
_CHECKSUM = re.compile(rb"(?i)\r\nx-amz-checksum-[^\r]*")
_EXPECT = re.compile(rb"(?i)\r\nexpect: *100-continue")
_CONDITION = re.compile(rb"(?i)\r\nif-none-match:[^\r]*")


class Asked(NamedTuple):
    """One request, as its first line tells it."""

    method: str
    path: str

    @property
    def is_file(self) -> bool:
        """Is it about a numbered file of a contribution?"""
        return re.search(r"/steps/[0-9-]+/files/[0-9a-f]+/[0-9]+", self.path) is not None


class Fault(Enum):
    """What becomes of the body of a request that was chosen: of what is sent, or for GET of what comes back."""

    CUT = "half of it goes through, then both ends hear of a reset"
    HOLD = "half of it goes through, the rest when the weather clears"
    TRICKLE = "all of it goes through, slowly"
    SHORT = "half of it comes back, the head says that this is all, and has no checksum"
    UNCONDITIONAL = "it goes through without its condition, as by a server that knows none"


class _OverError(Exception):
    """The connection has ended, one way or another."""


class BodyProxy(Way):
    """Listens on a port of its own until it is closed. Use as a context manager."""

    def __init__(self, address: str) -> None:
        """Listen; everything goes through.

        Args:
            address: of the server, `http://host:port`.
        """
        self._changed = threading.Condition()
        self._fault: Fault | None = None
        self._chosen: Callable[[Asked], bool] = lambda asked: False
        self._piece_bytes, self._delay_s = _BYTES, 0.0
        self.met: list[Asked] = []
        """Requests that had the fault, oldest first."""
        self.at_once, self.at_once_max = 0, 0
        """How many files are on their way to the server, and how many have been at one time."""
        super().__init__(address)

    @override
    def __exit__(self, *_: object) -> None:
        self.clear()
        super().__exit__()

    def set(
        self,
        fault: Fault,
        chosen: Callable[[Asked], bool],
        *,
        piece_bytes: int = _BYTES,
        delay_s: float = 0.0,
    ) -> None:
        """Let these requests have a fault, until `clear`.

        Args:
            fault: which.
            chosen: which requests.
            piece_bytes: of a trickle.
            delay_s: of a trickle, before each piece.
        """
        with self._changed:
            self._fault, self._chosen = fault, chosen
            self._piece_bytes, self._delay_s = piece_bytes, delay_s
            self.met = []

    def clear(self) -> None:
        """Fine weather: what is held goes on."""
        with self._changed:
            self._fault = None
            self._changed.notify_all()

    # --- one connection ------------------------------------------------------------------------------------------------

    @override
    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, _OverError),
            client,
            socket.create_connection(self._server) as server,
        ):
            from_client, from_server = _Reader(client), _Reader(server)
            while True:
                head = from_client.head()
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
                asked = Asked(method, path)
                fault = self._violation(asked)
                if _EXPECT.search(head):
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                if fault is Fault.UNCONDITIONAL:
                    head = _CONDITION.sub(b"", head)
                server.sendall(_EXPECT.sub(b"", head))
                is_get = method == "GET"
                with self._counted(asked.is_file and method == "PUT"):
                    self._body(from_client, server, _length(head), None if is_get else fault, client)
                self._answer(from_server, client, method, fault if is_get else None)

    def _answer(self, server: _Reader, client: socket.socket, method: str, fault: Fault | None) -> None:
        head = server.head()
        length = 0 if method == "HEAD" else _length(head)
        if fault is Fault.SHORT:
            kept = server.take(length)[: length // 2]
            head = _CHECKSUM.sub(b"", _LENGTH.sub(b"\r\nContent-Length: %d" % len(kept), head))
            client.sendall(head + kept)
            return
        client.sendall(head)
        self._body(server, client, length, fault, server.wire)

    def _body(
        self, source: _Reader, sink: socket.socket, length: int, fault: Fault | None, other: socket.socket
    ) -> None:
        gone, half = 0, length // 2
        while gone < length:
            if fault is Fault.CUT and gone >= half:
                for end in (sink, other):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    # Wakes who reads; the reset goes out when both are closed.
                    end.close()
                raise _OverError
            if fault is Fault.HOLD and gone >= half:
                with self._changed:
                    self._changed.wait_for(lambda: self._fault is not Fault.HOLD)
                fault = None
            if fault is Fault.TRICKLE and self._fault is Fault.TRICKLE:
                time.sleep(self._delay_s)
            until = half if fault in (Fault.CUT, Fault.HOLD) else length
            piece = source.some(min(self._piece_bytes, max(1, until - gone)))
            sink.sendall(piece)
            gone += len(piece)

    def _violation(self, asked: Asked) -> Fault | None:
        with self._changed:
            if self._fault is None or not self._chosen(asked):
                return None
            self.met.append(asked)
            return self._fault

    @contextlib.contextmanager
    def _counted(self, counts: bool) -> Iterator[None]:
        with self._changed:
            self.at_once += counts
            self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            yield
        finally:
            with self._changed:
                self.at_once -= counts


class _Reader:
    """One direction of a connection, head by head and body by body."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire, self._rest = wire, b""

    def head(self) -> bytes:
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._received()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    def some(self, bytes_max: int) -> bytes:
        self._rest = self._rest or self._received()
        piece, self._rest = self._rest[:bytes_max], self._rest[bytes_max:]
        return piece

    def take(self, length: int) -> bytes:
        while len(self._rest) < length:
            self._rest += self._received()
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def _received(self) -> bytes:
        piece = self.wire.recv(_BYTES)
        if not piece:
            raise _OverError
        return piece


def _length(head: bytes) -> int:
    """Of the body behind a head; chunked ones are not used between this driver and this server."""
    assert b"chunked" not in head.lower(), head
    found = _LENGTH.search(head)
    return int(found[1]) if found else 0
