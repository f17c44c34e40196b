"""A port that is free when it is chosen is another process's when it is used: MindSpore's scheduler takes another one."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from recovery.errors import UsageError
from recovery.mindspore import control_plane
from recovery.mindspore.control_plane import MindSporeScheduler
from recovery.training.session import Session
from recovery.transport.local_address import free_port

HOST = "127.0.0.1"
PROGRAM = """
import json, os, socket, sys
world = json.loads(sys.stdin.readline())
with open("asked", "a") as asked:
    asked.write(world["variables"]["MS_SCHED_PORT"] + "\\n")
if "REFUSES" in os.environ:
    sys.exit(7)
listening = socket.create_server((world["variables"]["MS_SCHED_HOST"], int(world["variables"]["MS_SCHED_PORT"])))
sys.stdin.readline()
"""
"""In the place of MindSpore's: like it, it takes one world, listens or ends, and ends with rank 0."""


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`control_plane` starts `PROGRAM`."""
    (tmp_path / "small_scheduler.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(control_plane, "MODULE", "small_scheduler")


def session() -> Session:
    """Of rank 0, in a generation that goes on."""
    return cast("Session", SimpleNamespace(host=HOST, world_size=2, check=lambda: None))


def served(monkeypatch: pytest.MonkeyPatch, ports: list[int]) -> str:
    """Where a scheduler serves that is given these ports, and then what is free."""
    monkeypatch.setattr(control_plane, "free_port", lambda host: ports.pop(0) if ports else free_port(host))
    scheduler = MindSporeScheduler()
    try:
        address = scheduler.serve(session(), {})
        with socket.create_connection((HOST, int(address.rpartition(":")[2]))):
            return address
    finally:
        scheduler.end()


@pytest.mark.usefixtures("scheduler")
def test_another_port_is_taken_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a mistake of the person who had started the job, with exit code 64."""
    with socket.create_server((HOST, 0)) as thief:
        taken = thief.getsockname()[1]
        address = served(monkeypatch, [taken])
    asked = (tmp_path / "asked").read_text().split()
    assert asked == [str(taken), address.rpartition(":")[2]]
    assert f"event=port_taken another process took port {taken}" in caplog.text


@pytest.mark.usefixtures("scheduler")
def test_ports_that_are_taken_again_and_again_end_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as thieves:
        taken = [
            thieves.enter_context(socket.create_server((HOST, 0))).getsockname()[1]
            for _ in range(control_plane._PORTS_MAX)
        ]
        with pytest.raises(UsageError, match=f"found ports {', '.join(map(str, taken))} taken"):
            served(monkeypatch, list(taken))


@pytest.mark.usefixtures("scheduler")
def test_a_scheduler_that_ends_for_another_reason_is_not_tried_on_another_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSES", "1")
    with pytest.raises(UsageError, match=r"does not listen on port \d+ \(exit code 7\)"):
        served(monkeypatch, [])
    assert len((tmp_path / "asked").read_text().split()) == 1
