"""A child that is stopped, or lied to, at the n-th call of one system call: the kernel asks its parent what to do at each.

By a filter of seccomp that only the calls in question reach (Linux 5.5): all others run at their full pace, which a tracer of every call
would not let them.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from recovery.errors import RecoveryError

REFUSED, BROKEN = 40, 41
"""Exit codes of a child: an error of ours ended it; anything else did."""
GO_ON, KILL = 0, -1
"""What may be answered beside an error's number."""
WORK_S = 120.0

NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "write": 1, "close": 3, "pwrite64": 18, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "rename": 82, "mkdir": 83, "link": 86,
        "unlink": 87, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265, "fallocate": 285, "renameat2": 316,
        "seccomp": 317, "epoll_create1": 291,
    },
    "aarch64": {
        "epoll_create1": 20, "mkdirat": 34, "unlinkat": 35, "linkat": 37, "renameat": 38, "ftruncate": 46, "fallocate": 47, "openat": 56, "close": 57, "write": 64,
        "pwrite64": 68, "fsync": 82, "fdatasync": 83, "renameat2": 276, "seccomp": 277,
    },
}  # fmt: skip
"""System calls of <asm/unistd.h>. The newer machine lacks those that have a successor."""
_OURS = NUMBERS.get(platform.machine(), {})

# Of linux/seccomp.h, linux/filter.h and linux/prctl.h.
_SET_FILTER, _NEW_LISTENER, _GO_ON_FLAG = 1, 8, 1
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_END_WITH_PARENT, _NO_NEW_PRIVILEGES = 1, 38
_QUESTION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_RECEIVE = 3 << 30 | _QUESTION.size << 16 | ord("!") << 8
_SEND = 3 << 30 | _ANSWER.size << 16 | ord("!") << 8 | 1

Decide = Callable[[str], int]
"""Called at each call with its name: GO_ON, KILL or the number of the error that it is to have."""
Work = Callable[[Callable[[], None]], None]
"""Called in a child with what gives an acknowledgement."""


class End(NamedTuple):
    """How a child ended."""

    acknowledged: int
    """Acknowledgements that it gave."""
    code: int
    """Exit code; negative: the signal."""
    said: str
    """Its last words."""


def is_usable() -> str:
    """Why calls cannot be intercepted here; empty if they can."""
    if not _OURS:
        return f"the system calls of {platform.machine()} are not known here"
    try:
        end = run_child(lambda _: os.fsync(1), ("fsync",), lambda _: errno.EXFULL)
    except OSError as error:
        return f"the kernel does not let a parent decide a child's calls (seccomp, Linux 5.5): {error}"
    return "" if f"[Errno {errno.EXFULL}]" in end.said else f"an error that was asked for did not come: {end}"


def run_child(work: Work, calls: Sequence[str] = (), decide: Decide = lambda _: GO_ON) -> End:
    """Fork, and let the child work.

    Args:
        work: what it does.
        calls: those at which `decide` is asked. Names that this machine does not know are never called.
        decide: what becomes of each.

    Raises:
        OSError: the kernel cannot ask us.
    """
    ours, theirs = socket.socketpair()
    numbers = [_OURS[call] for call in calls if call in _OURS]
    child = os.fork()
    if child == 0:
        ours.close()
        _be_child(work, theirs, numbers)
    theirs.close()
    names = {number: call for call, number in _OURS.items()}
    try:
        listener = _listener(ours) if numbers else None
        try:
            heard = _hear(ours, listener, child, lambda number: decide(names[number]))
        finally:
            if listener is not None:
                os.close(listener)
    finally:
        ours.close()
        _, status = os.waitpid(child, 0)
    acknowledged, _, said = heard.partition(b"\n")
    return End(len(acknowledged), os.waitstatus_to_exitcode(status), said.decode(errors="replace"))


def count_calls(work: Work, calls: Sequence[str]) -> Counter[str]:
    """How often an undisturbed child makes each of `calls`."""
    counts: Counter[str] = Counter()

    def count(call: str) -> int:
        counts[call] += 1
        return GO_ON

    end = run_child(work, calls, count)
    assert end.code == 0, end.said
    return counts


# --- the child -----------------------------------------------------------------------------------------------------------


def _be_child(work: Work, channel: socket.socket, numbers: list[int]) -> NoReturn:
    """Tells by `sendto` and `sendmsg`, which nobody intercepts."""
    code = 0
    try:
        if numbers:
            listener = _ask_at(numbers)
            socket.send_fds(channel, [b"h"], [listener])
            channel.recv(2)
        work(lambda: _tell(channel))
    except RecoveryError as error:
        code = REFUSED
        channel.send(b"\n" + f"{error.code}: {error}".encode()[:2_000])
    except BaseException:  # noqa: BLE001 - the parent judges
        code = BROKEN
        channel.send(b"\n" + traceback.format_exc().encode()[-4_000:])
    finally:
        os._exit(code)


def _tell(channel: socket.socket) -> None:
    channel.send(b".")


def _ask_at(numbers: list[int]) -> int:
    """Let the kernel ask at these calls of this process; the descriptor by which it asks.

    Raises:
        OSError: it cannot.
    """
    rows = [(_LOAD, 0, 0, 0)]
    rows += [(_JUMP_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    described = struct.pack("@HP", len(rows), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    # Nobody would answer it any more.
    libc.prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener = int(libc.syscall(_OURS["seccomp"], _SET_FILTER, _NEW_LISTENER, described))
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


# --- its parent ----------------------------------------------------------------------------------------------------------


def _listener(ours: socket.socket) -> int:
    """The descriptor by which the kernel asks.

    Raises:
        OSError: the child has none.
    """
    said, ancillary, _, _ = ours.recvmsg(4_096, socket.CMSG_SPACE(array.array("i").itemsize))
    if not ancillary:
        raise OSError(errno.ENOSYS, (said or b"the child has ended").decode(errors="replace").strip())
    [listener] = array.array("i", ancillary[0][2])
    ours.send(b"go")
    return listener


def _hear(ours: socket.socket, listener: int | None, child: int, decide: Callable[[int], int]) -> bytes:
    """What the child says until it ends; it is killed when it does not."""
    heard = b""
    deadline = time.monotonic() + WORK_S
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    if listener is not None:
        poll.register(listener, select.POLLIN)
    while True:
        ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1_000))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return heard + b"\nit did not end"
        if listener is not None and ready.get(listener, 0) & select.POLLIN:
            _answer(listener, child, decide)
            continue
        if listener is not None and listener in ready:
            # The child is on its end, which takes its time.
            poll.unregister(listener)
            listener = None
        if ours.fileno() in ready:
            content = ours.recv(65_536)
            if not content:
                return heard
            heard += content


def _answer(listener: int, child: int, decide: Callable[[int], int]) -> None:
    question = bytearray(_QUESTION.size)
    fcntl.ioctl(listener, _RECEIVE, question)
    asked, _, _, number, *_ = _QUESTION.unpack(question)
    answer = decide(number)
    if answer == KILL:
        os.kill(child, signal.SIGKILL)
        return
    flag = 0 if answer else _GO_ON_FLAG
    fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(asked, 0, -answer, flag)))
