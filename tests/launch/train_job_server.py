"""The controller of Kubeflow Trainer as a TrainJob's pods see it: over real HTTPS, by a certificate of an authority that nobody else trusts."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typing_extensions import override

from recovery import clock
from tests.tls.made import DAY, signed

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/research/trainjobs/resnet/status"
TOKEN = "a-canary-of-a-token"


class Controller:
    """`statuses` and `tokens` are what it was sent, oldest first; `answer` is what it says."""

    def __init__(self, directory: Path) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.answer: tuple[int, dict[str, Any]] = (200, {})
        self.location = ""
        self.after_post: Callable[[], None] = lambda: None
        self.goes_on = Event()
        """Cleared: it says nothing."""
        self.goes_on.set()
        self.ca, self.token = directory / "ca.crt", directory / "token"
        now = clock.utc_now()
        begin, end = now - DAY, now + DAY
        authority = signed("trainer", authority=True, begin=begin, end=end)
        pair = signed("localhost", authority, begin=begin, end=end)
        self.ca.write_bytes(authority.pem())
        self.token.write_text(f"{TOKEN}\n")
        (directory / "server.pem").write_bytes(pair.key_pem() + pair.pem())
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(directory / "server.pem")
        controller = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == PATH
                controller.goes_on.wait()
                controller.tokens.append(self.headers["Authorization"])
                controller.statuses.append(body["trainerStatus"])
                code, said = controller.answer
                controller.after_post()
                answer = json.dumps(said or body).encode()
                self.send_response(code)
                if controller.location:
                    self.send_header("Location", controller.location)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            @override
            def log_message(self, format: str, *args: object) -> None:
                del format, args

        class Server(ThreadingHTTPServer):
            @override
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that trusts nobody, or has given up, is what tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.server_bind()
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"https://localhost:{self._server.server_address[1]}{PATH}"

    @property
    def variables(self) -> dict[str, str]:
        """What Kubeflow Trainer sets in its pods."""
        return {
            "KUBEFLOW_TRAINER_SERVER_URL": self.url,
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.ca),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token),
        }

    def listen(self) -> None:
        """Before, a connection to its port is refused."""
        self._server.server_activate()
        self._server.socket = self._tls.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread.start()

    def close(self) -> None:
        self.goes_on.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def metrics(status: dict[str, Any]) -> dict[str, str]:
    """Of one status, by name."""
    return {one["name"]: one["value"] for one in status.get("metrics", [])}


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """It does not listen yet."""
    place = tmp_path / "trainer"
    place.mkdir()
    controller = Controller(place)
    yield controller
    controller.close()
