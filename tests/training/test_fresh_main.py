"""What a program finds at each further run of it in one process: what it found at the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_RUNS = """
import sys
sys.path.insert(0, {root!r})
from recovery.training.own_main import OwnMain

class Member:
    def __init__(self, runs):
        self.runs = runs

    def left(self, error):
        self.runs -= 1
        if error is not None and not isinstance(error, KeyError):
            print("LEFT BY", type(error).__name__)
            raise SystemExit(0)
        if not self.runs:
            print("ENDED", file=sys.__stdout__)
            raise SystemExit(0)
        return True

    def replace(self, reason):
        print("REPLACED", reason)
        raise SystemExit(0)

def go():
    # Not names of this module: its data goes, as a program's does.
    own, member = OwnMain(), Member(3)

    def program():
        import types
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        main.__dict__.update(own=own, member=member)
        exec(compile({program!r}, {file!r}, "exec"), main.__dict__)

    own.run(program)

go()
"""
_JOINS = "own.member, own.has_joined = member, True\n"


def runs(tmp_path: Path, program: str) -> list[str]:
    """Lines of a process that runs a program three times, each run being left by a KeyError or its end."""
    root = str(Path(__file__).parents[2])
    file = tmp_path / "program.py"
    text = _RUNS.format(root=root, program=program, file=str(file))
    done = subprocess.run(
        [sys.executable, "-u", "-c", text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


KEPT = {
    "arguments": ("import sys\nprint(len(sys.argv))\nsys.argv.append('x')\n", "1"),
    "path": ("import sys\nprint('/nowhere' in sys.path)\nsys.path.append('/nowhere')\n", "False"),
    "environment": ("import os\nprint(os.environ.get('FRESH'))\nos.environ['FRESH'] = '1'\n", "None"),
    "removed variable": ("import os\nprint('PATH' in os.environ)\ndel os.environ['PATH']\n", "True"),
    "directory": ("import os\nprint(os.getcwd() == '/')\nos.chdir('/')\n", "False"),
    "warnings": ("import warnings\nprint(warnings.filters[0][0] == 'error')\nwarnings.simplefilter('error')\n", "False"),
    "signal": ("import signal\nprint(signal.getsignal(signal.SIGUSR1) == 0)\nsignal.signal(signal.SIGUSR1, print)\n", "True"),
    "excepthook": ("import sys\nprint(sys.excepthook is sys.__excepthook__)\nsys.excepthook = print\n", "True"),
    "output": ("import sys\nprint(sys.stdout is sys.__stdout__)\nsys.stdout = sys.stderr\n", "True"),
    "root logger": ("import logging\nprint(len(logging.getLogger().handlers))\nlogging.basicConfig()\n", "0"),
    "own logger": ("import logging\nlog = logging.getLogger('mine')\nprint(log.level, len(log.handlers))\nlog.setLevel(10)\nlog.addHandler(logging.NullHandler())\n", "0 0"),
    "start method": ("import multiprocessing as m\nprint(m.get_start_method(allow_none=True))\nm.set_start_method('spawn')\n", "None"),
    "module of the script": ("import helper\nprint(helper.COUNT)\nhelper.COUNT += 1\n", "0"),
    "module in a directory": ("from space import inner\nprint(inner.COUNT)\ninner.COUNT += 1\n", "0"),
    "main": ("print('SEEN' in globals())\nSEEN = 1\n", "False"),
    "thread that ends": ("import threading\nprint(threading.active_count())\nthreading.Thread(target=len, args=('',)).start()\n", "1"),
}  # fmt: skip


@pytest.mark.parametrize("what", KEPT)
def test_each_run_finds_what_the_first_has_found(tmp_path: Path, what: str) -> None:
    (tmp_path / "helper.py").write_text("COUNT = 0\n")
    (tmp_path / "space").mkdir()
    (tmp_path / "space/inner.py").write_text("COUNT = 0\n")
    program, line = KEPT[what]
    assert runs(tmp_path, f"{_JOINS}{program}raise KeyError\n")[:3] == [line] * 3


_OURS = """import json, threading, time
from recovery.readable import is_readable
class Source:
    def fileno(self):
        time.sleep(60)
if not hasattr(json, "SEEN"):
    json.SEEN = True
    threading.Thread(target=is_readable, args=(Source(),), daemon=True).start()
print("run")
raise KeyError
"""
_GENERATED = """import json, threading
if not hasattr(json, "forever"):
    exec("import time\\ndef forever():\\n    time.sleep(60)", vars(json))
    threading.Thread(target=json.forever, daemon=True).start()
print("run")
raise KeyError
"""


@pytest.mark.parametrize("program", [_OURS, _GENERATED], ids=["ours", "generated"])
def test_a_thread_is_whose_code_has_begun_it(tmp_path: Path, program: str) -> None:
    """The collector runs a finalizer of the script in any thread, and a library makes functions of texts: neither is a thread of the script."""
    assert runs(tmp_path, _JOINS + program) == ["run"] * 3 + ["ENDED"]


def test_what_was_registered_for_the_end_runs_once(tmp_path: Path) -> None:
    program = "import atexit\n@atexit.register\ndef end():\n    print('AT THE END')\nraise KeyError\n"
    assert runs(tmp_path, _JOINS + program) == ["ENDED", "AT THE END"]


def test_libraries_stay_loaded(tmp_path: Path) -> None:
    program = "import json\nprint(getattr(json, 'SEEN', 0))\njson.SEEN = 1\nraise KeyError\n"
    assert runs(tmp_path, _JOINS + program) == ["0", "1", "1", "ENDED"]


REPLACED = {
    "a thread that goes on": (
        "import threading, time\ndef beat():\n    while True:\n        time.sleep(0.01)\nthreading.Thread(target=beat, daemon=True, name='beat').start()\nraise KeyError\n",
        "the thread 'beat' of the script goes on",
    ),
    "an exception before it has joined again": (
        "import json\nif hasattr(json, 'TWICE'):\n    own.has_joined = False\n    raise RuntimeError('once a process')\njson.TWICE = 1\nraise KeyError\n",
        "RuntimeError: once a process",
    ),
    "a framework that cannot form a second world": (
        "own.run_once('one world a process')\nraise KeyError\n",
        "one world a process",
    ),
    "an exit before it has joined again": (
        "import json\nif hasattr(json, 'TWICE'):\n    own.has_joined = False\n    raise SystemExit(2)\njson.TWICE = 1\nraise KeyError\n",
        "SystemExit: 2",
    ),
}


@pytest.mark.parametrize("why", REPLACED)
def test_what_cannot_be_run_twice_has_its_process_replaced(tmp_path: Path, why: str) -> None:
    program, reason = REPLACED[why]
    assert runs(tmp_path, _JOINS + program) == [f"REPLACED {reason}"]


def test_a_program_that_never_joins_is_run_once_and_its_mistake_passes(tmp_path: Path) -> None:
    assert runs(tmp_path, "print('once')\n") == ["once"]
    assert runs(tmp_path, "print('once')\nraise SystemExit(0)\n") == ["once"]


def test_a_signal_before_it_has_joined_is_left_to_the_member(tmp_path: Path) -> None:
    assert runs(tmp_path, "own.member = member\nraise KeyboardInterrupt\n") == ["LEFT BY KeyboardInterrupt"]


def test_a_fork_of_the_process_ends_as_it_would(tmp_path: Path) -> None:
    program = (
        "import os\nif not os.fork():\n    raise SystemExit(0)\nos.wait()\nprint('parent')\nraise KeyError\n"
    )
    assert runs(tmp_path, _JOINS + program) == ["parent"] * 3 + ["ENDED"]
