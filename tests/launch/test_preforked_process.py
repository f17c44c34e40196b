"""A template forks its next process before it is asked for it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from recovery import process_conditions
from recovery.launch.forkserver import forked_child
from recovery.launch.forkserver.fork_messages import Fork, NotForked, Prepare, Prepared
from recovery.launch.forkserver.fork_requests import NotBegun
from recovery.launch.forkserver.preforked_process import PreforkedProcess
from recovery.launch.forkserver.template import Template
from tests.launch.forking import forked, orphans_left_alone, ready_template
from tests.pace import is_gone, wait_for


@pytest.fixture
def template() -> Iterator[Template]:
    with ready_template(Prepare(modules=())) as made:
        yield made


def made_ahead(template: Template) -> psutil.Process:
    """The process that waits to be asked for; below the one between it and the template."""

    def below() -> list[psutil.Process]:
        return psutil.Process(template.process.pid).children(recursive=True)

    wait_for(lambda: len(below()) == 2, "a process forked ahead")
    [between] = psutil.Process(template.process.pid).children()
    [ahead] = between.children()
    return ahead


def pid_of(answer: tuple[int, str]) -> int:
    status, said = answer
    assert status == 0, said
    return int(said)


def test_it_becomes_what_is_asked_for_and_the_next_one_follows(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.getpid())")
    for _ in range(2):
        ahead = made_ahead(template)
        assert pid_of(forked(template, tmp_path, "train.py")) == ahead.pid


def test_a_launcher_that_ends_with_its_parent_forks_too(template: Template, tmp_path: Path) -> None:
    """As below an actor of Ray: what it has of its parent's death was restored while the process between was still the parent, which is ended."""
    (tmp_path / "train.py").write_text(
        "from recovery import process_conditions; print(process_conditions.note()[process_conditions.PARENTS_DEATH])"
    )
    # On one processor, the template behind all others: what it forks goes on before it ends the process between.
    cpu = {min(os.sched_getaffinity(0))}
    os.setpriority(os.PRIO_PROCESS, template.process.pid, 19)
    for _ in range(10):
        ahead = made_ahead(template)
        for pid in (template.process.pid, ahead.pid):
            os.sched_setaffinity(pid, cpu)
        os.setpriority(os.PRIO_PROCESS, ahead.pid, 0)
        tied = {process_conditions.PARENTS_DEATH: signal.SIGKILL.value}
        assert forked(template, tmp_path, "train.py", conditions=tied) == (0, f"{signal.SIGKILL.value}\n")


def test_more_than_it_has_ahead_are_forked_at_once(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.getpid())")
    ahead = made_ahead(template)
    pids = [pid_of(forked(template, tmp_path, "train.py")) for _ in range(3)]
    assert pids[0] == ahead.pid
    assert len(set(pids)) == 3


def test_one_that_somebody_has_ended_is_not_used(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.getpid())")
    ahead = made_ahead(template)
    ahead.kill()
    wait_for(lambda: ahead.status() == psutil.STATUS_ZOMBIE, "its end")
    assert pid_of(forked(template, tmp_path, "train.py")) != ahead.pid


def test_a_stale_template_begins_nothing(tmp_path: Path) -> None:
    script, tool = tmp_path / "train.py", tmp_path / "tool.py"
    script.write_text("open('ran', 'w')")
    tool.write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]))), "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    with ready_template(Prepare(modules=("tool",)), environment) as watching:
        ahead = made_ahead(watching)
        tool.write_text("changed = True")
        answer = watching.begin(
            [sys.executable, "train.py"],
            environment=environment,
            log=2,
            conditions={"directory": str(tmp_path)},
        )
        assert isinstance(answer, NotBegun)
        assert answer.over
        # It came to this process when the one between was ended.
        assert os.waitstatus_to_exitcode(os.waitpid(ahead.pid, 0)[1]) == 1
    assert not (tmp_path / "ran").exists()


def test_an_installation_makes_it_stale(tmp_path: Path) -> None:
    site = tmp_path / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (site / "installed.py").write_text("A = 1\n")
    (site / "installed-1.dist-info").mkdir()
    (tmp_path / "train.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    prepare = Prepare(modules=("installed",))
    with orphans_left_alone(), Template(prepare, environment=environment, interpreter=python) as made:
        assert isinstance(made.await_ready(), Prepared)
        (site / "installed-1.dist-info").rename(site / "installed-2.dist-info")
        words = [python, "train.py"]
        begun = made.begin(words, environment=environment, log=2, conditions={"directory": str(tmp_path)})
        assert begun == NotBegun(reason=f"{site} has changed", over=True)


def test_a_report_counts_although_its_process_has_ended() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        forked_child.report_error(theirs.fileno(), OSError(errno.ENOENT, "gone"))
    with subprocess.Popen(["sleep", "60"]) as between:
        request = Fork.of(["python"], {}, {})
        answer = PreforkedProcess(between.pid, ours).begin(request, [], lambda: "")
        # It was waited for already.
        between.returncode = -signal.SIGKILL
    assert answer == NotForked(errno=errno.ENOENT, reason="gone")


@pytest.mark.parametrize("how", ["the launcher ends it", "it is killed"])
def test_it_ends_with_its_template(template: Template, how: str) -> None:
    ahead = made_ahead(template)
    between = ahead.parent()
    assert between is not None
    if how == "it is killed":
        os.kill(template.process.pid, signal.SIGKILL)
    else:
        template.end()
    # This process takes in orphans, as a launcher does.
    for one in (between, ahead):
        wait_for(partial(is_gone, one.pid), "its end")
        os.waitpid(one.pid, 0)
