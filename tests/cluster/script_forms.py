"""Scripts of many forms with three lines of ours, for `test_script_forms.py`: what each does otherwise than the plainest one.

A form changes how the script is written, never what it trains, unless it says so: then it is compared with itself.
"""

from __future__ import annotations

from typing import NamedTuple

BASE = '''
import os, signal, sys
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
import recovery.torch as rt
{head}

class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((3,), float(index)), torch.tensor([index % 3.0])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 1)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(self.inner(x / 64))


def dies(session):
    """Rank 1 at step 7, rank 0 at step 13, each once."""
    dead = Path(f"dead_{{session.rank}}")
    if session.step + 1 == {{1: 7, 0: 13}}[session.rank] and not dead.exists() and Path("kills").exists():
        dead.touch()
        os.kill(os.getpid(), signal.SIGKILL)


{functions}


def train({parameters}):
    session = rt.join("gloo")
    torch.manual_seed(3)
    {before}
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True{loader})
    for x, y in rt.steps(loader, model, optimizer, epochs=2, save_every=5):
        dies(session)
        {step}
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    if session.rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    {behind}


{main}
'''
MAIN = 'if __name__ == "__main__":\n    train()\n'
OWN_STATISTICS = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * (x / 64).mean(0)
        return self.inner(x / 64 - self.mean)


def count_anew_behind_each_step(model, optimizer, rank):
    if hasattr(model, "is_counted"):
        return

    def count(*_):
        with torch.no_grad():
            model(torch.full((2, 3), float(rank)))

    model.is_counted = optimizer.register_step_post_hook(count)
"""
"""Statistics that the steps depend on change behind each step in a pass without gradients: DistributedDataParallel does not send rank 0's to all before the next one."""


class Form(NamedTuple):
    """What is otherwise."""

    head: str = ""
    functions: str = ""
    parameters: str = ""
    before: str = "pass"
    loader: str = ""
    step: str = "pass"
    behind: str = "pass"
    main: str = MAIN
    flags: tuple[str, ...] = ()
    """Of the script."""
    beside: tuple[tuple[str, str], ...] = ()
    """Files beside it, with what is in them."""
    environment: tuple[tuple[str, str], ...] = ()
    module: str = ""
    """It lies in this package, and is started by `-m`."""
    replaced: str = ""
    """Not empty: part of the reason for which a survivor starts its process again instead."""
    own_bits: bool = False
    """It trains something else than the plainest script."""

    def text(self) -> str:
        """The script."""
        names = {
            name: getattr(self, name)
            for name in ("head", "functions", "parameters", "before", "loader", "step", "behind", "main")
        }
        return BASE.format(**names)


FORMS: dict[str, Form] = {
    "plain": Form(),
    "argparse": Form(
        head="import argparse",
        parameters="options",
        main='parser = argparse.ArgumentParser()\nparser.add_argument("--size", type=int)\nassert parser.parse_args().size == 4\nsys.argv.clear()\ntrain(None)\n',
        flags=("--size", "4"),
    ),
    "sys.exit behind main": Form(main='if __name__ == "__main__":\n    sys.exit(train())\n'),
    "exit code 0 by name": Form(
        head="from sys import exit", main='if __name__ == "__main__":\n    train()\n    exit(0)\n'
    ),
    "typer": Form(head="import typer", main='if __name__ == "__main__":\n    typer.run(train)\n'),
    "without __name__": Form(main="train()\n"),
    "module-level model": Form(
        head="HELD = []",
        before="HELD.append(torch.randn(1000)); torch.manual_seed(3)",
        behind="assert len(HELD) == 1",
    ),
    "dataclass in __main__": Form(
        head="import dataclasses, pickle",
        functions="@dataclasses.dataclass\nclass Config:\n    size: int = 4\n",
        before="assert type(pickle.loads(pickle.dumps(Config()))) is Config",
    ),
    "enum in __main__": Form(
        head="import copy, enum",
        functions="class Kind(enum.Enum):\n    A = 1\n",
        before="assert copy.deepcopy(Kind.A) is Kind.A",
    ),
    "config by a decorator": Form(
        head="import functools, json",
        functions="def with_config(function):\n    @functools.wraps(function)\n    def wrapped():\n        return function(json.loads(Path('config.json').read_text()))\n    return wrapped\n",
        parameters="config",
        main="with_config(train)()\n",
        beside=(("config.json", '{"size": 4}'),),
    ),
    "loader workers by fork": Form(loader=", num_workers=1"),
    "loader workers by spawn": Form(loader=', num_workers=1, multiprocessing_context="spawn"'),
    "loader workers by forkserver": Form(loader=', num_workers=1, multiprocessing_context="forkserver"'),
    "set_start_method": Form(
        head="import multiprocessing",
        main='if __name__ == "__main__":\n    multiprocessing.set_start_method("spawn")\n    train()\n',
        loader=", num_workers=1",
    ),
    "pool before training": Form(
        head="import multiprocessing",
        functions="def double(x):\n    return 2 * x\n",
        main='if __name__ == "__main__":\n    with multiprocessing.get_context("fork").Pool(1) as pool:\n        assert pool.map(double, [1, 2]) == [2, 4]\n    train()\n',
    ),
    "package started by -m": Form(
        head="from . import helper",
        before="assert helper.SIZE == 4",
        module="job.train",
        beside=(("helper.py", "SIZE = 4\n"), ("__init__.py", "")),
    ),
    "helper with state": Form(
        head="import helper",
        before="helper.entered()",
        beside=(
            (
                "helper.py",
                "COUNT = []\n\n\ndef entered():\n    COUNT.append(1)\n    assert len(COUNT) == 1\n",
            ),
        ),
    ),
    "helper with a relative path": Form(
        head="import helper",
        before="assert helper.WORDS == 'words'",
        beside=(
            ("helper.py", "from pathlib import Path\n\nWORDS = Path('words.txt').read_text()\n"),
            ("words.txt", "words"),
        ),
    ),
    "chdir": Form(
        main='assert not Path.cwd().name == "elsewhere"\nos.makedirs("elsewhere", exist_ok=True)\nHERE = Path.cwd()\nos.chdir("elsewhere")\nos.chdir(HERE)\ntrain()\nos.chdir("elsewhere")\n',
    ),
    "environment": Form(head="assert 'FORM_SET' not in os.environ\nos.environ['FORM_SET'] = '1'"),
    "path": Form(
        head="sys.path.insert(0, str(Path('lib').resolve()))\nassert sys.path.count(str(Path('lib').resolve())) == 1\nimport inner",
        before="assert inner.A == 1",
        beside=(("lib/inner.py", "A = 1\n"),),
    ),
    "warnings": Form(
        head="import warnings\nassert ('error', None, DeprecationWarning, None, 0) not in warnings.filters\nwarnings.simplefilter('error', DeprecationWarning)"
    ),
    "logging set up at each start": Form(
        head="import logging\nlogging.getLogger('form').addHandler(logging.StreamHandler())\nlogging.getLogger().addHandler(logging.StreamHandler())\nassert len(logging.getLogger().handlers) == 1",
        before="logging.getLogger('form').warning('THE FORM BEGINS')",
    ),
    "tee": Form(
        functions="class Tee:\n    def __init__(self, stream):\n        assert type(stream).__name__ != 'Tee'\n        self.stream = stream\n    def write(self, text):\n        return self.stream.write(text)\n    def flush(self):\n        self.stream.flush()\n",
        main='if __name__ == "__main__":\n    sys.stdout = Tee(sys.stdout)\n    print("written")\n    train()\n',
    ),
    "rich tracebacks": Form(
        head="import rich.traceback\nassert sys.excepthook.__module__ != 'rich.traceback'\nrich.traceback.install()"
    ),
    "tqdm": Form(
        head="from tqdm import tqdm", before="bar = tqdm(total=32)", step="bar.update()", behind="bar.close()"
    ),
    "handler of a signal": Form(
        head="assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL\nsignal.signal(signal.SIGUSR1, lambda *_: None)"
    ),
    "atexit": Form(
        head="import atexit\n@atexit.register\ndef at_the_end():\n    with open(f'ended_{os.environ[\"RANK\"]}', 'a') as file:\n        file.write(f'{os.getpid()}\\n')",
    ),
    "thread pool": Form(
        head="from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(2)\nassert POOL.submit(len, 'ab').result() == 2",
        step="assert POOL.submit(len, 'ab').result() == 2",
    ),
    "a thread that goes on": Form(
        head="import threading, time",
        functions="def beat():\n    while True:\n        time.sleep(0.01)\n",
        before="threading.Thread(target=beat, daemon=True, name='beat').start()",
        replaced="thread 'beat' of the script goes on",
    ),
    "a thread that ends with its object": Form(
        head="import threading, weakref",
        functions="class Beat:\n    def __init__(self):\n        self.ended = threading.Event()\n        threading.Thread(target=self.ended.wait, daemon=True).start()\n        weakref.finalize(self, self.ended.set)\n",
        before="beat = Beat()",
    ),
    "inter-op threads": Form(
        main='if __name__ == "__main__":\n    torch.set_num_interop_threads(1)\n    train()\n',
        replaced="set_num_interop_threads|interop",
    ),
    "an operator of its own": Form(
        head="LIBRARY = torch.library.Library('form_ops', 'DEF')\nLIBRARY.define('twice(Tensor x) -> Tensor')",
    ),
    "default dtype": Form(
        head="assert torch.get_default_dtype() is torch.float32",
        before="torch.manual_seed(3)",
        behind="torch.set_default_dtype(torch.float64)",
        main='if __name__ == "__main__":\n    torch.set_default_dtype(torch.float32)\n    train()\n',
    ),
    "dtype that is set behind the data": Form(
        head="TABLE = torch.ones(3)\nassert TABLE.dtype is torch.float32\ntorch.set_default_dtype(torch.float64)",
        functions="torch.set_default_dtype(torch.float32)\n",
    ),
    "deterministic": Form(head="torch.use_deterministic_algorithms(True)"),
    "caught by the script": Form(
        main='if __name__ == "__main__":\n    try:\n        train()\n    except Exception:\n        import traceback\n        traceback.print_exc()\n        sys.exit(1)\n',
    ),
    "asyncio around it": Form(
        head="import asyncio",
        functions="async def all_of_it():\n    train()\n",
        main='if __name__ == "__main__":\n    asyncio.run(all_of_it())\n',
    ),
    "open file": Form(head="OUT = open('out.txt', 'a')", step="print(session.step, file=OUT, flush=True)"),
    "closure and cycle": Form(
        before="held = []; held.append(lambda: held)",
        functions="class Node:\n    def __init__(self):\n        self.itself = self\n\n\nNODE = Node()\n",
    ),
    "registry of a library": Form(
        head="import codecs\ndef search(name):\n    return None\ncodecs.register(search)",
    ),
    "destroys its world": Form(
        head="import torch.distributed as dist", behind="dist.destroy_process_group()"
    ),
    "barrier at the end": Form(head="import torch.distributed as dist", behind="dist.barrier()"),
    "variables of torchrun": Form(
        before="assert os.environ['RANK'] == str(session.rank) and os.environ['WORLD_SIZE'] == '2'"
    ),
    "faulthandler": Form(head="import faulthandler\nfaulthandler.enable()"),
    "contextvars": Form(
        head="import contextvars\nVAR = contextvars.ContextVar('VAR')\nassert VAR.get(None) is None\nVAR.set(1)"
    ),
    "generic alias and typing": Form(
        head="from typing import Optional",
        parameters="size: Optional[int] = None",
    ),
    "multiprocessing lock": Form(
        head="import multiprocessing\nLOCK = multiprocessing.Lock()", step="LOCK.acquire(); LOCK.release()"
    ),
    "sqlite": Form(
        head="import sqlite3\nDB = sqlite3.connect(':memory:')", before="DB.execute('create table t (x)')"
    ),
    "live rollback": Form(environment=(("MS_ROLLBACK", "live"),), own_bits=True),
    "statistics of each rank's own": Form(
        functions=OWN_STATISTICS,
        step="count_anew_behind_each_step(model, optimizer, session.rank)",
        own_bits=True,
    ),
    "compiled": Form(
        before="torch.manual_seed(3)",
        functions="Compiled = torch.compile(lambda x: x * 2, backend='eager')\n",
        step="assert Compiled(torch.ones(1)).item() == 2",
    ),
}
