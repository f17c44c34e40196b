"""What makes a template unsafe or stale, and what happens when it, or its launcher, is gone."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import psutil
import pytest

from recovery.launch.forkserver import fork_messages
from recovery.launch.forkserver.fork_messages import Fork, Forked, Prepare, Prepared
from recovery.launch.forkserver.fork_requests import NotBegun
from recovery.launch.forkserver.template import Template
from tests.launch.forking import forked, orphans_left_alone, ready_template, spawned
from tests.pace import is_gone, wait_for

IMPORTS = {
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True, name='busy').start()": (
        "the imports have started 1 threads (busy)"
    ),
    "import subprocess\nsubprocess.Popen(['sleep', '60'])": "the imports have started a process",
    "kept = open('/etc/hostname')": "the imports have left open: /etc/hostname",
    "import socket\nkept = socket.create_server(('127.0.0.1', 0))": "the imports have left open: socket:",
    "import os\nos.chdir('/')": "the imports have changed: directory",
    "import sys\nsys.path.insert(0, '/')": "the imports have changed: sys.path",
    "import numpy.random\nkept = numpy.random.default_rng()": "the imports have made a random generator of numpy's",
    "import tempfile\nkept = tempfile.mkdtemp()": "the imports have made a temporary file or directory",
    "raise SystemExit(3)": "importing acting ended with SystemExit: 3",
    "1 / 0": "importing acting ended with ZeroDivisionError: division by zero",
    "import os\nos._exit(5)": "it has ended (exit code 5)",
    "print('why', flush=True)\nimport os\nos.kill(os.getpid(), 9)": "it has ended (killed by SIGKILL",
    "import torch_npu.npu": "the imports have used a device, which a forked process cannot",
    "import os\nos.umask(0o111)": "the imports have changed: file mode mask",
    "import os\ndel os.environ['PATH']": "the imports have changed: PATH",
}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory of packages that can be imported, with one that says that its device cannot be used in a fork."""
    directory = tmp_path / "packages"
    (directory / "torch_npu").mkdir(parents=True)
    (directory / "torch_npu" / "__init__.py").write_text("")
    (directory / "torch_npu" / "npu.py").write_text("def _is_in_bad_fork(): return True\n")
    return directory


def environment_with(packages: Path) -> dict[str, str]:
    path = os.pathsep.join((str(packages), *filter(None, [os.environ.get("PYTHONPATH")])))
    return {**os.environ, "PYTHONPATH": path}


def refusal(packages: Path, prepare: Prepare, environment: Mapping[str, str] | None = None) -> str:
    made = environment or environment_with(packages)
    with orphans_left_alone(), Template(prepare, environment=made) as template:
        answer = template.await_ready()
        assert isinstance(answer, NotBegun), answer
        assert answer.over
        wait_for(lambda: template.process.has_ended, "the end of a template that cannot be used")
        return answer.reason


@pytest.mark.parametrize("text", IMPORTS)
def test_imports_that_act_make_it_unsafe(packages: Path, text: str) -> None:
    (packages / "acting.py").write_text(text)
    assert refusal(packages, Prepare(modules=("json", "acting"))).startswith(IMPORTS[text])


_PREPARES_ONE = """
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.template import Template
if __name__ == "__main__":
    with Template(Prepare(modules=("threading", "begins_a_thread")), environment=__import__("os").environ) as template:
        print(type(template.await_ready()).__name__)
"""


def test_a_thread_of_imports_below_a_program_that_make_begins_is_no_change(
    packages: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """GNU make spawns as here: signals 32 and 33 are ignored from then on, until a first thread takes the second back."""
    (packages / "begins_a_thread.py").write_text(
        "import os, threading\nthreading.Thread(target=int).start()\nwhile len(os.listdir('/proc/self/task')) > 1: pass\n"
    )
    begun = os.posix_spawn(sys.executable, [sys.executable, "-c", _PREPARES_ONE], environment_with(packages))
    assert os.waitstatus_to_exitcode(os.waitpid(begun, 0)[1]) == 0
    assert capfd.readouterr().out == "Prepared\n"


LOOKING = {
    "import os\nos.environ.get('LOCAL_RANK')": "the imports look at LOCAL_RANK, in which the workers differ",
    "import os\nos.getenv('LOCAL_RANK')": "the imports look at LOCAL_RANK, in which the workers differ",
}


@pytest.mark.parametrize("text", LOOKING)
def test_what_imports_find_otherwise_in_a_worker_makes_it_unsafe(packages: Path, text: str) -> None:
    (packages / "looking.py").write_text(text)
    prepare = Prepare(modules=("looking",), of_one=("LOCAL_RANK",))
    assert refusal(packages, prepare).startswith(LOOKING[text])


WALKS = "import os\nfound = dict(os.environ.items())\n"


def test_who_walks_through_the_environment_finds_nothing_in_which_workers_differ(
    packages: Path, tmp_path: Path
) -> None:
    """As tqdm 4.67 does when it is imported (`tqdm.utils.envwrap`)."""
    (packages / "walking.py").write_text(WALKS)
    (tmp_path / "train.py").write_text(
        "import walking, os\nprint('MASTER_ADDR' in walking.found, os.environ['MASTER_ADDR'])"
    )
    environment = {**environment_with(packages), "MASTER_ADDR": "127.0.0.1"}
    with ready_template(Prepare(modules=("walking",), of_one=("MASTER_ADDR",)), environment) as template:
        assert forked(template, tmp_path, "train.py", environment=environment) == (0, "False 127.0.0.1\n")


READS_RANK = """
import os
def rank_zero_only(): pass
def _get_rank():
    rank = os.environ.get("RANK")
    return None if rank is None else int(rank)
rank_zero_only.rank = _get_rank() or 0
"""


def test_who_keeps_its_rank_where_it_can_be_set_reads_it_again_in_the_fork(
    packages: Path, tmp_path: Path
) -> None:
    """As Lightning 2.6 does when it is imported; the real one is forked in tests/trainers/test_lightning_example.py."""
    module = packages / "lightning" / "fabric" / "utilities" / "rank_zero.py"
    module.parent.mkdir(parents=True)
    for parent in module.parents[:3]:
        (parent / "__init__.py").write_text("")
    module.write_text(READS_RANK)
    (tmp_path / "train.py").write_text(
        "from lightning.fabric.utilities.rank_zero import rank_zero_only\nprint(rank_zero_only.rank)"
    )
    prepare = Prepare(modules=("lightning.fabric.utilities.rank_zero",), of_one=("RANK",))
    environment = environment_with(packages)
    with ready_template(prepare, environment) as template:
        assert forked(template, tmp_path, "train.py", environment={**environment, "RANK": "3"}) == (0, "3\n")


def test_a_module_that_is_not_there_is_left_to_whoever_imports_it(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('colorsys' in sys.modules)")
    prepare = Prepare(modules=("no_such_module", "json.no_such_module", "colorsys"))
    with ready_template(prepare, environment_with(packages)) as template:
        assert forked(template, tmp_path, "train.py", environment=environment_with(packages)) == (0, "True\n")


def test_a_function_hides_the_module_of_its_name_as_in_a_script(packages: Path, tmp_path: Path) -> None:
    (packages / "tool").mkdir()
    (packages / "tool" / "__init__.py").write_text("def run(): return 'function'\n")
    (packages / "tool" / "run.py").write_text("")
    (tmp_path / "train.py").write_text("from tool import run\nprint(run())")
    with ready_template(Prepare(modules=("tool.run",)), environment_with(packages)) as template:
        assert forked(template, tmp_path, "train.py", environment=environment_with(packages)) == (
            0,
            "function\n",
        )


def test_what_the_imports_set_is_there_in_every_fork(packages: Path, tmp_path: Path) -> None:
    (packages / "acting.py").write_text(
        "import os\nprint('a warning')\nos.environ['SET'] = '1'\nos.environ['MINE'] += '+'\n"
    )
    (tmp_path / "train.py").write_text(
        "import os\nprint('SET' in os.environ)\nimport acting\nprint([os.environ.get(n) for n in ('SET', 'MINE')])"
    )
    environment = {**environment_with(packages), "MINE": "a"}
    with ready_template(Prepare(modules=("acting",), compared=("acting",)), environment) as template:
        assert template.last_line() == "a warning", "the launcher says it once"
        for mine, seen in (("a", "a+"), ("b", "b")):
            status, output = forked(template, tmp_path, "train.py", environment={**environment, "MINE": mine})
            assert (status, output) == (0, f"False\n{['1', seen]}\n")


@pytest.fixture
def bare() -> Iterator[Template]:
    with ready_template(Prepare(modules=("colorsys",))) as made:
        yield made


def begun(template: Template, *command: str, **variables: str) -> int | NotBegun:
    with Path(os.devnull).open("wb") as log:
        return template.begin(command, environment={**os.environ, **variables}, log=log.fileno())


def test_a_variable_that_libraries_read_when_they_are_loaded(bare: Template) -> None:
    answer = begun(bare, sys.executable, "train.py", OMP_NUM_THREADS="7")
    assert answer == NotBegun(
        reason="OMP_NUM_THREADS is read when libraries are loaded, and is not what it was for the template",
        over=False,
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["numactl", "--membind=0", "python", "train.py"], "numactl is not started as"),
        ([sys.executable, "-c", "print()"], f"{sys.executable} is not started as"),
        ([sys.executable, "-i", "train.py"], f"{sys.executable} is not started as"),
        ([sys.executable, "-u", "train.py"], "another interpreter, or other options of it"),
        (["/usr/bin/python3", "train.py"], "another interpreter, or other options of it"),
    ],
)
def test_a_command_that_cannot_be_forked(bare: Template, command: list[str], reason: str) -> None:
    answer = begun(bare, *command)
    assert isinstance(answer, NotBegun)
    assert answer.reason.startswith(reason)
    assert not answer.over


def test_other_processors_than_the_libraries_have_counted(bare: Template) -> None:
    [first, *others] = sorted(os.sched_getaffinity(0))
    with Path(os.devnull).open("wb") as log:
        answer = bare.begin(
            [sys.executable, "train.py"],
            environment=os.environ,
            log=log.fileno(),
            conditions={"processors": [first]},
        )
    if others:
        assert isinstance(answer, NotBegun)
        assert "libraries count processors when they are loaded" in answer.reason


def test_a_directory_that_is_gone_is_an_error_of_the_system(bare: Template, tmp_path: Path) -> None:
    with Path(os.devnull).open("wb") as log, pytest.raises(FileNotFoundError):
        bare.begin(
            [sys.executable, "train.py"],
            environment=os.environ,
            log=log.fileno(),
            conditions={"directory": str(tmp_path / "gone")},
        )
    assert isinstance(begun(bare, sys.executable, "-m", "this"), int), "the template goes on"


def test_it_is_stale_when_a_module_has_changed(packages: Path) -> None:
    (packages / "tool.py").write_text("A = 1\n")
    with ready_template(Prepare(modules=("tool",)), environment_with(packages)) as template:
        (packages / "tool.py").write_text("A = 22\n")
        answer = begun(template, sys.executable, "-m", "this", **environment_with(packages))
    assert answer == NotBegun(reason=f"{packages / 'tool.py'} has changed", over=True)


def test_a_changed_script_is_run_as_it_is_then(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    with ready_template(Prepare(modules=("colorsys",))) as template:
        assert forked(template, tmp_path, "train.py") == (0, "1\n")
        (tmp_path / "train.py").write_text("print(22)")
        assert forked(template, tmp_path, "train.py") == (0, "22\n")


def test_neither_a_script_nor_an_argument_nor_a_directory_has_to_be_utf_8(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    script = os.fsdecode(b"tr\xe4in.py")
    (place / script).write_text("import os, sys; print(list(map(os.fsencode, [*sys.argv, os.getcwd()])))")
    with ready_template(Prepare(modules=("colorsys",))) as template:
        fork = forked(template, place, script, os.fsdecode(b"\xff"))
    assert fork == spawned(place, script, os.fsdecode(b"\xff"))
    assert fork[0] == 0, fork[1]


def test_its_forks_go_on_when_it_dies(bare: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)")
    log = tmp_path / "log"
    with log.open("wb") as stream:
        pid = bare.begin(
            [sys.executable, "train.py"],
            environment=os.environ,
            log=stream.fileno(),
            conditions={"directory": str(tmp_path)},
        )
    assert isinstance(pid, int)
    wait_for(lambda: log.read_text() == "up\n", "the fork")
    os.kill(bare.process.pid, signal.SIGKILL)

    answer = begun(bare, sys.executable, "train.py")

    assert isinstance(answer, NotBegun)
    assert answer.over
    assert answer.reason.startswith("it has ended (killed by SIGKILL")
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    os.kill(pid, signal.SIGTERM)
    assert os.waitpid(pid, 0)[1] == signal.SIGTERM


def test_random_generators_of_imports_are_each_forks_own(packages: Path, tmp_path: Path) -> None:
    (packages / "drawing.py").write_text("import random\nfree, fixed = random.Random(), random.Random(3)\n")
    (tmp_path / "train.py").write_text("import drawing\nprint(drawing.free.random(), drawing.fixed.random())")
    environment = environment_with(packages)
    with ready_template(Prepare(modules=("drawing",)), environment) as template:
        drawn = [forked(template, tmp_path, "train.py", environment=environment)[1].split() for _ in range(2)]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] == drawn[1][1] == str(random.Random(3).random())


def test_a_template_that_does_not_answer_is_of_no_use_soon() -> None:
    with (
        orphans_left_alone(),
        Template(Prepare(modules=("colorsys",)), environment=os.environ, options=()) as made,
    ):
        assert isinstance(made.await_ready(), Prepared)
        os.kill(made.process.pid, signal.SIGSTOP)
        assert made._link.gettimeout() == 8
        made._link.settimeout(0.2)
        assert begun(made, sys.executable, "train.py") == NotBegun(
            reason="it does not answer within 8 s", over=True
        )


def test_a_fork_that_its_launcher_does_not_know_of_never_runs(bare: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    request = Fork.of([sys.executable, "train.py"], {}, {"directory": str(tmp_path)})
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    go, may_go = os.pipe()
    os.close(may_go)
    fork_messages.send(bare._link, request, [log, go])
    answer = fork_messages.receive_answer(bare._link)
    assert isinstance(answer, Forked)
    assert os.waitstatus_to_exitcode(os.waitpid(answer.pid, 0)[1]) == 1
    assert not (tmp_path / "ran").exists()
    os.close(log)
    os.close(go)


LAUNCHER = """
import os, sys, time
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.template import Template
template = Template(Prepare(modules=()), environment=os.environ)
template.await_ready()
pid = template.begin([sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"], environment=os.environ, log=2)
print(template.process.pid, pid, flush=True)
time.sleep(600)
"""


def test_nothing_outlives_its_launcher() -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert launcher.stdout is not None
    pids = [int(word) for word in launcher.stdout.readline().split()]
    processes = [psutil.Process(pid) for pid in pids]
    assert len(processes) == 2
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    for process in processes:
        wait_for(partial(is_gone, process.pid), "its end")


def test_a_message_of_any_size_comes_whole_with_its_descriptors(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    with here, there, (tmp_path / "log").open("wb") as log:
        environment = {f"A{number}": "x" * 1000 for number in range(100)}
        request = Fork.of(["a"], environment, {})
        fork_messages.send(here, request, [log.fileno(), log.fileno()])
        received, descriptors = fork_messages.receive_request(there)
        assert received == request
        assert len(descriptors) == 2
        assert all(os.path.samestat(os.fstat(one), os.fstat(log.fileno())) for one in descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        fork_messages.send(there, Prepared(module_count=1, took_ms=2))
        assert fork_messages.receive_answer(here) == Prepared(module_count=1, took_ms=2)
        there.close()
        with pytest.raises(EOFError):
            fork_messages.receive_answer(here)
