"""Which process a process id means: with real processes, threads and namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from recovery import clock, process_identity
from recovery.core.messages import ProcessIdentity
from tests.needs import needs_root, needs_tool
from tests.pace import wait_for

SLEEP = "import sys; sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SLEEP], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(60)
    assert process.stdin is not None
    process.stdin.close()


def identity_of(pid: int) -> ProcessIdentity:
    found = process_identity.of(pid)
    assert found is not None
    return found


def no_descriptor(pid: int, flags: int = 0) -> int:
    raise OSError(38, f"Function not implemented: {pid} {flags}")


WAYS = pytest.mark.parametrize("has_pidfd", [True, False], ids=["pidfd", "proc"])


def choose(monkeypatch: pytest.MonkeyPatch, has_pidfd: bool) -> None:
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", no_descriptor)


# --- the same host and namespace -------------------------------------------------------------------------------------------


def test_a_process_and_whoever_looks_at_it_name_the_same_identity() -> None:
    assert process_identity.own() == process_identity.of(os.getpid())


@WAYS
def test_a_process_that_runs_has_not_ended(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool
) -> None:
    choose(monkeypatch, has_pidfd)
    assert process_identity.has_ended(identity_of(child.pid), child.pid) is False


@WAYS
def test_a_process_that_was_waited_for_has_ended(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool
) -> None:
    choose(monkeypatch, has_pidfd)
    identity = identity_of(child.pid)
    child.kill()
    child.wait(60)
    assert process_identity.has_ended(identity, child.pid) is True


@WAYS
def test_a_zombie_has_ended(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool
) -> None:
    choose(monkeypatch, has_pidfd)
    identity = identity_of(child.pid)
    child.kill()
    wait_for(lambda: process_identity.has_ended(identity, child.pid), "zombie")
    assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@WAYS
def test_a_process_whose_first_thread_is_over_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool
) -> None:
    choose(monkeypatch, has_pidfd)
    script = (
        "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start(); "
        "ctypes.CDLL(None).syscall(60, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        identity, stat = identity_of(process.pid), Path(f"/proc/{process.pid}/stat")
        wait_for(lambda: ") Z " in stat.read_text(), "end of the first thread")
        assert process_identity.has_ended(identity, process.pid) is False
        process.kill()


@WAYS
def test_a_number_that_is_another_process_now_proves_the_end_of_the_first(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool
) -> None:
    choose(monkeypatch, has_pidfd)
    identity = identity_of(child.pid)
    earlier = msgspec.structs.replace(identity, start_ticks=identity.start_ticks - 1)
    assert process_identity.has_ended(earlier, child.pid) is True


def test_a_number_that_is_a_thread_now_proves_the_end_of_the_process() -> None:
    begun, over = threading.Event(), threading.Event()
    numbers: list[int] = []

    def run() -> None:
        numbers.append(threading.get_native_id())
        begun.set()
        over.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    own = process_identity.own()
    assert own is not None
    earlier = msgspec.structs.replace(own, start_ticks=0)
    assert process_identity.has_ended(earlier, numbers[0]) is True
    over.set()
    thread.join()


def test_a_program_that_replaces_itself_is_the_same_process() -> None:
    script = (
        "import os, sys; sys.stdin.readline(); os.execv(sys.executable, [sys.executable, '-c', 'input()'])"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        before, command = identity_of(process.pid), Path(f"/proc/{process.pid}/cmdline")
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_for(lambda: b"execv" not in command.read_bytes(), "exec")
        assert identity_of(process.pid) == before
        assert process_identity.has_ended(before, process.pid) is False
        process.kill()


def test_a_name_with_spaces_and_parentheses_is_read(tmp_path: Path) -> None:
    program = tmp_path / ") Z 1 (a b"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([str(program), "60"]) as process:
        wait_for(lambda: ") Z 1 (a b" in Path(f"/proc/{process.pid}/comm").read_text(), "exec of the program")
        own = process_identity.own()
        assert own is not None
        assert identity_of(process.pid).start_ticks >= own.start_ticks
        assert process_identity.has_ended(identity_of(process.pid), process.pid) is False
        process.kill()


# --- what proves nothing ---------------------------------------------------------------------------------------------------

CHANGES: tuple[tuple[str, dict[str, object]], ...] = (
    ("another boot", {"boot_id": "another"}),
    ("an unknown boot", {"boot_id": ""}),
    ("another pid namespace", {"pid_namespace": 1}),
)


@pytest.mark.parametrize("change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES])
def test_nothing_is_proven_of_a_process_elsewhere(change: dict[str, object]) -> None:
    own = process_identity.own()
    assert own is not None
    # Neither that it runs, nor that a number nobody has here has ended.
    elsewhere = msgspec.structs.replace(own, **change)
    for pid in (os.getpid(), 2**22 - 1):
        assert process_identity.has_ended(elsewhere, pid) is None


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**53])
def test_nothing_is_proven_of_a_number_that_is_no_process(pid: int) -> None:
    own = process_identity.own()
    assert own is not None
    assert process_identity.has_ended(own, pid) is None


@WAYS
def test_nothing_is_proven_where_the_kernels_files_cannot_be_read(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool
) -> None:
    choose(monkeypatch, has_pidfd)
    identity, namespace = identity_of(child.pid), process_identity._pid_namespace()
    monkeypatch.setattr(process_identity, "_pid_namespace", lambda: namespace)
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    assert process_identity.own() is None
    assert process_identity.of(child.pid) is None
    assert process_identity.has_ended(identity, child.pid) is None
    # /proc shows other processes under these numbers, as it does in a container that sees its host's.
    (tmp_path / "self").symlink_to("1")
    (tmp_path / str(child.pid)).mkdir()
    shutil.copy("/proc/self/stat", tmp_path / str(child.pid) / "stat")
    assert process_identity.has_ended(identity, child.pid) is None


def test_without_a_namespace_file_there_is_no_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    own = ProcessIdentity(boot_id=clock.boot_id(), pid_namespace=1, start_ticks=1)
    assert process_identity.has_ended(own, os.getpid()) is None


# --- real namespaces -------------------------------------------------------------------------------------------------------

ASK = """
import msgspec, sys
from recovery import process_identity
from recovery.core.messages import ProcessIdentity
said, pid = sys.argv[1:]
print(process_identity.has_ended(msgspec.json.decode(said, type=ProcessIdentity), int(pid)))
"""


def unshared(*flags: str) -> list[str]:
    return ["unshare", "--fork", *flags, sys.executable, "-c"]


def answer_from(flags: tuple[str, ...], identity: ProcessIdentity, pid: int) -> str:
    """What somebody elsewhere would say of a process of ours."""
    command = [*unshared(*flags), ASK, msgspec.json.encode(identity).decode(), str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def namespaces() -> None:
    needs_root()
    needs_tool("unshare", "util-linux")


ELSEWHERE: tuple[tuple[str, ...], ...] = (
    ("--pid", "--mount-proc"),
    ("--pid",),
    ("--time", "--boottime", "1000"),
)


@pytest.mark.root
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("flags", ELSEWHERE, ids=["container", "container with its host's proc", "time"])
def test_another_container_proves_nothing_of_a_process_here(
    child: subprocess.Popen[bytes], flags: tuple[str, ...]
) -> None:
    identity = identity_of(child.pid)
    assert answer_from(flags, identity, child.pid) == "None"
    child.kill()
    child.wait(60)
    assert answer_from(flags, identity, child.pid) == "None", "nobody there knows"


@pytest.mark.root
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("flags", ELSEWHERE, ids=["container", "container with its host's proc", "time"])
def test_nothing_is_proven_here_of_a_process_in_another_container(flags: tuple[str, ...]) -> None:
    script = (
        "import msgspec, os, sys; from recovery import process_identity; "
        "print(os.getpid(), msgspec.json.encode(process_identity.own()).decode(), flush=True)"
    )
    done = subprocess.run([*unshared(*flags), script], capture_output=True, text=True, check=True)
    pid, _, said = done.stdout.partition(" ")
    identity = msgspec.json.decode(said, type=ProcessIdentity)
    assert process_identity.has_ended(identity, int(pid)) is None


@pytest.mark.root
@pytest.mark.usefixtures("namespaces")
def test_within_a_container_a_process_is_proven_dead_though_proc_is_its_hosts() -> None:
    script = """
import os, subprocess, sys
from recovery import process_identity
child = subprocess.Popen(["sleep", "60"])
identity = process_identity.own()
print(process_identity.of(child.pid), process_identity.has_ended(identity, child.pid))
child.kill(); child.wait()
print(process_identity.has_ended(identity, child.pid))
"""
    done = subprocess.run([*unshared("--pid"), script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "None", "True"]
