"""What somebody of this host sends to `POST /drain` is refused in words, whatever it is, and nothing begins."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.protocol.conftest import Scheduler

HOST, WAIT_S = "127.0.0.1", 20


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    made = Scheduler(Path(tmp_path_factory.mktemp("scheduler")), {"MS_JOB_TOKEN": "off"})
    yield made
    made.process.kill()
    made.process.wait(WAIT_S)


@pytest.mark.parametrize(
    "body",
    [
        b'{"target":"\xff\xfe"}',
        b'{"target":"\xed\xa0\x80"}',
        b'{"target":"\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"",
        b"{}",
        b"null",
        b'{"target":1}',
        b'{"target":' + b"[" * 400,
    ],
    ids=repr,
)
def test_a_body_that_is_no_request_is_refused_in_words(scheduler: Scheduler, body: bytes) -> None:
    connection = http.client.HTTPConnection(HOST, scheduler.port, timeout=WAIT_S)
    try:
        connection.request("POST", "/drain", body)
        answer = connection.getresponse()
        assert answer.status == 400
        assert json.loads(answer.read())["refused"]
    finally:
        connection.close()
    assert "Traceback" not in scheduler.log()
