"""A proxy between a node and its scheduler that keeps every message of both, as the bytes that were sent."""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

_BINARY, _CONTINUED = 2, 0


class Frame(NamedTuple):
    """One message as it was sent."""

    connection: int
    """1, 2, 3, ... in the order in which they were opened."""
    sender: str
    """`node` or `scheduler`."""
    payload: bytes


class RecordingProxy:
    """Listens on a port of its own and forwards to the scheduler. Use as a context manager."""

    def __init__(self, scheduler_port: int) -> None:
        self._to = scheduler_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._frames: list[Frame] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._opened = 0

    def frames(self) -> list[Frame]:
        """Every whole message so far, in the order in which they passed."""
        with self._lock:
            return list(self._frames)

    def __enter__(self) -> RecordingProxy:
        self._run(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # any callable
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                node, _ = self._listening.accept()
            except OSError:
                return
            try:
                scheduler = socket.create_connection(("127.0.0.1", self._to), 10)
            except OSError:
                node.close()
                continue
            scheduler.settimeout(None)
            self._opened += 1
            self._run(self._forward, node, scheduler, _Messages(self._opened, "node"))
            self._run(self._forward, scheduler, node, _Messages(self._opened, "scheduler"))

    def _forward(self, source: socket.socket, sink: socket.socket, messages: _Messages) -> None:
        with suppress(OSError):
            while piece := source.recv(65_536):
                with self._lock:
                    self._frames += messages.add(piece)
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class _Messages:
    """The messages in one direction of one connection. Nothing of ours reads them here: a WebSocket is a WebSocket (RFC 6455)."""

    def __init__(self, connection: int, sender: str) -> None:
        self._connection, self._sender = connection, sender
        self._buffer, self._message = b"", b""
        self._upgraded = False

    def add(self, piece: bytes) -> list[Frame]:
        """The messages that are whole with these bytes."""
        self._buffer += piece
        while not self._upgraded:
            if not self._skip_head():
                return []
        whole = []
        while (frame := self._next()) is not None:
            kind, is_last, payload = frame
            if kind not in {_BINARY, _CONTINUED}:
                continue
            self._message += payload
            if is_last:
                whole.append(Frame(self._connection, self._sender, self._message))
                self._message = b""
        return whole

    def _skip_head(self) -> bool:
        """Pass over one HTTP request or answer, a challenge's or the upgrade's. False: it is not whole yet."""
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        size = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
        body = int(size[1]) if size else 0
        if not found or len(rest) < body:
            return False
        self._upgraded, self._buffer = b"\r\nupgrade: websocket" in head.lower(), rest[body:]
        return True

    def _next(self) -> tuple[int, bool, bytes] | None:
        if len(self._buffer) < 2:
            return None
        first, second = self._buffer[0], self._buffer[1]
        size, start = second & 0x7F, 2
        for marker, form in ((126, ">H"), (127, ">Q")):
            if size == marker:
                start += struct.calcsize(form)
                if len(self._buffer) < start:
                    return None
                [size] = struct.unpack_from(form, self._buffer, 2)
                break
        mask = b""
        if second & 0x80:
            mask, start = self._buffer[start : start + 4], start + 4
        if len(self._buffer) < start + size:
            return None
        payload, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        if mask:
            payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
        return first & 0x0F, bool(first & 0x80), payload
