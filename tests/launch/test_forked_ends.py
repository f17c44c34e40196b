"""However its program ends, a forked process ends as a spawned one does: status, traceback, what runs at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.template import Template
from tests.launch.forking import forked, ready_template, spawned

MODULES = ("numpy", "logging", "multiprocessing.pool", "concurrent.futures", "asyncio")


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with ready_template(Prepare(modules=MODULES)) as made:
        yield made


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
