"""Each condition of a process's start: what its launcher has become since the first start reaches no later one."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from recovery import process_conditions
from recovery.launch.children import await_end
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.job_spec import Host, StartMethod
from recovery.launch.placement import Placed, Script, environment_of, place
from recovery.launch.start_method import ProcessStarter, TemplatePlan
from tests.launch.forking import orphans_left_alone
from tests.launch.typed import job
from tests.pace import HANG_S

SHOWS = "import json\nfrom recovery import process_conditions\nprint(json.dumps(process_conditions.note()))\n"
NAMES = [one.name for one in process_conditions.TABLE]

_PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""


def _lower_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


CHANGES: Mapping[str, Callable[[], object]] = {
    "limits": _lower_limit,
    "directory": lambda: os.chdir("/"),
    "processors": lambda: os.sched_setaffinity(0, [max(os.sched_getaffinity(0))]),
    "niceness": lambda: os.nice(3),
    "scheduling": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    "file mode mask": lambda: os.umask(0o077),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]),
    "ignored signals": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    "out of memory score": lambda: Path("/proc/self/oom_score_adj").write_text("100"),
    "signal of the parent's death": lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR2),
}
"""What a person, a system or a library may do to a process while its job goes on."""


@pytest.fixture
def unchanged() -> Iterator[process_conditions.Noted]:
    """This process's own, which the test may change. Niceness comes down again with a privilege only."""
    noted = process_conditions.note()
    yield noted
    left = process_conditions.restore(noted)
    assert [one.name for one in left] in ([], ["niceness"])


def may(name: str) -> bool:
    """May this process change the condition and restore it?"""
    return name != "niceness" or os.geteuid() == 0


def test_every_row_has_a_change_and_is_read_here() -> None:
    assert list(CHANGES) == NAMES
    assert list(process_conditions.note()) == NAMES


async def begun(
    beginner: ProcessStarter,
    script: Path,
    cpus: tuple[int, ...] = (),
    environment: Mapping[str, str] = os.environ,
) -> Any:
    """What a script prints last."""
    with tempfile.TemporaryFile() as log:
        child = await beginner.begin(
            [sys.executable, str(script)], environment=environment, cpus=cpus, log=log, may_fork=True
        )
        status = await await_end(child)
        log.seek(0)
        printed = log.read().decode()
    assert status == 0, printed
    return json.loads(printed.splitlines()[-1])


def first_and_later(
    directory: Path, method: StartMethod, change: Callable[[], object], cpus: tuple[int, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two processes of one launcher find, with a change of the launcher's own between them."""
    script = directory / "train.py"
    script.write_text(SHOWS)
    plan = TemplatePlan(
        interpreter=sys.executable,
        options=(),
        environment=dict(os.environ),
        cpus=cpus,
        prepare=lambda: Prepare(modules=("recovery",)),
    )

    async def both() -> tuple[dict[str, Any], dict[str, Any]]:
        beginner = ProcessStarter(method, plan)
        beginner.start()
        try:
            first = await begun(beginner, script, cpus)
            change()
            return first, await begun(beginner, script, cpus)
        finally:
            await beginner.end()

    with orphans_left_alone():
        return asyncio.run(both())


@pytest.mark.parametrize("method", [StartMethod.SPAWN, StartMethod.FORK])
@pytest.mark.parametrize("name", NAMES)
def test_a_later_start_is_as_the_first(
    tmp_path: Path,
    unchanged: process_conditions.Noted,
    capsys: pytest.CaptureFixture[str],
    method: StartMethod,
    name: str,
) -> None:
    if not may(name):
        pytest.skip("needs root")
    first, later = first_and_later(tmp_path, method, CHANGES[name])
    assert first == {**unchanged, "signal of the parent's death": signal.SIGKILL}, "it ends with its launcher"
    assert later == first
    # The launcher says what it has noticed.
    assert f"other conditions now ({name}: " in " ".join(capsys.readouterr().out.split())


def test_a_bound_process_has_its_own_processors_at_each_start(
    tmp_path: Path, unchanged: process_conditions.Noted
) -> None:
    one = min(os.sched_getaffinity(0))
    found = first_and_later(tmp_path, StartMethod.FORK, CHANGES["processors"], cpus=(one,))
    assert [each["processors"] for each in found] == [[one], [one]]


@pytest.mark.slow
def test_a_standby_of_bound_workers_has_as_many_threads_as_they(tmp_path: Path) -> None:
    """It may use all processors; a worker that was bound to one has added in another order."""
    cpus = sorted(os.sched_getaffinity(0))
    host = Host(
        name="here",
        address="127.0.0.1",
        owns_master_addr=False,
        interpreter=sys.executable,
        cpus=tuple(cpus),
        numa_nodes=(0,),
    )
    words = ["--worker_num=1", "--standby_num=1", f'--bind_core={{"device0": ["{cpus[0]}"]}}', "train.py"]
    worker, standby = place(job(words), host, Script(supervised=False, world_of=""))
    (tmp_path / "train.py").write_text("import torch\nprint(torch.get_num_threads())\n")
    base = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}

    async def threads(placed: Placed) -> int:
        beginner = ProcessStarter(StartMethod.SPAWN, None)
        environment = environment_of(placed, base, restarts=0)
        return int(await begun(beginner, tmp_path / "train.py", placed.cpus, environment))

    assert asyncio.run(threads(worker)) == asyncio.run(threads(standby)) == 1


def test_what_imports_have_changed_each_worker_finds_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing.py").write_text(
        "import os, resource\nos.umask(0o027)\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    script = tmp_path / "train.py"
    script.write_text("import changing\n" + SHOWS)
    plan = TemplatePlan(
        interpreter=sys.executable,
        options=(),
        environment=dict(os.environ),
        cpus=(),
        prepare=lambda: Prepare(modules=("changing", "recovery")),
    )

    async def by(method: StartMethod) -> dict[str, Any]:
        beginner = ProcessStarter(method, plan)
        beginner.start()
        try:
            found: dict[str, Any] = await begun(beginner, script)
            return found
        finally:
            await beginner.end()

    with orphans_left_alone():
        forked, spawned = asyncio.run(by(StartMethod.AUTO)), asyncio.run(by(StartMethod.SPAWN))
    assert forked == spawned
    assert forked["file mode mask"] == 0o027


def test_what_cannot_be_restored_is_said_with_its_reason(tmp_path: Path) -> None:
    """A hard limit that is lower than the first one: the soft one comes as near as it goes."""
    code = (
        "import resource, subprocess, sys\n"
        "from recovery import process_conditions\n"
        "from recovery.launch.children import tied\n"
        "noted = process_conditions.note()\n"
        "noted['limits']['RLIMIT_NPROC'] = [1 << 40, 1 << 40]\n"
        "noted['niceness'] = noted['niceness'] + 1\n"
        "noted['processors'].append(max(noted['processors']) + 60)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (1000, 2000))\n"
        "sys.exit(subprocess.call(tied([sys.executable, '-c', 'import os, resource; "
        "print(os.nice(0), resource.getrlimit(resource.RLIMIT_NPROC))'], noted)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    nice, _, limits = done.stdout.partition(" ")
    if limits.strip() != str((1 << 40, 1 << 40)):
        assert limits.strip() == "(2000, 2000)"
        assert "event=condition_not_restored limits: {'RLIMIT_NPROC': [1000, 2000]}" in done.stderr
    assert "event=condition_not_restored processors: " in done.stderr
    assert int(nice) == os.nice(0) + 1, "the other rows are restored"


_DEAF_TO_CHILDREN = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
_CHILDS_CODE = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'raise SystemExit(3)']).returncode)"


def _run_deaf(*words: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as the child of a process that ignores how its children end."""
    command = [sys.executable, "-c", _DEAF_TO_CHILDREN, *words]
    return subprocess.run(command, check=False, cwd=directory, capture_output=True, text=True, timeout=HANG_S)


@pytest.mark.parametrize("start_method", ["auto", "spawn"])
def test_a_launcher_whose_parent_ignores_the_end_of_children_sees_how_its_own_end(
    tmp_path: Path, start_method: str
) -> None:
    """No job started, and a spawned program's proxy never saw its end."""
    (tmp_path / "plain.py").write_text(f"{_CHILDS_CODE}\n")
    launch = ["-m", "recovery", "msrun", "--worker_num=1", "--sim_level=1", "--join=True", "plain.py"]
    done = _run_deaf(*launch, f"--start_method={start_method}", directory=tmp_path)
    assert done.returncode == 3, done.stdout


def test_the_end_of_children_is_no_condition_that_is_handed_on(tmp_path: Path) -> None:
    shown = _run_deaf("-c", SHOWS, directory=tmp_path).stdout
    assert signal.SIGCHLD not in json.loads(shown)["ignored signals"]


_BEGINS_ONE = """
import subprocess, sys
from recovery.launch.children import tied
subprocess.run(tied([sys.executable, "plain.py"]))
"""


def test_a_process_that_is_begun_by_one_that_ignores_it_sees_how_its_children_end(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(f"{_CHILDS_CODE.replace('sys.exit', 'print')}\n")
    assert _run_deaf("-c", _BEGINS_ONE, directory=tmp_path).stdout == "3\n"
