"""A name server that does not answer: a scheduler listens, and ends, without waiting for its own name."""

from __future__ import annotations

import signal
from pathlib import Path

from recovery.transport.job_token import Authenticator
from tests.protocol.conftest import Scheduler
from tests.protocol.websocket import request

SILENT = "import socket, threading\nsocket.getfqdn = lambda name='': threading.Event().wait()\n"


def test_a_scheduler_does_not_wait_for_the_name_of_its_host(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SILENT)
    scheduler = Scheduler(tmp_path, {"MS_JOB_TOKEN": "off", "PYTHONPATH": str(tmp_path)})
    try:
        assert request(scheduler.port, "GET /status HTTP/1.1\nHost: localhost")[0] == 200
        scheduler.process.send_signal(signal.SIGTERM)
        assert scheduler.wait_end() == 128 + signal.SIGTERM
    finally:
        scheduler.process.kill()
        scheduler.process.wait(60)


def test_a_name_that_is_found_later_is_its_own_from_then_on() -> None:
    it = Authenticator(None, frozenset({"node-0"}))
    assert it.is_foreign("node-0.example:8118")
    it.is_also("Node-0.example.")
    assert not it.is_foreign("node-0.example:8118")
    assert not it.is_foreign("node-0")
    assert it.is_foreign("node-0.evil.example")
