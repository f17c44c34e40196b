"""A child that strace stops, or lies to, at the n-th call of one system call."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from recovery.errors import RecoveryError

REFUSED, BROKEN = 40, 41
"""Exit codes of a child: an error of ours ended it; anything else did."""
_HERE = b"h"
"""A child's first word: nothing of its own start is left to be traced."""
ATTACH_S = 60.0
WORK_S = 120.0


class End(NamedTuple):
    """How a child ended."""

    acknowledged: int
    """Acknowledgements that it gave."""
    code: int
    """Exit code; negative: the signal."""
    said: str
    """Its last words."""


def is_usable() -> str:
    """Why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else f"strace may not trace here: {probe.stderr.strip()}"


def run_child(work: Callable[[Callable[[], None]], None], options: list[str] | None) -> End:
    """Fork, let strace attach, and let the child work.

    Args:
        work: called in the child with what gives an acknowledgement.
        options: of strace; None: without it.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _be_child(work, theirs)
    theirs.close()
    assert ours.recv(1) == _HERE
    tracer = _attach(child, options) if options is not None else None
    try:
        ours.send(b"go")
        heard = _hear(ours, child)
    finally:
        ours.close()
        _, status = os.waitpid(child, 0)
        if tracer is not None:
            tracer.communicate(timeout=ATTACH_S)
    acknowledged, _, said = heard.partition(b"\n")
    return End(len(acknowledged), os.waitstatus_to_exitcode(status), said.decode(errors="replace"))


def _be_child(work: Callable[[Callable[[], None]], None], channel: socket.socket) -> None:
    """Never returns. Tells by `sendto`, which nobody injects into."""
    code = 0

    def tell() -> None:
        channel.send(b".")

    try:
        channel.send(_HERE)
        channel.recv(2)
        work(tell)
    except RecoveryError as error:
        code = REFUSED
        channel.send(b"\n" + f"{error.code}: {error}".encode()[:2_000])
    except BaseException:  # noqa: BLE001 - the parent judges
        code = BROKEN
        channel.send(b"\n" + traceback.format_exc().encode()[-4_000:])
    finally:
        os._exit(code)


def _attach(child: int, options: list[str]) -> subprocess.Popen[bytes]:
    """Returns once the child makes no call any more that strace does not see."""
    tracer = subprocess.Popen(
        ["strace", "-p", str(child), *options], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert tracer.stderr is not None
    assert select.select([tracer.stderr], [], [], ATTACH_S)[0], "strace did not attach"
    said = tracer.stderr.readline()
    assert said.endswith(b" attached\n"), said
    return tracer


def _hear(ours: socket.socket, child: int) -> bytes:
    heard = b""
    deadline = time.monotonic() + WORK_S
    while True:
        if not select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(child, signal.SIGKILL)
            return heard + b"\nit did not end"
        content = ours.recv(65_536)
        if not content:
            return heard
        heard += content


def count_calls(
    work: Callable[[Callable[[], None]], None], calls: tuple[str, ...], log: Path
) -> Counter[str]:
    """How often an undisturbed child makes each of `calls`. Unknown names on this machine count zero."""
    end = run_child(work, ["-e", "trace=" + ",".join(f"?{call}" for call in calls), "-o", str(log)])
    assert end.code == 0, end.said
    return Counter(line.partition("(")[0] for line in log.read_text().splitlines() if "(" in line)
