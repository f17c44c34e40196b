"""What a forked process finds, and what others see of it, is what a spawned one finds and shows."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.template import Template
from tests.launch.forking import forked, ready_template, spawned

MODULES = (
    "asyncio",
    "concurrent.futures",
    "logging",
    "multiprocessing.pool",
    "numpy",
    "numpy.random",
    "random",
    "torch",
    "uuid",
    "warnings",
)
MAY_DIFFER = {
    "VmPeak", "VmSize", "VmLck", "VmPin", "VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem", "VmData", "VmStk", "VmExe",
    "VmLib", "VmPTE", "VmSwap", "HugetlbPages", "Pid", "Tgid", "NSpid", "NStgid", "NSpgid", "NSsid", "Mems_allowed",
    "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches", "State", "SigQ", "FDSize", "Threads", "x86_Thread_features",
}  # fmt: skip
"""Fields of /proc/self/status that are a process's own, or its memory's size."""

PICTURE = """
import json, os, sys
STATE = {"frames": len(__import__("traceback").extract_stack())}
def read(name):
    return open(f"/proc/self/{name}").read()
stat = read("stat").rpartition(")")[2].split()
names = sorted(vars(sys.modules["__main__"]))
loader = type(__loader__).__name__
import ctypes, gc, locale, logging, multiprocessing, random, resource, signal, threading, warnings
import numpy, torch
# After the imports: a library that starts a thread lets C catch a signal of its own.
status = dict(line.split(":", 1) for line in read("status").splitlines())
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
libc.prctl(2, ctypes.byref(parent_death := ctypes.c_int()))
import asyncio.events
print(json.dumps({
    "descriptors": {n: os.readlink(f"/proc/self/fd/{n}") for n in "012"},
    "descriptor count": len(os.listdir("/proc/self/fd")),
    "flags of descriptors": [[l for l in read(f"fdinfo/{n}").splitlines() if l.startswith("flags")] for n in "012"],
    "threads": len(os.listdir("/proc/self/task")),
    "children": read(f"task/{os.getpid()}/children"),
    "status": status,
    "cmdline": read("cmdline"), "comm": read("comm"), "exe": os.readlink("/proc/self/exe"),
    "cwd": os.readlink("/proc/self/cwd"), "root": os.readlink("/proc/self/root"),
    "environ": sorted(v for v in read("environ").split("\\0") if v),
    "os.environ": sorted(os.environ.items()),
    "getenv": [str(libc.getenv(n)) for n in (b"MS_NODE_ID", b"ONLY_HERE", b"ONLY_TEMPLATE", b"PATH", b"LD_PRELOAD")],
    "limits": read("limits"), "oom": read("oom_score_adj"), "nice": stat[16], "leads": [
        os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)], "terminal": stat[4],
    "cpus": sorted(os.sched_getaffinity(0)), "scheduling": os.sched_getscheduler(0), "parent death": parent_death.value,
    "cgroup": read("cgroup"), "name spaces": [os.readlink(f"/proc/self/ns/{n}") for n in ("pid", "net", "mnt", "user")],
    "argv": sys.argv, "path": sys.path, "orig_argv": sys.orig_argv, "flags": str(sys.flags), "executable": sys.executable,
    "prefix": [sys.prefix, sys.base_prefix, sys.exec_prefix], "warnoptions": sys.warnoptions, "xoptions": sys._xoptions,
    "main": [names, loader, __name__, str(__spec__), str(__package__), __file__, __doc__,
        sys.modules["__main__"].__dict__ is globals()],
    "stack": STATE["frames"], "hooks": [sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__,
        sys.displayhook is sys.__displayhook__, sys.gettrace(), sys.getprofile(), str(threading.excepthook)],
    "exception": [str(sys.exc_info()), hasattr(sys, "last_value"), hasattr(sys, "ps1")],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.closed,
        getattr(s, "newlines"), type(s.buffer).__name__] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "stdin": sys.stdin.read(),
    "same streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "signals": {s.name: str(signal.getsignal(s)).partition(" at ")[0] for s in signal.valid_signals() if hasattr(s, "name")},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "wakeup": signal.set_wakeup_fd(-1),
    "timers": [signal.getitimer(signal.ITIMER_REAL), signal.alarm(0)],
    "limits of python": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()],
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.garbage)],
    "threading": [threading.current_thread().name, threading.current_thread() is threading.main_thread(),
        threading.main_thread().ident == threading.get_ident(), threading.main_thread().native_id == os.getpid(),
        threading.active_count()],
    "multiprocessing": [multiprocessing.current_process().name, multiprocessing.parent_process(),
        multiprocessing.get_start_method(), multiprocessing.process.ORIGINAL_DIR, multiprocessing.current_process().pid ==
        os.getpid(), len(multiprocessing.current_process().authkey)],
    "asyncio": str(asyncio.events._get_running_loop()),
    "warnings": [str(f) for f in warnings.filters], "logging": [str(logging.root), logging.root.handlers, logging._handlerList,
        str(logging.lastResort)],
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
    "time zone": __import__("time").tzname,
    "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), torch.is_grad_enabled(), str(torch.get_default_dtype()),
        torch.backends.mkldnn.enabled, torch.are_deterministic_algorithms_enabled()],
    "usage": resource.getrusage(resource.RUSAGE_CHILDREN).ru_nswap,
    "builtins": sorted(dir(__builtins__)),
}, default=str))
"""


def seen(answer: tuple[int, str]) -> dict[str, Any]:
    status, output = answer
    assert status == 0, output
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    found["status"] = {
        name: value.strip() for name, value in found["status"].items() if name not in MAY_DIFFER
    }
    found["descriptors"] = {
        name: target.replace("forked.log", "spawned.log") for name, target in found["descriptors"].items()
    }
    return found


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    environment = {**os.environ, "ONLY_TEMPLATE": "yes", "MS_NODE_ID": "template", "TZ": "UTC"}
    with ready_template(Prepare(modules=MODULES, compared=("numpy", "torch")), environment) as made:
        yield made


@pytest.mark.parametrize("words", [("train.py", "--epochs", "3"), ("-m", "train", "x"), ("src/../train.py",)])
def test_the_whole_picture_is_the_same(template: Template, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(PICTURE)
    (tmp_path / "src").mkdir()
    environment = {**os.environ, "MS_NODE_ID": "3", "ONLY_HERE": "ä=\n b", "TZ": "Asia/Tokyo", "EMPTY": ""}

    fork = seen(forked(template, tmp_path, *words, environment=environment))
    spawn = seen(spawned(tmp_path, *words, environment=environment))

    # Three calls of ours stand below the script in a stack; a traceback does not show them.
    assert fork.pop("stack") - spawn.pop("stack") == 5
    # OpenBLAS ends its threads before a fork, and starts them again when they are needed.
    assert fork.pop("threads") <= spawn.pop("threads")
    for name in spawn:
        assert fork[name] == spawn[name], name


RANDOM = """
import json, multiprocessing, os, random, tempfile, uuid
import numpy, torch
print(json.dumps([random.random(), numpy.random.rand(), torch.rand(1).item(), numpy.random.default_rng().random(),
    torch.initial_seed(), str(uuid.uuid4()), multiprocessing.current_process().authkey.hex(), os.urandom(4).hex(),
    next(tempfile._get_candidate_names()), torch.utils.data.get_worker_info()]))
"""


def test_no_two_forks_draw_the_same_random_numbers(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANDOM)
    drawn = [json.loads(forked(template, tmp_path, "train.py")[1]) for _ in range(3)]
    for values in zip(*drawn, strict=True):
        assert len(set(values)) == (1 if values[0] is None else 3), values


TRAINING = """
import hashlib, random
import numpy, torch
torch.manual_seed(1); random.seed(2); numpy.random.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(256, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    rows = torch.randn(512, 64) + random.random() + torch.from_numpy(numpy.random.rand(512, 64)).float()
    loss = model(rows).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
bits = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
print(hashlib.sha256(bits).hexdigest(), torch.__config__.parallel_info())
"""


def test_a_training_ends_with_the_same_bits(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    assert forked(template, tmp_path, "train.py") == spawned(tmp_path, "train.py")


PROCESSES = """
import multiprocessing, os, subprocess, sys

def work(number): return number * 2, __name__, os.path.basename(sys.modules["__main__"].__file__)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(work, range(2)))
    print(subprocess.run([sys.executable, "-c", "print(__import__('os').environ['ONLY_HERE'])"], capture_output=True).stdout)
    print(subprocess.run("echo $ONLY_HERE; ls /proc/self/fd | wc -l", shell=True, capture_output=True).stdout)
"""


@pytest.mark.parametrize("words", [("train.py",), ("-m", "train")])
def test_processes_that_it_starts(template: Template, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(PROCESSES)
    environment = {**os.environ, "ONLY_HERE": "here", "MS_NODE_ID": "0", "TZ": "UTC"}
    fork = forked(template, tmp_path, *words, environment=environment)
    assert fork == spawned(tmp_path, *words, environment=environment)
    assert fork[0] == 0, fork[1]


LOADER = """
import os
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([i, os.getppid() == MAIN])

MAIN = os.getpid()
print([row.tolist() for row in DataLoader(Numbers(), batch_size=4, num_workers=2)])
"""


def test_processes_of_a_loader(template: Template, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADER)
    status, output = forked(template, tmp_path, "train.py")
    assert (status, output) == (0, f"{[[[i, 1] for i in range(4)], [[i, 1] for i in range(4, 8)]]}\n")


def test_a_crash_is_reported_by_faulthandler(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nprint('x', flush=True)\nctypes.string_at(0)\n"
    )
    options = ("-X", "faulthandler", "-u")
    with ready_template(Prepare(modules=("ctypes",)), options=options) as made:
        status, output = forked(made, tmp_path, "train.py")
    expected, wanted = spawned(tmp_path, "train.py", options=options)
    assert status == expected == -signal.SIGSEGV
    shown = [line for line in output.splitlines() if "train.py" in line or "Fatal" in line]
    assert shown == [line for line in wanted.splitlines() if "train.py" in line or "Fatal" in line]


def test_pytest_runs_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import numpy\ndef test_it():\n    assert [1] == [2]\n")
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "train.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with ready_template(Prepare(modules=("pytest", "numpy"), compared=("numpy",)), environment) as made:
        status, output = forked(made, tmp_path, *words, environment=environment)
    expected, wanted = spawned(tmp_path, *words, environment=environment)
    assert (status, without_times(output)) == (expected, without_times(wanted))
    assert status == 1
    assert "assert [1] == [2]" in output


def without_times(output: str) -> str:
    return re.sub(r"in [0-9.]+s|random seed.*|-p randomly.*", "", output)


REPLACED = """
import os, sys
if "MS_RESUME_TOKEN" in os.environ:
    print(os.environ["MS_NODE_ID"], os.environ.get("SET"), os.getcwd(), sys.argv, sys.orig_argv, len(os.listdir("/proc/self/fd")))
else:
    from recovery.core.ids import ResumeToken
    from recovery.core.worker.stimuli import Hangs
    from recovery.worker.exec_in_place import replace_process
    os.chdir("/")
    os.environ["SET"] = "by the program"
    kept = open("/etc/hostname")
    os.set_inheritable(kept.fileno(), True)
    replace_process(ResumeToken("t" * 32), Hangs(1, 2))
"""


@pytest.mark.parametrize("words", [("train.py", "x"), ("-m", "train", "x")])
def test_the_program_that_replaces_it_starts_as_it_did(
    template: Template, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(REPLACED)
    environment = {**os.environ, "MS_NODE_ID": "3"}
    fork = forked(template, tmp_path, *words, environment=environment)
    assert fork == spawned(tmp_path, *words, environment=environment)
    assert fork[0] == 0, fork[1]
