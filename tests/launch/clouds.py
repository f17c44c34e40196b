"""A metadata service as clouds have it, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from typing_extensions import override

AWS = "/latest/meta-data/spot/instance-action"


class Cloud:
    """A metadata service; `answers` by path, and the headers that it wants. Serves while it is a context."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.wants: dict[str, str] = {}
        self.token = ""
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                refused = any(self.headers.get(name) != value for name, value in cloud.wants.items())
                self._answer(*((401, "") if refused else cloud.answers.get(self.path, (404, ""))))

            def do_PUT(self) -> None:
                is_token = self.path == "/latest/api/token" and self.headers.get(
                    "X-aws-ec2-metadata-token-ttl-seconds"
                )
                self._answer(*((200, cloud.token) if is_token else (404, "")))

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            @override
            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.address = f"http://{address}:{self.server.server_address[1]}"
        self._thread = Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> Cloud:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud() as cloud:
        yield cloud
