"""Whom a launcher ends when its job is over, and how."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.launch import orphan_reaper
from recovery.launch.orphan_reaper import OrphanReaper
from tests.pace import wait_for


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Children with sessions of their own, as orphans of the job's processes have them; none is left behind."""
    children: list[subprocess.Popen[bytes]] = []
    yield children
    for child in children:
        child.kill()
        child.wait()


def start(started: list[subprocess.Popen[bytes]], *words: str) -> int:
    started.append(subprocess.Popen(words, start_new_session=True))
    return started[-1].pid


def is_there(pid: int) -> bool:
    return pid in orphan_reaper._children()


def test_whom_it_may_not_end_is_named_and_left_and_the_others_are_ended(
    started: list[subprocess.Popen[bytes]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = OrphanReaper()
    anothers, mine = start(started, "sleep", "60"), start(started, "sleep", "61")
    allowed = os.kill

    def kill(pid: int, number: int) -> None:
        if pid == anothers:
            raise PermissionError(1, "Operation not permitted")
        allowed(pid, number)

    # A user who may not end another's process cannot be had where the tests run as root.
    monkeypatch.setattr(os, "kill", kill)
    asyncio.run(ended.end())
    assert (is_there(anothers), is_there(mine)) == (True, False)
    said = capsys.readouterr().out
    assert said.count(f"sleep (pid {anothers}) cannot be ended: it is another user's") == 1


def test_children_that_were_there_before_the_job_are_kept(
    started: list[subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    helper = start(started, "sleep", "60")
    others = OrphanReaper()
    others.start()
    asyncio.run(others.end())
    assert is_there(helper)
    assert capsys.readouterr().out == ""


ASKED = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (os.mkdir('asked'), sys.exit()))
os.mkdir('ready')
signal.pause()
"""
DEAF = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.mkdir('ready'); signal.pause()"


@pytest.mark.parametrize(("text", "grace_s"), [(ASKED, 300.0), (DEAF, 0.2)], ids=["asked", "deaf"])
def test_what_is_left_is_asked_to_end_before_it_is_killed(
    started: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    grace_s: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(orphan_reaper, "_GRACE_S", grace_s)
    ended = OrphanReaper()
    pid = start(started, sys.executable, "-c", text)
    wait_for((tmp_path / "ready").exists, "the process")
    asyncio.run(ended.end())
    assert (tmp_path / "asked").exists() == (text == ASKED)
    assert not is_there(pid)


def test_a_launcher_without_descriptors_says_that_it_does_not_look_and_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    looks = OrphanReaper()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        looks.reap()
        looks.reap()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    said = "what processes leave behind is not looked for (Too many open files); it is tried again"
    assert " ".join(capsys.readouterr().out.split()) == said


def test_what_was_killed_with_a_template_is_not_said_to_be_left(
    started: list[subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = OrphanReaper()
    template = start(started, "sleep", "60")
    ended.keep(template)
    ended.forget(template)
    asyncio.run(ended.end())
    assert not is_there(template)
    assert capsys.readouterr().out == ""
