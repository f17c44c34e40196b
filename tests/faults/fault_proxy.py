"""A wire with weather: TCP, forwarded both ways, that may hold, delay, drip, cut or refuse. Needs no root.

Held bytes are not lost: TCP would send them again, and what a partition looks like to both ends is silence, then everything at
once. The end of a connection is held as well: nobody hears of a peer's death through a wire that is down.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType

_RESET = struct.pack("ii", 1, 0)
UP, DOWN = "up", "down"
"""Towards the target (the scheduler), and back from it."""
BOTH = (UP, DOWN)


class FaultProxy:
    """Forwards connections to a port of this machine. Forwards all until a fault is set. Use as a context manager."""

    def __init__(self, target_port: int) -> None:
        """Listen on a free port of the loopback interface.

        Args:
            target_port: where connections go.
        """
        self._target_port = target_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.accepted = 0
        self._ends: list[socket.socket] = []
        self._weather = threading.Condition()
        self._held: frozenset[str] = frozenset()
        self._delay_s = 0.0
        self._piece_bytes = 65_536
        self._refusing = False
        self._cut_after: int | None = None
        self._over = False
        threading.Thread(target=self._accept, daemon=True).start()

    # --- the weather ---------------------------------------------------------------------------------------------------

    def hold(self, *directions: str) -> None:
        """Let nothing through in these directions, new connections included; both ends stay open and hear nothing."""
        with self._weather:
            self._held = frozenset(directions)

    def delay(self, seconds: float) -> None:
        """Let every piece arrive so much later, both ways."""
        with self._weather:
            self._delay_s = seconds

    def drip(self, piece_bytes: int) -> None:
        """Forward in pieces of so many bytes, each with the delay."""
        with self._weather:
            self._piece_bytes = piece_bytes

    def clear(self) -> None:
        """Fine weather: what is held goes on its way."""
        with self._weather:
            self._held, self._delay_s, self._piece_bytes, self._refusing = frozenset(), 0.0, 65_536, False
            self._weather.notify_all()

    def cut(self) -> None:
        """Break every connection at once: both ends get a reset."""
        for end in self._take_ends():
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Wakes the thread that reads.
                end.shutdown(socket.SHUT_RD)
            end.close()

    def cut_in_frame(self, after_bytes: int) -> None:
        """Break every connection once so many bytes of the next upward piece have gone through: in the middle of a message."""
        with self._weather:
            self._cut_after = after_bytes

    def down(self) -> None:
        """Break every connection and refuse new ones, until `clear`."""
        with self._weather:
            self._refusing = True
        self.cut()

    def half_close(self, direction: str) -> None:
        """Tell the end of this direction that nothing more comes, though the other direction stays open."""
        with self._weather:
            ends = list(self._ends)
        for sink in ends[1::2] if direction == UP else ends[0::2]:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    # --- forwarding ----------------------------------------------------------------------------------------------------

    def _take_ends(self) -> list[socket.socket]:
        with self._weather:
            ends, self._ends = self._ends, []
        return ends

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                # Closed: the test is over.
                return
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self._target_port), timeout=10)
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # The scheduler does not listen (yet); the worker dials again.
                near.close()
                continue
            far.settimeout(None)
            with self._weather:
                self._ends += [near, far]
                self.accepted += 1
            for source, sink, direction in ((near, far, UP), (far, near, DOWN)):
                threading.Thread(target=self._forward, args=(source, sink, direction), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(self._piece_bytes):
                self._wait_for_the_weather(direction)
                if direction == UP and self._cut_here(sink, content):
                    return
                sink.sendall(content)
            self._wait_for_the_weather(direction)
            sink.shutdown(socket.SHUT_WR)

    def _wait_for_the_weather(self, direction: str) -> None:
        with self._weather:
            due = time.monotonic() + self._delay_s
            while not self._over and (direction in self._held or time.monotonic() < due):
                left_s = max(0.0, due - time.monotonic())
                self._weather.wait(None if direction in self._held else left_s)

    def _cut_here(self, sink: socket.socket, content: bytes) -> bool:
        with self._weather:
            after, self._cut_after = self._cut_after, None
        if after is None:
            return False
        sink.sendall(content[:after])
        self.cut()
        return True

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._weather:
            self._over = True
            self._weather.notify_all()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
