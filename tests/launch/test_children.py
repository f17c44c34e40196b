"""How a child begins: tied to this process and to its processors, with nothing of ours run between fork and exec."""

from __future__ import annotations

import ast
import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil

import recovery
from recovery.errors import ROWS
from recovery.launch.children import await_end, spawn, tied
from recovery.launch.pre_exec import CANNOT_BE_STARTED
from tests.pace import is_gone, wait_for

PRINT_CPUS = (sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))")

PARENT = """
import subprocess, time
from recovery.launch.children import tied
child = subprocess.Popen(tied(["sleep", "600"]), start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


async def lived(*command: str, cpus: tuple[int, ...] = (), log: Path) -> int:
    with log.open("wb") as stream:
        child = spawn(
            command, environment=dict(os.environ), conditions={"processors": cpus} if cpus else {}, log=stream
        )
    return await await_end(child)


def test_a_child_runs_on_its_processors_and_gives_its_status(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    assert asyncio.run(lived(*PRINT_CPUS, cpus=(last,), log=tmp_path / "log")) == 0
    assert (tmp_path / "log").read_text().split() == [str(last)]
    assert asyncio.run(lived(sys.executable, "-c", "raise SystemExit(7)", log=tmp_path / "log")) == 7


def test_a_child_that_a_signal_ends_gives_the_signal(tmp_path: Path) -> None:
    async def killed() -> int:
        child = spawn(["sleep", "600"], environment=dict(os.environ), conditions={}, log=subprocess.DEVNULL)
        child.ask_to_end()
        return await await_end(child)

    assert asyncio.run(killed()) == -signal.SIGTERM


def test_a_child_without_a_descriptor_is_waited_for_all_the_same() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def without_descriptors() -> int:
        child = spawn(
            [sys.executable, "-c", "raise SystemExit(7)"],
            environment=dict(os.environ),
            conditions={},
            log=subprocess.DEVNULL,
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            return await await_end(child)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert asyncio.run(without_descriptors()) == 7


def test_a_command_that_cannot_be_started_says_so_by_its_exit_code(tmp_path: Path) -> None:
    assert ROWS["LAUNCH_FAILED"].exit_code == CANNOT_BE_STARTED
    assert asyncio.run(lived("/no/such/program", log=tmp_path / "log")) == ROWS["LAUNCH_FAILED"].exit_code
    said = (tmp_path / "log").read_text()
    assert said == "LAUNCH_FAILED: /no/such/program cannot be started (No such file or directory)\n"


def test_a_child_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    wait_for(lambda: child.name() == "sleep", "the child's program")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: is_gone(child.pid), "its end")


def test_a_child_whose_parent_died_before_it_began_does_not_begin(tmp_path: Path) -> None:
    command = tied(["touch", str(tmp_path / "began")])
    # Process 1 did not start it.
    command[command.index(str(os.getpid()))] = "1"
    assert subprocess.run(command, check=True).returncode == 0
    assert not (tmp_path / "began").exists()


def test_nothing_of_ours_runs_between_fork_and_exec() -> None:
    """A lock that another thread holds at the fork (an import's) is held for ever in the child."""
    sources = sorted(Path(recovery.__file__).parent.rglob("*.py"))
    found = [
        f"{path.name}:{node.value.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "preexec_fn"
    ]
    assert len(sources) > 100
    assert found == []
