"""Whoever sees a process dial may ask it to stop at once: from its first message on it leaves in order."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

_PROGRAM = """
import os, signal
import recovery
from recovery.worker.service import WorkerService

start = WorkerService.start

def asked_while_it_starts(self):
    if {before}:
        os.kill(os.getpid(), {number})
    start(self)
    if not {before}:
        os.kill(os.getpid(), {number})

WorkerService.start = asked_while_it_starts
recovery.run(lambda session: None)()
"""


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_that_is_asked_to_stop_while_its_connection_starts_leaves_in_order(
    number: signal.Signals, before: bool
) -> None:
    program = _PROGRAM.format(before=before, number=int(number))
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        environment = {
            "MS_ROLE": "MS_WORKER",
            "MS_WORKER_NUM": "1",
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(nobody.getsockname()[1]),
            "MS_NODE_ID": "worker_0",
        }
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 128 + number, done.stderr
    assert f"STOPPED: stopped by {number.name}" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
