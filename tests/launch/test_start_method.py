"""The launcher forks where it can, spawns where it cannot, says which and why, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from recovery import clock
from recovery.errors import LaunchFailedError
from recovery.launch import start_method
from recovery.launch.child_process import ChildProcess
from recovery.launch.children import await_end
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.job_spec import StartMethod
from recovery.launch.start_method import ProcessStarter, TemplatePlan, named_few
from tests.launch.forking import orphans_left_alone

QUIET = 0.05


@pytest.fixture(autouse=True)
def _takes_in_no_orphans_afterwards() -> Iterator[None]:
    with orphans_left_alone():
        yield


def plan(*modules: str) -> TemplatePlan:
    return TemplatePlan(
        interpreter=sys.executable,
        options=(),
        environment=dict(os.environ),
        cpus=(),
        prepare=lambda: Prepare(modules=modules),
    )


async def begin(beginner: ProcessStarter, script: Path, *, may_fork: bool = True) -> ChildProcess:
    with (script.parent / "log").open("wb") as log:
        return await beginner.begin(
            [sys.executable, str(script)], environment=os.environ, cpus=(), log=log, may_fork=may_fork
        )


async def spawned(beginning: Awaitable[ChildProcess]) -> None:
    child = await beginning
    assert not child.is_forked
    await await_end(child)


async def forked_at_last(beginner: ProcessStarter, script: Path) -> None:
    """Whoever is begun while a template is made again is spawned."""
    while not (child := await begin(beginner, script)).is_forked:
        await await_end(child)
    await await_end(child)


async def until(condition: Callable[[], bool]) -> None:
    deadline_ms = clock.monotonic_ms() + 120_000
    while not condition():
        assert clock.monotonic_ms() < deadline_ms, "waited in vain"
        await asyncio.sleep(QUIET)


def used(
    method: StartMethod,
    plan: TemplatePlan | None,
    use: Callable[[ProcessStarter], Awaitable[None]],
    why: str = "",
) -> None:
    """Use one from its start to its end."""

    async def run() -> None:
        beginner = ProcessStarter(method, plan, why)
        beginner.start()
        try:
            await use(beginner)
        finally:
            await beginner.end()

    asyncio.run(run())


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import sys\nprint('colorsys' in sys.modules)\nsys.exit(3)")
    return path


def test_workers_are_forked_and_the_scheduler_is_not(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def use(beginner: ProcessStarter) -> None:
        forked, spawned = await asyncio.gather(
            begin(beginner, script), begin(beginner, script, may_fork=False)
        )
        assert (forked.is_forked, spawned.is_forked) == (True, False)
        assert (await await_end(forked), await await_end(spawned)) == (3, 3)
        assert (await await_end(await begin(beginner, script))) == 3
        assert (script.parent / "log").read_text() == "True\n"

    used(StartMethod.AUTO, plan("colorsys"), use)
    assert "modules in" in capsys.readouterr().out


def test_nothing_is_forked_where_that_was_asked_for(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def use(beginner: ProcessStarter) -> None:
        await spawned(begin(beginner, script))

    used(StartMethod.SPAWN, plan("colorsys"), use)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("made_of", [None, plan("antigravity_that_is_unsafe")])
def test_what_cannot_be_forked_is_spawned_with_one_line_why(
    script: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made_of: TemplatePlan | None,
) -> None:
    (tmp_path / "antigravity_that_is_unsafe.py").write_text("raise SystemExit(0)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    if made_of is not None:
        made_of.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]

    async def use(beginner: ProcessStarter) -> None:
        for _ in range(2):
            await spawned(begin(beginner, script))

    why = "numactl is what they are started by"
    why = why if made_of is None else ""
    used(StartMethod.AUTO, made_of, use, why)
    expected = why if made_of is None else "importing antigravity_that_is_unsafe ended with SystemExit: 0"
    # A busy machine may say besides that the template takes its time.
    said = [line for line in capsys.readouterr().out.splitlines() if "still imports after" not in line]
    assert said == [f"workers are spawned, not forked: {expected}"]

    async def refused(beginner: ProcessStarter) -> None:
        with pytest.raises(LaunchFailedError, match=expected):
            await begin(beginner, script)
        await spawned(begin(beginner, script, may_fork=False))

    used(StartMethod.FORK, made_of, refused, why)


@pytest.mark.parametrize("method", [StartMethod.AUTO, StartMethod.FORK])
@pytest.mark.parametrize("prepare", [Prepare(modules=("gone",), refusal="it acts", programs=True), None])
def test_worker_proxies_are_forked_where_their_programs_cannot_be(
    script: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: StartMethod,
    prepare: Prepare | None,
) -> None:
    (tmp_path / "acting.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    of_programs = prepare or Prepare(modules=("acting",), programs=True)
    made_of = msgspec.structs.replace(
        plan(), prepare=lambda: of_programs, proxies_only=lambda: Prepare(modules=("colorsys",))
    )

    async def use(beginner: ProcessStarter) -> None:
        for _ in range(2):
            child = await begin(beginner, script)
            assert child.is_forked
            await await_end(child)
        assert (tmp_path / "log").read_text() == "True\n"

    used(method, made_of, use)
    said = " ".join(capsys.readouterr().out.split())
    reason = "it acts" if prepare else "the imports have started 1 threads"
    assert said.count(f"the programs behind the worker proxies are spawned, not forked: {reason}") == 1
    assert "workers are forked from it" in said
    assert "workers are spawned" not in said


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that a template can import, and that may change."""
    path = tmp_path / "packages" / "tool.py"
    path.parent.mkdir()
    path.write_text("")
    monkeypatch.setenv("PYTHONPATH", str(path.parent), prepend=os.pathsep)
    return path


def template_pid(capsys: pytest.CaptureFixture[str]) -> int:
    """Of the newest one that said that it is ready."""
    return int(re.findall(r"the template \(pid (\d+)\) has imported", capsys.readouterr().out)[-1])


@pytest.mark.parametrize("how", ["killed, seen at once", "killed, seen at a fork", "stale"])
def test_a_template_of_no_use_is_made_again_and_workers_are_spawned_meanwhile(
    script: Path, tool: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    async def use(beginner: ProcessStarter) -> None:
        await await_end(await begin(beginner, script))
        pid, said = template_pid(capsys), ""
        if how == "stale":
            tool.write_text("changed = True\n")  # noqa: ASYNC240 - a few bytes
        else:
            os.kill(pid, signal.SIGKILL)
            await until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
            if how.endswith("at once"):
                beginner.look_after()
                said = capsys.readouterr().out
                assert "is of no use any more" in said

        await spawned(begin(beginner, script))
        said = said or capsys.readouterr().out
        reason = "tool.py has changed" if how == "stale" else "it has ended (killed by SIGKILL"
        assert said.startswith(f"the template (pid {pid}) is of no use any more: ")
        assert reason in said
        assert "it is made again, and workers are spawned meanwhile" in said
        await forked_at_last(beginner, script)

    used(StartMethod.AUTO, plan("colorsys", "tool"), use)


@pytest.mark.parametrize("how", ["killed", "stale"])
def test_all_that_wait_for_a_template_of_no_use_are_spawned(
    script: Path, tool: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    async def use(beginner: ProcessStarter) -> None:
        await await_end(await begin(beginner, script))
        pid = template_pid(capsys)
        os.kill(pid, signal.SIGSTOP)
        if how == "stale":
            tool.write_text("changed = True\n")  # noqa: ASYNC240 - a few bytes
        beginnings = [asyncio.ensure_future(begin(beginner, script)) for _ in range(3)]
        await asyncio.sleep(QUIET)
        os.kill(pid, signal.SIGCONT if how == "stale" else signal.SIGKILL)
        for beginning in beginnings:
            await spawned(beginning)
        assert capsys.readouterr().out.count("is of no use any more") == 1

    used(StartMethod.AUTO, plan("colorsys", "tool"), use)


def test_a_template_that_ends_again_and_again_is_given_up(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def use(beginner: ProcessStarter) -> None:
        for _ in range(5):
            await forked_at_last(beginner, script)
            os.kill(template_pid(capsys), signal.SIGKILL)
            await await_end(await begin(beginner, script))
        assert "it was made 5 times, so workers are spawned" in capsys.readouterr().out
        await spawned(begin(beginner, script))

    used(StartMethod.AUTO, plan(), use)


def test_a_template_that_a_shortage_has_prevented_is_made_once_a_process_can_be_begun(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        beginner = ProcessStarter(StartMethod.AUTO, plan("colorsys"))
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            beginner.start()
            await beginner.first_template()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        try:
            assert "workers are spawned, not forked" in capsys.readouterr().out
            await spawned(begin(beginner, script))
            assert "the template is made again" in capsys.readouterr().out
            await forked_at_last(beginner, script)
        finally:
            await beginner.end()

    asyncio.run(run())


LEAVES = """
import os, subprocess
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "60"])
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid()
    while os.getppid() != int(os.environ["LAUNCHER"]):
        pass
    os._exit(0)
"""


@pytest.mark.parametrize("method", [StartMethod.AUTO, StartMethod.SPAWN])
def test_what_processes_leave_behind_is_reaped_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, method: StartMethod
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVES)
    monkeypatch.setenv("LAUNCHER", str(os.getpid()))
    # Other tests of this process may have left zombies to it.
    before = set(psutil.Process().children())

    def children() -> list[psutil.Process]:
        return [one for one in psutil.Process().children() if one not in before]

    async def use(beginner: ProcessStarter) -> None:
        mine = await asyncio.create_subprocess_exec("sleep", "60")
        child = await begin(beginner, script)
        assert await await_end(child) == 0
        await until(lambda: psutil.STATUS_ZOMBIE in [one.status() for one in children()])
        await until(lambda: [one.name() for one in children()].count("sleep") == 2)
        beginner.look_after()
        assert psutil.STATUS_ZOMBIE not in [one.status() for one in children()]
        assert [one.name() for one in children()].count("sleep") == 2
        await beginner.end()
        [left] = [one for one in children() if one.name() == "sleep"]
        assert left.pid == mine.pid, "a process of its own session is somebody else's"
        mine.kill()
        await mine.wait()

    used(method, plan(), use)
    assert "ending what the job's processes have left: sleep (pid " in capsys.readouterr().out


def test_a_stop_while_the_template_imports_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\nopen('importing', 'w')\ntime.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)

    # Other tests of this process may have left zombies to it.
    before = set(psutil.Process().children())

    async def use(_: ProcessStarter) -> None:
        await until((tmp_path / "importing").exists)

    used(StartMethod.AUTO, plan("slow_to_import"), use)
    # What the template itself had begun may be ours by now: it has ended as well.
    left = set(psutil.Process().children()) - before
    assert {one.status() for one in left} <= {psutil.STATUS_ZOMBIE}


def test_imports_that_take_long_are_said_while_they_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = tmp_path / "go_on"
    (tmp_path / "slow_to_import.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
    )
    printed = [""]

    def said() -> str:
        printed[0] += capsys.readouterr().out
        return " ".join(printed[0].split())

    monkeypatch.setattr(start_method, "_SILENT_S", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = tmp_path / "train.py"
    script.write_text("")

    async def use(beginner: ProcessStarter) -> None:
        await until(lambda: "still imports after 0.5 s (slow_to_import)" in said())
        go_on.touch()
        child = await begin(beginner, script)
        await await_end(child)

    used(StartMethod.AUTO, plan("slow_to_import"), use)


def test_of_many_modules_the_first_packages_are_named() -> None:
    of_a_script = (
        "os",
        "sys",
        "torch",
        "torch.nn",
        "torch.utils.data",
        "numpy",
        "aiohttp",
        "recovery.torch",
        "yaml",
    )
    assert named_few(of_a_script) == "torch, numpy, aiohttp and 2 more packages"
    assert named_few(("os", "json")) == "os, json"
