"""Programs of a worker proxy: forked from a template of the proxy's own, they are what a spawned proxy's spawned programs are."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.template import Template
from tests.launch.forking import forked, orphans_left_alone, ready_template, spawned
from tests.launch.test_forked_picture import MODULES, PICTURE, TRAINING, seen
from tests.pace import is_gone, wait_for

PROXY = """
import ctypes, os, sys
from recovery.launch.worker_proxy import begin_program
from recovery.worker import exec_in_place
environment = {**exec_in_place.start_environment(), "RANK": "1", "MASTER_PORT": "1"}
HOLD
for _ in range(int(os.environ.get("STARTS", "1"))):
    process = begin_program([sys.executable, *sys.argv[1:]], environment, {})
    process.wait()
    process.end(60.0)
    ctypes.CDLL(None).prctl(37, ctypes.byref(takes_in := ctypes.c_int()))
    print(process.is_forked, process.status, takes_in.value, os.getpid(), file=sys.stderr)
"""
"""Says after each end of its program how that was begun and how it ended, and whether this process is still given orphans."""


def proxy(directory: Path, hold: str = "") -> str:
    (directory / "proxy.py").write_text(PROXY.replace("HOLD", hold))
    return "proxy.py"


def ends(output: str) -> list[tuple[bool, int]]:
    """Of each program: was it forked, and its status."""
    said = [line.split() for line in output.splitlines() if line.startswith(("True ", "False "))]
    assert {takes_in for _, _, takes_in, _ in said} == {"0"}, "orphans are the launcher's"
    return [(was_forked == "True", int(status)) for was_forked, status, _, _ in said]


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    environment = {**os.environ, "ONLY_TEMPLATE": "yes", "MS_NODE_ID": "template", "TZ": "UTC"}
    with ready_template(
        Prepare(modules=MODULES, compared=("numpy", "torch"), programs=True), environment
    ) as made:
        yield made


@pytest.fixture
def bare() -> Iterator[Template]:
    with ready_template(Prepare(modules=("colorsys",), programs=True)) as made:
        yield made


@pytest.mark.parametrize("words", [("train.py", "--epochs", "3"), ("-m", "train", "x")])
def test_the_whole_picture_is_the_same(template: Template, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(PICTURE)
    environment = {**os.environ, "MS_NODE_ID": "3", "ONLY_HERE": "ä=\n b", "TZ": "Asia/Tokyo", "EMPTY": ""}
    answers = {
        True: forked(template, tmp_path, proxy(tmp_path), *words, environment=environment),
        False: spawned(tmp_path, proxy(tmp_path), *words, environment=environment),
    }
    found = {}
    for is_forked, (status, output) in answers.items():
        assert ends(output) == [(is_forked, 0)], output
        pictured = next(line for line in output.splitlines() if line.startswith("{"))
        found[is_forked] = seen((status, pictured))
        assert found[is_forked]["status"].pop("PPid") == output.split()[-1], "it is a child of its proxy"
    fork, spawn = found[True], found[False]
    # As for any forked process: five calls of ours, and threads that a library starts when they are needed.
    assert fork.pop("stack") - spawn.pop("stack") == 5
    assert fork.pop("threads") <= spawn.pop("threads")
    for name in spawn:
        assert fork[name] == spawn[name], name


@pytest.mark.slow
def test_a_training_ends_with_the_same_bits(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    fork = forked(template, tmp_path, proxy(tmp_path), "train.py")[1].splitlines()
    spawn = spawned(tmp_path, proxy(tmp_path), "train.py")[1].splitlines()
    assert fork[:-1] == spawn[:-1]


RANDOM = (
    "import random, numpy, torch\nprint('drawn', random.random(), numpy.random.rand(), torch.rand(1).item())"
)


def test_no_two_programs_draw_the_same_random_numbers(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANDOM)
    environment = {**os.environ, "STARTS": "3"}
    output = forked(template, tmp_path, proxy(tmp_path), "train.py", environment=environment)[1]
    drawn = [line.split()[1:] for line in output.splitlines() if line.startswith("drawn")]
    assert len(ends(output)) == len(drawn) == 3
    for values in zip(*drawn, strict=True):
        assert len(set(values)) == 3


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_its_proxy_sees_how_it_ended(bare: Template, tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "train.py").write_text(text)
    output = forked(bare, tmp_path, proxy(tmp_path), "train.py")[1]
    assert ends(output) == [(True, status)]
    assert ("ZeroDivisionError" in output) == (status == 1)


def test_what_the_imports_set_is_the_programs(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "telling.py").write_text("import os\nos.environ['TOLD'] = 'yes'\n")
    (tmp_path / "train.py").write_text("import telling, os\nprint('TOLD', os.environ['TOLD'])\n")
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join((str(packages), *filter(None, [os.environ.get("PYTHONPATH")]))),
        "STARTS": "2",
    }  # fmt: skip
    hold = "print(os.environ.get('TOLD'), 'of the proxy', flush=True)"
    with ready_template(
        Prepare(modules=("telling",), compared=("telling",), programs=True), environment
    ) as made:
        fork = forked(made, tmp_path, proxy(tmp_path, hold), "train.py", environment=environment)[1]
    spawn = spawned(tmp_path, proxy(tmp_path, hold), "train.py", environment=environment)[1]
    assert ends(fork) == [(True, 0)] * 2

    def shown(output: str) -> list[str]:
        return [line for line in output.splitlines() if not line.startswith(("True", "False"))]

    assert shown(fork) == shown(spawn)
    assert shown(fork) == ["None of the proxy", *["TOLD yes"] * 2]


STOP = """
import time
open("waits", "w").close()
while not os.path.exists("go_on"): time.sleep(0.01)
"""
"""Put into a proxy: it waits before it starts a program."""


def begun(template: Template, directory: Path, hold: str) -> psutil.Process:
    """A proxy that waits."""
    with (directory / "log").open("wb") as log:
        pid = template.begin(
            [sys.executable, proxy(directory, hold), "train.py"],
            environment={**os.environ, "STARTS": "2"},
            log=log.fileno(),
            conditions={"directory": str(directory)},
        )
    assert isinstance(pid, int), pid
    wait_for((directory / "waits").exists, "a proxy that waits")
    return psutil.Process(pid)


@pytest.mark.parametrize("how", ["killed", "stale"])
def test_programs_are_spawned_when_their_template_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "packages").mkdir()
    tool = tmp_path / "packages" / "tool.py"
    tool.write_text("text = 'old'\n")
    (tmp_path / "train.py").write_text("import tool\nprint(tool.text)")
    monkeypatch.setenv("PYTHONPATH", str(tool.parent), prepend=os.pathsep)
    with ready_template(Prepare(modules=("tool",), programs=True)) as made:
        process = begun(made, tmp_path, STOP)
        [own] = process.children()
        assert "template_process.py" in " ".join(own.cmdline()), "nobody takes it for another proxy"
        if how == "killed":
            own.kill()
        else:
            tool.write_text("text = 'new one'\n")
        (tmp_path / "go_on").touch()
        assert os.waitpid(process.pid, 0)[1] == 0
    output = (tmp_path / "log").read_text()
    assert ends(output) == [(False, 0)] * 2
    reason = "killed by SIGKILL" if how == "killed" else "tool.py has changed"
    [line] = [line for line in output.splitlines() if reason in line]
    assert output.count("new one" if how == "stale" else "old") == 2
    assert not own.is_running(), line


def test_a_killed_proxy_takes_its_program_and_their_template_with_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nopen('runs', 'w').close()\ntime.sleep(600)")
    (tmp_path / "go_on").touch()
    with orphans_left_alone(), ready_template(Prepare(modules=(), programs=True)) as made:
        process = begun(made, tmp_path, STOP)
        wait_for((tmp_path / "runs").exists, "the program")
        theirs = process.children()
        assert len(theirs) == 2, "the program, and what it was forked from"
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        wait_for(
            lambda: all(is_gone(one.pid) for one in theirs),
            "end of its program and of their template",
        )
        for one in theirs:
            # The thread that waits for the program is the last of the killed proxy now and then, and reaps it while it dies.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one.pid, 0)


def test_a_template_without_programs_gives_its_processes_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with ready_template(Prepare(modules=())) as made:
        assert ends(forked(made, tmp_path, proxy(tmp_path), "train.py")[1]) == [(False, 0)]
