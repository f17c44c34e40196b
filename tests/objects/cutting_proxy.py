"""A way to an HTTP server on loopback that breaks at one request: nothing gets through from there on, as when the client were killed."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from enum import Enum

from typing_extensions import override

from tests.objects.way import Way

_REQUEST = re.compile(rb"(?:GET|PUT|POST|HEAD|DELETE) \S+ HTTP/1\.1\r\n")
_BYTES = 1 << 16


class Break(Enum):
    """What becomes of the request at which it breaks, and of those after it."""

    NOT_SENT = "cut before the server has it"
    NOT_ANSWERED = "the server has done it, and nobody hears of that"
    ERROR = "answered with 500"


class CuttingProxy(Way):
    """Listens on a port of its own until it is closed."""

    def __init__(self, address: str, how: Break, at: int) -> None:
        """Begin to listen.

        Args:
            address: of the server, `http://host:port`.
            how: it breaks.
            at: the 1-based number of the request.
        """
        self._how, self._at = how, at
        self.requests = 0
        self._counting = threading.Lock()
        super().__init__(address)

    @property
    def has_broken(self) -> bool:
        return self.requests >= self._at

    @override
    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._server) as server:
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while piece := client.recv(_BYTES):
                with self._counting:
                    self.requests += bool(_REQUEST.match(piece))
                    number = self.requests
                if number < self._at:
                    server.sendall(piece)
                elif self._how is Break.ERROR:
                    client.sendall(b"HTTP/1.1 500 Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    break
                elif self._how is Break.NOT_SENT or number > self._at:
                    break
                else:
                    server.sendall(piece)
            for end in (client, server):
                end.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(_BYTES):
                if self._how is Break.NOT_ANSWERED and self.has_broken:
                    break
                client.sendall(piece)
            client.shutdown(socket.SHUT_RDWR)
