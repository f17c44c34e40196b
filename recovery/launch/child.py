"""One child process: started without a thread of its own, and waited for by its descriptor."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from recovery.launch.children import tied

_POLL_S = 0.05
"""How often a child is asked after where it has no descriptor: none is left, or the kernel knows none (before Linux 5.3)."""


class Child:
    """A process in a session of its own, which the kernel ends with this one."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cpus: Sequence[int],
        log: IO[bytes] | int,
    ) -> None:
        """Start it.

        Args:
            command: what it runs.
            environment: all of it.
            cpus: processors it may use; none: all.
            log: where its output goes.

        Raises:
            OSError: it could not be started; nothing is left of it.
        """
        self._process = subprocess.Popen(  # noqa: S603 - the command of the person who started the job
            tied(command, cpus),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._ended = asyncio.create_task(self._await_end())

    @property
    def pid(self) -> int:
        """Of the process, and of its session."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end. Gives its exit code; negative: the signal that killed it."""
        return await asyncio.shield(self._ended)

    async def _await_end(self) -> int:
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except OSError:
            while (status := self._process.poll()) is None:  # noqa: ASYNC110 - nothing here could set an event
                await asyncio.sleep(_POLL_S)
            return status
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._process.wait()
