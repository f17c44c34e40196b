"""Those who do harm to a scheduler's port, each as many as asked, from their own addresses of the loopback network."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from types import TracebackType

import msgspec
from typing_extensions import override

from recovery.core.ids import RequestId
from recovery.core.messages import Refused
from recovery.transport.codec import decode_from_scheduler, encode
from tests.transport.wire import HANDSHAKE as OF_ANY_HOST
from tests.transport.wire import HOST, masked_frame, plain_socket, register

HANDSHAKE = OF_ANY_HOST.replace(b"Host: x", b"Host: " + HOST.encode())
"""Any other host would be refused before anything else is looked at."""
_THREADS = 16
_READ_BYTES = 65_536


def silent(port: int, count: int, source: str) -> list[socket.socket]:
    """Connections that never say a word. Those that the other side has closed meanwhile are in the list as well."""
    made = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            made.append(plain_socket(port, source))
    return made


class Dripper:
    """Sends a good handshake one byte at a time, on many connections, until stopped; dials again when it is closed."""

    def __init__(self, port: int, count: int, source: str) -> None:
        """Prepare.

        Args:
            port: whose.
            count: connections at a time.
            source: address to come from.
        """
        self._port, self._count, self._source = port, count, source
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        sockets: dict[int, tuple[socket.socket, int]] = {}
        while not self._stop.wait(0.2):
            for number in range(self._count):
                try:
                    found, sent = sockets.get(number) or (plain_socket(self._port, self._source), 0)
                    found.send(HANDSHAKE[sent : sent + 1])
                    sockets[number] = (found, sent + 1)
                except OSError:
                    if number in sockets:
                        sockets.pop(number)[0].close()
        for found, _ in sockets.values():
            found.close()

    def __enter__(self) -> Dripper:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)


class _Paced:
    """Many threads that do one thing again and again, at most so many times a second together."""

    def __init__(self, per_second: float, threads: int = _THREADS) -> None:
        self._per_second = per_second
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._due = 0.0
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(threads)]
        self.count = 0

    def once(self, noise: random.Random) -> None:
        raise NotImplementedError

    def _run(self, number: int) -> None:
        noise = random.Random(number)
        while not self._stop.is_set():
            with self._guard:
                now = time.monotonic()
                self._due = max(self._due, now - 0.1) + 1 / self._per_second
                wait_s = self._due - now
            if wait_s > 0 and self._stop.wait(wait_s):
                return
            with contextlib.suppress(OSError):
                self.once(noise)
                with self._guard:
                    self.count += 1

    def __enter__(self) -> _Paced:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)


class Hammer(_Paced):
    """Asks to be let in under a living node's id, with no token. `answers` counts what it received."""

    def __init__(
        self,
        port: int,
        *,
        node: str,
        workers: int,
        servers: int,
        per_second: float,
        threads: int = _THREADS,
        **claims: object,
    ) -> None:
        """Prepare.

        Args:
            port: of the scheduler.
            node: the id.
            workers: MS_WORKER_NUM of the job.
            servers: MS_SERVER_NUM of the job.
            per_second: tries, over all connections.
            threads: connections at a time.
            claims: further fields of its Register.
        """
        super().__init__(per_second, threads)
        self._port = port
        self._asked = msgspec.structs.replace(
            register(node),
            worker_count=workers,
            server_count=servers,
            request_id=RequestId("hammer"),
            **claims,
        )
        self.answers: Counter[str] = Counter()

    @override
    def __enter__(self) -> Hammer:
        super().__enter__()
        return self

    @override
    def once(self, noise: random.Random) -> None:
        with plain_socket(self._port, "127.0.0.2") as one:
            one.sendall(HANDSHAKE + masked_frame(encode(self._asked)))
            heard = b""
            while content := one.recv(_READ_BYTES):
                heard += content
                if (answer := _answer_in(heard)) is not None:
                    self.answers[answer] += 1
                    return
        self.answers["closed"] += 1


class Garbage(_Paced):
    """Sends noise, noise in a frame, and a frame that is too large, in turn."""

    def __init__(self, port: int, *, per_second: float) -> None:
        """Prepare.

        Args:
            port: of the scheduler.
            per_second: connections.
        """
        super().__init__(per_second)
        self._port = port

    @override
    def once(self, noise: random.Random) -> None:
        kind = noise.randrange(4)
        with plain_socket(self._port, "127.0.0.3") as one:
            if kind == 0:
                one.sendall(noise.randbytes(noise.randrange(1, 5_000)))
            elif kind == 1:
                one.sendall(HANDSHAKE + masked_frame(noise.randbytes(noise.randrange(1, 60_000))))
            elif kind == 2:
                one.sendall(HANDSHAKE + masked_frame(bytes(70_000)))
            else:
                # A frame that says it is as large as can be said.
                one.sendall(HANDSHAKE + bytes([0x82, 0x80 | 127]) + b"\x7f" + b"\xff" * 7 + bytes(4))
            one.settimeout(8)
            while one.recv(_READ_BYTES):
                pass


def _answer_in(heard: bytes) -> str | None:
    """The code of a refusal or the status of an HTTP answer, once it is all there."""
    head, complete, rest = heard.partition(b"\r\n\r\n")
    if not complete:
        return None
    status = head.split()[1].decode()
    if status != "101":
        return status
    if len(rest) < 2:
        return None
    size, start = rest[1], 2
    if size == 126:
        if len(rest) < 4:
            return None
        size, start = int.from_bytes(rest[2:4], "big"), 4
    if len(rest) < start + size:
        return None
    if rest[0] != 0x82:
        return "closed"
    message = decode_from_scheduler(rest[start : start + size], peer="the scheduler")
    return message.code if isinstance(message, Refused) else type(message).__name__
