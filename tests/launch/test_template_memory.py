"""A template's forks copy ahead what another one has written, and share large pages; what they hold stays what it was."""

from __future__ import annotations

import mmap
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from recovery.launch.forkserver import page_sharing
from recovery.launch.forkserver.fork_messages import Prepare
from tests.launch.forking import ready_template
from tests.launch.test_preforked_process import made_ahead
from tests.needs import needs_kernel
from tests.pace import wait_for

_PAGES = 2_000
_ANY = _PAGES // 2
"""Of so many pages enough are seen whatever else a process writes."""


def _memory() -> mmap.mmap:
    memory = mmap.mmap(-1, _PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"before" * (len(memory) // len(b"before")))
    return memory


def _write_all(memory: mmap.mmap) -> int:
    """Gives how many faults that took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for page in range(_PAGES):
        memory[page * mmap.PAGESIZE] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _in_a_fork(work: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextmanager
def _fork_that_has_written(memory: mmap.mmap) -> Iterator[int]:
    done, is_done = os.pipe()
    end, may_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(may_end)
        _write_all(memory)
        os.write(is_done, b"1")
        os.read(end, 1)
        os._exit(0)
    os.close(end)
    os.close(is_done)
    assert os.read(done, 1)
    yield pid
    os.close(may_end)
    os.close(done)
    os.waitpid(pid, 0)


def test_what_another_fork_has_written_is_copied_and_keeps_its_content() -> None:
    with _memory() as memory:
        before = memory[:]

        def copies(pid: int) -> bool:
            count = page_sharing.copy_as(pid, lambda: False)
            return count >= _PAGES and memory[:] == before and _write_all(memory) < _ANY

        with _fork_that_has_written(memory) as pid:
            assert _in_a_fork(lambda: copies(pid))
        assert _in_a_fork(lambda: _write_all(memory) >= _ANY), "without it each page is a fault"


def test_it_stops_when_it_is_asked_for() -> None:
    with _memory() as memory, _fork_that_has_written(memory) as pid:
        assert _in_a_fork(lambda: page_sharing.copy_as(pid, lambda: True) == 0)


def test_of_one_that_has_ended_nothing_is_known() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert page_sharing.copy_as(pid, lambda: False) == 0


def test_joined_pages_keep_their_content() -> None:
    with _memory() as memory:
        before = memory[:]

        def joins() -> bool:
            page_sharing.join_pages()
            return memory[:] == before

        assert _in_a_fork(joins)


def test_one_forked_ahead_copies_what_a_worker_has_written(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text(
        f"import mmap\nmemory = mmap.mmap(-1, {_PAGES} * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "memory.write(b'1' * len(memory))\n"
    )
    (tmp_path / "train.py").write_text(
        "import big, mmap, time\n"
        "for place in range(0, len(big.memory), mmap.PAGESIZE): big.memory[place] = 2\n"
        "open('written', 'w').close()\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with ready_template(Prepare(modules=("big",)), environment) as template:
        pid = template.begin(
            [sys.executable, "train.py"],
            environment=environment,
            log=2,
            conditions={"directory": str(tmp_path)},
        )
        assert isinstance(pid, int), pid
        try:
            wait_for((tmp_path / "written").exists, "what the worker writes")
            ahead = made_ahead(template)
            wait_for(lambda: _copied_bytes(ahead) > _ANY * mmap.PAGESIZE, "copies")
        finally:
            psutil.Process(pid).kill()
            os.waitpid(pid, 0)


def _copied_bytes(process: psutil.Process) -> int:
    return sum(
        int(line.split()[1]) * 1024
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        if line.startswith("Private_Dirty:")
    )


def _joins_pages() -> bool:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    major, minor = (int(number) for number in os.uname().release.split(".")[:2])
    return (major, minor) >= (6, 1) and enabled.exists() and "[never]" not in enabled.read_text()


def test_a_template_has_large_pages(tmp_path: Path) -> None:
    needs_kernel("large pages, or the call that joins them", is_there=_joins_pages())
    (tmp_path / "big.py").write_text("memory = [bytearray(1 << 20) for _ in range(16)]\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with ready_template(Prepare(modules=("big",)), environment) as template:
        rollup = Path(f"/proc/{template.process.pid}/smaps_rollup").read_text(encoding="ascii")
        large = next(line for line in rollup.splitlines() if line.startswith("AnonHugePages:"))
        assert int(large.split()[1]) > 0, rollup
