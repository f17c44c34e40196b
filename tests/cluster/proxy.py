"""A wire that a test can cut: TCP, forwarded both ways."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards connections to a port of this machine. Use as a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.accepted = 0
        self._ends: list[socket.socket] = []
        self._guard = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection at once, as a network does: both ends get a reset."""
        with self._guard:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return  # closed: the test is over
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port), timeout=10)
            except OSError:
                near.close()  # the scheduler does not listen yet; the worker dials again
                continue
            far.settimeout(None)
            with self._guard:
                self._ends += [near, far]
                self.accepted += 1
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=(source, sink), daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65_536):
            sink.sendall(content)
        sink.shutdown(socket.SHUT_WR)
