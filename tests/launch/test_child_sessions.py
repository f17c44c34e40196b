"""A child is not waited for before its session is signalled: from then on its number may be another process's."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from recovery.launch import child_process
from recovery.launch.child_process import ChildProcess
from recovery.launch.children import await_end, end, spawn
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.template import Template
from recovery.launch.worker_proxy import begin_program
from tests.launch.forking import orphans_left_alone
from tests.pace import HANG_S, is_gone, wait_for

LEAVES = "import os, pathlib, subprocess, sys; pathlib.Path(sys.argv[1]).write_text(str(subprocess.Popen(['sleep', '600']).pid))"
"""It ends, and leaves a process in its session."""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each session that was signalled: was there still a process of that number?"""
    seen: list[bool] = []
    real = os.killpg

    def killpg(leader: int, number: signal.Signals) -> None:
        seen.append(psutil.pid_exists(leader))
        real(leader, number)

    monkeypatch.setattr(os, "killpg", killpg)
    return seen


def _refuse(pid: int) -> int:
    raise OSError(24, "Too many open files")


def _is_gone(left: Path) -> bool:
    return is_gone(int(left.read_text()))


@pytest.mark.parametrize("has_descriptor", [True, False])
def test_what_a_child_leaves_is_killed_before_its_number_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[bool], *, has_descriptor: bool
) -> None:
    left = tmp_path / "left"
    if not has_descriptor:
        monkeypatch.setattr(os, "pidfd_open", _refuse)

    async def live() -> int:
        child = spawn(
            [sys.executable, "-c", LEAVES, str(left)], environment=dict(os.environ), conditions={}, log=2
        )
        status = await await_end(child)
        await end([child], 1.0)
        return status

    assert asyncio.run(live()) == 0
    assert killed == [True], "once, while its number was its own, and not again"
    wait_for(lambda: _is_gone(left), "the end of what it has left")


def test_the_same_holds_for_a_program_behind_a_worker_proxy(tmp_path: Path, killed: list[bool]) -> None:
    left = tmp_path / "left"
    program = begin_program([sys.executable, "-c", LEAVES, str(left)], os.environ, {})
    assert program.wait(60) == 0
    assert program.end(1.0) == 0
    assert killed == [True]
    wait_for(lambda: _is_gone(left), "the end of what it has left")


def test_the_same_holds_for_a_template_that_has_ended_by_itself(tmp_path: Path, killed: list[bool]) -> None:
    left = tmp_path / "left"
    (tmp_path / "ends.py").write_text(
        f"import os, pathlib, subprocess; pathlib.Path({str(left)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid)); os._exit(7)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with orphans_left_alone():
        template = Template(Prepare(modules=("ends",)), environment=environment)
        wait_for(lambda: template.process.has_ended, "its end")
        assert "exit code 7" in template.how_it_ended()
        template.end()
        assert killed == [True]
        assert "exit code 7" in template.how_it_ended()
        template.end()
    assert killed == [True], "once, while its number was its own, and not again"
    wait_for(lambda: _is_gone(left), "the end of what it has left")


def _spawned(*command: str) -> ChildProcess:
    return spawn(command, environment=os.environ, conditions={})


@pytest.mark.parametrize("has_descriptor", [True, False])
def test_a_child_gives_its_status_to_all_who_wait_and_none_before_its_end(
    monkeypatch: pytest.MonkeyPatch, *, has_descriptor: bool
) -> None:
    if not has_descriptor:
        monkeypatch.setattr(os, "pidfd_open", _refuse)
    for text, status in (("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)):
        child = _spawned(sys.executable, "-c", text)
        with ThreadPoolExecutor(4) as waiting:
            assert [*waiting.map(ChildProcess.wait, [child] * 4)] == [status] * 4
        assert child.has_ended
        assert child.end() == child.status == status
    child = _spawned("sleep", "600")
    assert (child.wait(0), child.wait(0.01), child.has_ended, child.status) == (None, None, False, None)
    assert child.end(60) == -signal.SIGTERM


def test_a_child_that_was_waited_for_is_not_signalled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another process's by then."""
    child = _spawned("true")
    assert child.wait() == 0
    monkeypatch.setattr(os, "kill", None)
    monkeypatch.setattr(os, "killpg", None)
    child.ask_to_end()
    assert child.end(1.0) == 0
    assert child.descriptor() is None


HOLDS = """
import multiprocessing, pathlib, sys, time
semaphore = multiprocessing.get_context("spawn").Semaphore()
pathlib.Path(sys.argv[1] + ".part").write_text(semaphore._semlock.name)
pathlib.Path(sys.argv[1] + ".part").rename(sys.argv[1])
time.sleep(600)
"""


def _semaphore(held: Path) -> Path:
    return Path("/dev/shm") / f"sem.{held.read_text().removeprefix('/')}"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker, another Python, may still be starting."""
    monkeypatch.setattr(child_process, "_TRACKER_MS", HANG_S * 1000)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", ["killed by somebody", "ended by us"])
def test_a_child_that_is_killed_leaves_no_semaphore(tmp_path: Path, how: str) -> None:
    """Nor does one that does not end when it is asked: multiprocessing's tracker ends behind it, and not with it."""
    held = tmp_path / "held"

    async def live() -> Path:
        command = [sys.executable, "-c", HOLDS, str(held)]
        child = spawn(command, environment=dict(os.environ), conditions={}, log=2)
        await asyncio.to_thread(wait_for, held.exists, "semaphore")
        semaphore = _semaphore(held)
        assert semaphore.exists()
        if how == "ended by us":
            await end([child], 0.0)
        else:
            os.kill(child.pid, signal.SIGKILL)
        await await_end(child)
        return semaphore

    assert not asyncio.run(live()).exists()


@pytest.mark.usefixtures("patient")
def test_a_program_behind_a_worker_proxy_leaves_none_either(tmp_path: Path) -> None:
    held = tmp_path / "held"
    program = begin_program([sys.executable, "-c", HOLDS, str(held)], os.environ, {})
    wait_for(held.exists, "semaphore")
    assert _semaphore(held).exists()
    program.end(0.0)
    assert not _semaphore(held).exists()
