"""A process forked from a template is what a spawned one would have been."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.launch.fork_messages import Prepare, Prepared
from recovery.launch.template import Template

MODULES = ("numpy", "logging", "multiprocessing.pool", "concurrent.futures", "asyncio")
_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with Template(Prepare(modules=MODULES), environment=os.environ) as made:
        assert isinstance(made.await_ready(), Prepared)
        yield made
    # Other tests look for processes that are gone, not for zombies of this one.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


def forked(template: Template, directory: Path, *words: str) -> tuple[int, str]:
    with (directory / "forked.log").open("wb") as log:
        pid = template.begin(
            [sys.executable, *words], environment=os.environ, log=log.fileno(), directory=str(directory)
        )
    assert isinstance(pid, int), pid
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, read(directory / "forked.log")


def spawned(directory: Path, *words: str) -> tuple[int, str]:
    with (directory / "spawned.log").open("wb") as log:
        status = subprocess.call(
            [sys.executable, *words],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return status, read(directory / "spawned.log")


def read(log: Path) -> str:
    """What was printed; addresses of objects are left out."""
    return re.sub(r"0x[0-9a-f]+", "0x", log.read_text())


ENDS = {
    "returns": "print('done')",
    "exits with a number": "import sys; sys.exit(7)",
    "exits with a text": "import sys; sys.exit('bye')",
    "exits with nothing": "import sys; sys.exit()",
    "raises": "def f():\n    raise ValueError('x')\nf()",
    "raises from another": "try:\n    1 / 0\nexcept ArithmeticError as e:\n    raise KeyError('k') from e",
    "is interrupted": "raise KeyboardInterrupt",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "is terminated": "import os; os.kill(os.getpid(), 15)",
    "aborts": "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "leaves at once": "import os; print('lost'); os._exit(3)",
    "cannot be parsed": "print('x'\n",
    "has a null": "x = 1\0",
    "has an excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[2].tb_lineno)\n1 / 0",
    "has an excepthook that fails": "import sys\ndef hook(*a):\n    {}['k']\nsys.excepthook = hook\n1 / 0",
    "has an excepthook that exits": "import sys\nsys.excepthook = lambda *a: sys.exit(5)\n1 / 0",
    "has something to do at its end": (
        "import atexit, sys, threading, time\n"
        "atexit.register(lambda: print('atexit', '__file__' in vars(sys.modules['__main__'])))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nsys.exit(4)"
    ),
    "returns, and looks at its end": (
        "import atexit, sys\natexit.register(lambda: print('__file__' in vars(sys.modules['__main__'])))"
    ),
    "raises, and looks at its end": (
        "import atexit, sys\natexit.register(lambda: print('__file__' in vars(sys.modules['__main__'])))\n1 / 0"
    ),
    "fails at its end": "import atexit\natexit.register(lambda: 1 / 0)",
    "closes its output": "import sys; sys.stdout.close()",
}


@pytest.mark.parametrize("how", ENDS)
def test_every_end_is_the_same(template: Template, tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(ENDS[how])
    assert forked(template, tmp_path, "train.py") == spawned(tmp_path, "train.py")
    assert forked(template, tmp_path, "-m", "train") == spawned(tmp_path, "-m", "train")


def test_a_script_that_is_not_there(template: Template, tmp_path: Path) -> None:
    assert forked(template, tmp_path, "none.py") == spawned(tmp_path, "none.py")
    assert forked(template, tmp_path, "-m", "none") == spawned(tmp_path, "-m", "none")
