"""What changes something over HTTP is for processes of the scheduler's own host."""

from __future__ import annotations

import http.client

import pytest

from recovery.transport import inspection_client
from recovery.transport.inspection_server import ACTION_BYTES_MAX, Inspection
from tests.transport.wire import HOST, WAIT_S, in_thread, run, serving


def _post(
    port: int, body: bytes, *, source: str = HOST, path: str = "/act", headers: dict[str, str] | None = None
) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_S, source_address=(source, 0))
    try:
        connection.request("POST", path, body, headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


class Actor:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def act(self, body: bytes) -> tuple[int, object]:
        self.asked.append(body)
        return (409, {"refused": "no"}) if body == b'"refuse"' else (202, {"begun": 1})


@pytest.mark.parametrize(
    ("what", "status"), [("own", 202), ("other address", 403), ("browser", 403), ("long", 413), ("view", 405)]
)
def test_only_a_process_of_this_host_may_act(what: str, status: int) -> None:
    actor = Actor()

    async def main() -> int:
        async with serving(inspection=Inspection(actions=(("/act", actor.act),))) as (_, port):
            body = b"x" * (ACTION_BYTES_MAX + 1) if what == "long" else b"{}"
            headers = {"Origin": "http://evil.example"} if what == "browser" else {}
            source = "127.0.0.2" if what == "other address" else HOST
            path = "/healthz" if what == "view" else "/act"
            return await in_thread(lambda: _post(port, body, source=source, path=path, headers=headers))

    assert run(main()) == status
    assert actor.asked == ([b"{}"] if status == 202 else [])


def test_what_an_action_refuses_has_its_reason() -> None:
    actor = Actor()

    async def main() -> tuple[object, object]:
        async with serving(inspection=Inspection(actions=(("/act", actor.act),))) as (_, port):
            begun = await inspection_client.ask(HOST, port, "/act", post={"target": "worker_1"})
            return begun, await inspection_client.ask(HOST, port, "/act", post="refuse")

    assert run(main()) == ({"begun": 1}, {"refused": "no"})
    assert actor.asked[0] == b'{"target": "worker_1"}'


def test_who_asks_for_what_is_no_action_gets_no_answer() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            with pytest.raises(inspection_client.NoAnswerError):
                await inspection_client.ask(HOST, port, "/healthz", post={})

    run(main())
