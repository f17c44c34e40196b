"""A forked process is what a cold one is, as far as a test can tell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import recovery
from tests.pace import is_gone, wait_for
from tests.warm import process
from tests.warm.process import PLAIN, TORCH, Process, run

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("COV", "MS_"))},
    "MS_ROLE": "MS_WORKER",
}
PICTURE = """
import json, os, random, signal, subprocess, sys, threading
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "name": __name__, "file": globals().get("__file__"),
    "cwd": os.getcwd(), "umask": os.umask(0o22), "leads": os.getsid(0) == os.getpid(), "is_child": os.getppid() == PARENT,
    "descriptors": sorted(os.listdir("/proc/self/fd")), "threads": threading.active_count(), "modules": "recovery" in sys.modules,
    "environ": dict(os.environ), "of_a_child": subprocess.run(["env", "-0"], capture_output=True).stdout.decode(),
    "signals": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)],
    "streams": [(file.encoding, file.errors, file.line_buffering, file.write_through) for file in (sys.stdin, sys.stdout, sys.stderr)],
}))
""".replace("PARENT", str(os.getpid()))


FULL = "Exception ignored in: <_io.TextIOWrapper name='/dev/full' mode='w' encoding='utf-8'>\nOSError: [Errno 28] No space left on device\n"


def seen(command: list[str], place: Path, **options: Any) -> Any:
    running: Process[bytes] = Process(
        command, cwd=place, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options
    )
    with running:
        return json.loads(running.communicate(timeout=300)[0])


@pytest.mark.parametrize("new_session", [False, True])
@pytest.mark.parametrize("how", ["script", "module", "code"])
def test_a_forked_process_is_what_a_cold_one_is(tmp_path: Path, how: str, *, new_session: bool) -> None:
    (tmp_path / "picture.py").write_text(PICTURE)
    words = {"script": ["picture.py"], "module": ["-m", "picture"], "code": ["-c", PICTURE]}[how]
    command = [sys.executable, *words, "more", "words"]

    forked = seen(command, tmp_path, start_new_session=new_session)
    with process.cold():
        cold = seen(command, tmp_path, start_new_session=new_session)

    assert forked == cold
    assert forked["is_child"]


@pytest.mark.parametrize(
    ("code", "status", "said", "error"),
    [
        ("raise SystemExit(7)", 7, "", ""),
        ("import sys; sys.exit('a word')", 1, "", "a word\n"),
        ("raise SystemExit", 0, "", ""),
        ("raise SystemExit(300)", 300 & 0xFF, "", ""),
        ("import sys; sys.stdout = open('/dev/full', 'w', encoding='utf-8'); print('lost')", 120, "", FULL),
        ("import sys; sys.stdout = None", 0, "", ""),
        ("import atexit, os; atexit.register(os._exit, 9)", 9, "", ""),
        ("print('done')", 0, "done\n", ""),
        ("import atexit; atexit.register(print, 'at exit'); print('now', end='')", 0, "nowat exit\n", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "", ""),
        (
            "import threading; threading.Thread(target=print, args=['of a thread']).start()",
            0,
            "of a thread\n",
            "",
        ),
        ("import ctypes; ctypes.CDLL(None).printf(b'of C')", 0, "of C", ""),
        (
            "class Held:\n    def __del__(self):\n        print('let go')\nheld = Held()",
            0,
            "let go\n",
            "",
        ),
        (
            "1 / 0",
            1,
            "",
            'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nZeroDivisionError: division by zero\n',
        ),
    ],
)
def test_it_ends_as_a_cold_one_ends(code: str, status: int, said: str, error: str) -> None:
    command = [sys.executable, "-c", code]
    forked = run(command, env=ENVIRONMENT, timeout=300)

    assert (forked.returncode, forked.stdout, forked.stderr) == (status, said, error)
    with process.cold():
        cold = run(command, env=ENVIRONMENT, timeout=300)
    assert (cold.returncode, cold.stdout, cold.stderr) == (status, said, error)


ABORTS = """
import ctypes, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

libc, made = ctypes.CDLL(None), ctypes.c_ulong()

class End:
    def __del__(self, begin=libc.pthread_create, to=ctypes.byref(made), abort=libc.abort, wait=libc.sleep):
        begin(to, None, abort, None)
        wait(300)

end = End()
"""


def test_a_process_that_a_thread_of_c_aborts_at_its_end_says_where_the_threads_of_python_were() -> None:
    ended = run([sys.executable, "-c", ABORTS], env=ENVIRONMENT, timeout=300)

    assert ended.returncode == -signal.SIGABRT
    threads = r"Thread 0x\w+ \(most recent call first\):\n  File \"<string>\", line \d+ in __del__\n"
    assert re.match(f"Fatal Python error: Aborted\n\n{threads}", ended.stderr), ended.stderr


def test_it_has_its_imports_behind_it_and_draws_its_own_numbers() -> None:
    code = "import sys, random; print('aiohttp' in sys.modules, random.random())"
    first, second = (run([sys.executable, "-c", code], env=ENVIRONMENT, timeout=300).stdout for _ in range(2))

    assert first.startswith("True ")
    assert first != second


@pytest.mark.slow
def test_two_processes_draw_other_numbers_from_torch_and_numpy() -> None:
    code = "import sys; print('torch' in sys.modules); import torch, numpy; print(torch.rand(1).item(), numpy.random.rand())"
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    drawn = [
        run([sys.executable, "-c", code], env=environment, imports=TORCH, timeout=300).stdout.split()
        for _ in range(2)
    ]

    assert [one[0] for one in drawn] == ["True", "True"]
    assert not set(drawn[0][1:]) & set(drawn[1][1:])


@pytest.mark.parametrize(
    "changes", [{"PYTHONNODEBUGRANGES": "1"}, {"LD_BIND_NOW": "1"}, {"COVERAGE_PROCESS_START": ""}]
)
def test_what_is_read_only_at_a_begin_starts_cold(changes: dict[str, str]) -> None:
    code = "import sys; print('aiohttp' in sys.modules)"
    done = run([sys.executable, "-c", code], env={**ENVIRONMENT, **changes}, imports=PLAIN, timeout=300)

    assert done.stdout == "False\n"


@pytest.mark.cold_start(reason="that is what it is about")
def test_a_test_with_the_mark_starts_its_processes_cold() -> None:
    code = "import sys; print('aiohttp' in sys.modules)"

    assert run([sys.executable, "-c", code], env=ENVIRONMENT, timeout=300).stdout == "False\n"


def test_a_copy_of_the_package_that_is_found_first_is_imported_and_not_the_prepared_one(
    tmp_path: Path,
) -> None:
    code = "import recovery, sys; print(recovery.__file__, 'recovery.store.reader' in sys.modules)"
    (tmp_path / "recovery").mkdir()
    copy = tmp_path / "recovery" / "__init__.py"
    copy.touch()
    other = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    by_path, by_directory, own = (
        run([sys.executable, "-c", code], env=environment, cwd=place, timeout=300).stdout.split()
        for environment, place in ((other, Path("/")), (ENVIRONMENT, tmp_path), (ENVIRONMENT, Path("/")))
    )

    assert by_path == [str(copy), "False"]
    assert by_directory == [str(copy), "False"]
    assert own == [recovery.__file__, "True"]


STARTS_ANOTHER = """
import ctypes, os, subprocess, sys
from recovery.launch.children import tied
if "takes in orphans":
    ctypes.CDLL(None).prctl(36, 1)
read, write = os.pipe()
code = f"import os, sys; os.write({write}, str((os.getppid(), 'aiohttp' in sys.modules, os.environ.get('MORE'))).encode()); sys.exit(7)"
for more in ({}, {"PYTHONUTF8": "1"}):
    child = subprocess.Popen(tied([sys.executable, "-c", code]), pass_fds=[write], env={**os.environ, "MORE": "more", **more})
    status = child.wait()
    print(os.read(read, 1000).decode(), os.getpid(), status)
"""


@pytest.mark.parametrize(("takes_in", "forks"), [(True, False), (False, False), (True, True)])
def test_its_children_are_forked_too_and_are_its_own(*, takes_in: bool, forks: bool) -> None:
    code = STARTS_ANOTHER.replace('"takes in orphans"', str(takes_in))
    if forks:
        # As a launcher does that goes to the background: what is a child of that one cannot be forked.
        code = (
            f"import os\nif os.fork():\n    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n{code}"
        )
    running: Process[str] = Process(
        [sys.executable, "-c", code],
        env=ENVIRONMENT,
        has_warm_children=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        said = running.communicate(timeout=300)[0].splitlines()

    assert running.returncode == 0
    warm, cold = (re.fullmatch(r"\((\d+), (\w+), 'more'\) (\d+) 7", line) for line in said)
    assert warm is not None
    assert cold is not None, said
    assert [found[1] for found in (warm, cold)] == [found[3] for found in (warm, cold)]
    # The second's environment is read at a begin.
    assert (warm[2], cold[2]) == (str(takes_in and not forks), "False")


def test_a_warm_child_ends_with_its_parent(tmp_path: Path) -> None:
    sleeps = f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(300)"
    code = (
        STARTS_ANOTHER.partition("read, write")[0]
        + f"subprocess.Popen(tied([sys.executable, '-c', {sleeps!r}])).wait()"
    )
    running: Process[bytes] = Process([sys.executable, "-c", code], env=ENVIRONMENT, has_warm_children=True)
    with running:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "a child")
        child = psutil.Process(int((tmp_path / "pid").read_text()))
        assert child.cmdline()[1:3] == ["-c", sleeps]
        running.kill()
    wait_for(lambda: is_gone(child.pid), "its end")
