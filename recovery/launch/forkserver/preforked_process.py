"""A process that was forked before it is asked for: the template's side of it.

A fork copies the tables of all memory, twice, since each process is forked twice: the process between ends, so that the kernel gives the
new one to the launcher, which reaps the children of its descendants. It outlives the template, and its launcher sees its true status.
Until it is asked for the process between stays: the launcher does not know of either, and both end with the template.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Sequence

from recovery import process_conditions
from recovery.launch.child_process import ChildProcess
from recovery.launch.forkserver import fork_messages, forked_child
from recovery.launch.forkserver.fork_messages import Fork, Forked, NotForked, Stale
from recovery.readable import is_readable

_READ_BYTES = 4096


class PreforkedProcess:
    """One such process. It is used once."""

    def __init__(self, between: int, link: socket.socket) -> None:
        """Note it.

        Args:
            between: process id of the one between it and the template.
            link: to the process itself.
        """
        self._between, self._link = ChildProcess(between, leads_session=False), link

    def has_ended(self) -> bool:
        """Somebody else has ended it: it says nothing before it is asked."""
        if not is_readable(self._link):
            return False
        self._between.end()
        self._link.close()
        return True

    def begin(
        self, request: Fork, descriptors: Sequence[int], changed: Callable[[], str]
    ) -> Forked | NotForked | Stale:
        """Make it what the request says.

        Args:
            request: what the launcher asked for.
            descriptors: that came with it.
            changed: says what the template has imported otherwise than a process would now; empty: nothing. It is asked while the
                process prepares itself.
        """
        with self._link:
            # One that was ended meanwhile reports nothing.
            with contextlib.suppress(OSError):
                fork_messages.send(self._link, request, descriptors)
            self._between.kill()
            reason = changed()
            self._between.wait()
            if reason:
                return Stale(reason=reason)
            return forked_child.read_report(self._report())

    def _report(self) -> bytes:
        said = b""
        # One that could not become it has ended, and its report is there.
        with contextlib.suppress(OSError):
            self._link.sendall(b"1")
        with contextlib.suppress(OSError):
            while part := self._link.recv(_READ_BYTES):
                said += part
        return said


class NewProcess(Exception):  # noqa: N818 - no error: where the new process leaves what the template does
    """This is a process that was just forked."""

    def __init__(self, template: socket.socket) -> None:
        """Note its link to the template, which says what it is to be."""
        self.template = template
        super().__init__()


def fork(link: socket.socket) -> PreforkedProcess:
    """Fork a process.

    Args:
        link: of the template to its launcher, which nobody else may keep open.

    Raises:
        OSError: the system refused.
        NewProcess: in the new process.
    """
    ours, theirs = socket.socketpair()
    template = os.getpid()
    try:
        between = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if between:
        theirs.close()
        # A caller that ends the process between before that would have none.
        if ours.recv(1):
            return PreforkedProcess(between, ours)
        ours.close()
        number = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
        raise OSError(max(number, 0), os.strerror(number) if number > 0 else "it ended before it began")
    ours.close()
    link.close()
    _fork_again(template, theirs)
    theirs.sendall(b"1")
    raise NewProcess(theirs)


def _fork_again(template: int, held: socket.socket) -> None:
    """In the process between, which then stays until it is killed. Returns in the process that it forks."""
    process_conditions.tie_to(template)
    try:
        pid = os.fork()
    except OSError as error:
        os._exit(error.errno or errno.EAGAIN)
    if not pid:
        return
    # Else the end of the new process would not be seen.
    held.close()
    while True:
        signal.pause()
