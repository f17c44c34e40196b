"""Notices when processes of this host end: by their descriptors, in the scheduler's loop, without a thread."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Callable

from recovery import process_identity
from recovery.core.ids import NodeId
from recovery.core.scheduler.effects import WatchProcess
from recovery.core.scheduler.stimuli import ProcessGone
from recovery.readable import is_readable
from recovery.transport.local_address import is_local

_POLL_S = 0.05
"""How often a process is looked at whose descriptor cannot tell. At twice that a loss is noticed as late as a person notices it."""


def when_gone(pid: int, call: Callable[[], None]) -> None:
    """Call back once a process of this pid namespace has ended, at once where it has. Inside the loop.

    Another program that takes it over, by exec, is the same process. Where it has no descriptor (none is left, the kernel knows none or
    forbids them) it is looked at every now and then.
    """
    loop, process = asyncio.get_running_loop(), process_identity.of(pid)

    def look() -> None:
        ended = process_identity.has_ended(process, pid) if process is not None else _is_free(pid)
        if ended:
            call()
        else:
            loop.call_later(_POLL_S, look)

    def gone() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        call()

    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        look()
    else:
        loop.add_reader(descriptor, gone)


def _is_free(pid: int) -> bool:
    """Is there no such process?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _may_be_here(host: str) -> bool:
    """Is it an address of this host, or a name, which is not looked up?"""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return is_local(host)


class ProcessWatch:
    """At most one process per node is watched."""

    def __init__(self, on_gone: Callable[[ProcessGone], None]) -> None:
        """Watch nothing yet. Created inside the loop.

        Args:
            on_gone: called in the loop, once per watch, never from inside `begin`.
        """
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[NodeId, int] = {}
        self._looks: dict[NodeId, asyncio.Handle] = {}

    def begin(self, watched: WatchProcess) -> None:
        """Watch it, in the place of what was watched of the same node. Where nothing can be proven of it, nothing follows."""
        self.end(watched.node_id)
        if watched.host and not _may_be_here(watched.host):
            return
        # Before the look: what is found to be the very process then is what the descriptor holds.
        with contextlib.suppress(OSError, OverflowError):
            self._descriptors[watched.node_id] = os.pidfd_open(watched.pid)
        ended = process_identity.has_ended(watched.process, watched.pid)
        if ended is None:
            self.end(watched.node_id)
        elif ended:
            self._looks[watched.node_id] = self._loop.call_soon(self._look, watched)
        else:
            self._wait(watched)

    def end(self, node_id: NodeId) -> None:
        """Watch it no more."""
        look = self._looks.pop(node_id, None)
        if look is not None:
            look.cancel()
        self._close(node_id)

    def stop(self) -> None:
        """Watch nothing any more."""
        for node_id in {*self._looks, *self._descriptors}:
            self.end(node_id)

    def _wait(self, watched: WatchProcess) -> None:
        descriptor = self._descriptors.get(watched.node_id)
        if descriptor is None or is_readable(descriptor):
            self._looks[watched.node_id] = self._loop.call_later(_POLL_S, self._look, watched)
        else:
            self._loop.add_reader(descriptor, self._look, watched)

    def _look(self, watched: WatchProcess) -> None:
        self._looks.pop(watched.node_id, None)
        descriptor = self._descriptors.get(watched.node_id)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
        if process_identity.has_ended(watched.process, watched.pid):
            self._close(watched.node_id)
            self._on_gone(ProcessGone(watched.node_id, watched.incarnation))
        else:
            # A descriptor that tells and a process that runs: a program is being replaced by another.
            self._wait(watched)

    def _close(self, node_id: NodeId) -> None:
        descriptor = self._descriptors.pop(node_id, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
