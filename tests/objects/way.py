"""A way to an HTTP server on loopback, on a port of its own; what becomes of a connection is for its kinds to say."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

from typing_extensions import Self


class Way:
    """Listens until it is left as a context manager, and serves each connection in a thread."""

    def __init__(self, address: str) -> None:
        """Begin to listen: what a kind needs to serve is there before.

        Args:
            address: of the server, `http://host:port`.
        """
        parts = urlsplit(address)
        self._server = (str(parts.hostname), int(parts.port or 80))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        raise NotImplementedError
