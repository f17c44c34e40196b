"""The process that writes checkpoints: what it is given, or an error, and it never outlives its parent."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import recovery
from recovery.checkpoint.staging_buffer import KeptMemory
from recovery.checkpoint.writer_process import WriterProcess
from tests.pace import is_gone, wait_for

DEADLINE_S = 60.0


@pytest.fixture
def writer() -> Iterator[WriterProcess]:
    one = WriterProcess()
    yield one
    one.close()


@pytest.fixture
def memory() -> Iterator[KeptMemory]:
    one = KeptMemory()
    yield one
    one.release()


def filled(memory: KeptMemory, content: bytes) -> KeptMemory:
    memory.take(len(content))[: len(content)] = content
    return memory


def written(writer: WriterProcess, memory: KeptMemory, size: int, path: Path) -> str:
    with path.open("wb") as file:
        return writer.write(memory.descriptor, size, file.fileno())


def until_gone(pid: int) -> None:
    wait_for(lambda: is_gone(pid), f"end of {pid}")


def test_it_writes_and_digests_what_lies_in_the_memory_each_time(
    writer: WriterProcess, memory: KeptMemory, tmp_path: Path
) -> None:
    # The second is smaller than the memory, the third needs a new one.
    draw = random.Random(1)
    for content in (draw.randbytes(3_000_000), b"small", draw.randbytes(9_000_000), b"x"):
        filled(memory, content)

        digest = written(writer, memory, len(content), tmp_path / "file")

        assert (tmp_path / "file").read_bytes() == content
        assert digest == hashlib.sha256(content).hexdigest()


def test_a_full_disk_is_an_error_and_the_writer_goes_on(
    writer: WriterProcess, memory: KeptMemory, tmp_path: Path
) -> None:
    filled(memory, b"content")
    with pytest.raises(OSError, match="No space left") as caught:
        written(writer, memory, 7, Path("/dev/full"))

    assert caught.value.errno == errno.ENOSPC
    assert written(writer, memory, 7, tmp_path / "file")


def test_a_writer_that_was_killed_is_an_error_that_says_so(
    writer: WriterProcess, memory: KeptMemory, tmp_path: Path
) -> None:
    filled(memory, b"content")
    os.kill(writer.pid, signal.SIGKILL)

    with pytest.raises(OSError, match=r"has ended|Broken pipe"):
        written(writer, memory, 7, tmp_path / "file")
    until_gone(writer.pid)
    assert not writer.is_alive


def test_a_writer_that_was_stopped_is_given_up_long_before_a_slow_disk_is(
    memory: KeptMemory, tmp_path: Path
) -> None:
    filled(memory, b"content")
    writer = WriterProcess(stuck_s=10 * DEADLINE_S)
    os.kill(writer.pid, signal.SIGSTOP)

    with pytest.raises(OSError, match=r"was stopped \(SIGSTOP\), and is replaced"):
        written(writer, memory, 7, tmp_path / "file")
    assert not writer.is_alive


def test_a_writer_whose_disk_takes_nothing_is_given_up_and_ended(memory: KeptMemory) -> None:
    writer = WriterProcess(stuck_s=1)
    filled(memory, b"x" * 1_000_000)
    # A pipe that nobody reads takes 64 KiB and then nothing.
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="written nothing for 1 s"):
            writer.write(memory.descriptor, 1_000_000, writing)
    finally:
        os.close(reading)
        os.close(writing)
    assert not writer.is_alive


def test_signals_to_the_whole_group_do_not_end_it(
    writer: WriterProcess, memory: KeptMemory, tmp_path: Path
) -> None:
    filled(memory, b"content")
    # Its answer shows that it is past its start.
    written(writer, memory, 7, tmp_path / "file")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(writer.pid, number)

    assert written(writer, memory, 7, tmp_path / "file") == hashlib.sha256(b"content").hexdigest()


def test_signals_to_the_whole_group_do_not_end_it_while_it_starts_either(
    memory: KeptMemory, tmp_path: Path
) -> None:
    filled(memory, b"content")
    writer = WriterProcess()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(writer.pid, number)

    assert written(writer, memory, 7, tmp_path / "file") == hashlib.sha256(b"content").hexdigest()
    writer.close()


_BECOMES_ANOTHER_PROGRAM = """
import os, sys, threading
from recovery.checkpoint.staging_buffer import KeptMemory
from recovery.checkpoint.writer_process import WriterProcess
writer, memory = WriterProcess(), KeptMemory()
memory.take(1_000_000)
reading, writing = os.pipe()
threading.Thread(target=writer.write, args=(memory.descriptor, 1_000_000, writing), daemon=True).start()
os.read(reading, 1)
os.set_inheritable(reading, True)
program = "import os, sys\\nwhile os.read(int(sys.argv[1]), 1 << 20): pass"
os.execv(sys.executable, [sys.executable, "-c", program, str(reading)])
"""


def test_a_parent_that_becomes_another_program_in_the_middle_of_a_save_leaves_no_traceback(
    tmp_path: Path,
) -> None:
    """As a worker does whose main thread does not come back from a rollback."""
    root = str(Path(recovery.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", _BECOMES_ANOTHER_PROGRAM],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=DEADLINE_S,
    )

    assert (done.returncode, done.stderr) == (0, "")


_WITH_MANY_FILES = """
import os, resource, sys
from recovery.checkpoint.staging_buffer import KeptMemory
from recovery.checkpoint.writer_process import WriterProcess
resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
writer, memory = WriterProcess(), KeptMemory()
memory.take(4)[:4] = b"file"
with open(sys.argv[1], "wb") as file:
    assert file.fileno() > 1_024
    print(writer.write(memory.descriptor, 4, file.fileno()))
"""


def test_a_process_with_more_than_1024_open_files_has_its_own_written(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WITH_MANY_FILES, str(tmp_path / "file")]
    root = str(Path(recovery.__file__).parents[1])
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )

    assert (done.stdout.strip(), done.stderr) == (hashlib.sha256(b"file").hexdigest(), "")


_PARENT = """
import os, sys
from recovery.checkpoint.staging_buffer import KeptMemory
from recovery.checkpoint.writer_process import WriterProcess
writer, memory = WriterProcess(), KeptMemory()
memory.take(8)
with open(sys.argv[1], "wb") as file:
    writer.write(memory.descriptor, 8, file.fileno())
print(writer.pid, flush=True)
os._exit(0) if sys.argv[2] == "exit" else sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_it_dies_with_its_parent(tmp_path: Path, end: str) -> None:
    root = str(Path(recovery.__file__).parents[1])
    command = [sys.executable, "-c", _PARENT, str(tmp_path / "file"), end]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if end == "kill":
            parent.kill()
        parent.wait(DEADLINE_S)

    until_gone(pid)
