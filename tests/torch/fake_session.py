"""A small real session: rendezvous and interrupts come over a pipe, read by a thread of its own, as in a worker."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from recovery.errors import GenerationInterrupted


class FakeSession:
    """A generation as recovery.torch sees it."""

    def __init__(self, rank: int = 0, world_size: int = 1, generation: int = 1) -> None:
        self.rank, self.world_size, self.generation = rank, world_size, generation
        self.local_rank, self.local_world_size = rank, world_size
        self.host = "127.0.0.1"
        self.plan_is_live = False
        self.control_inode: int | None = None
        self.closers: list[Callable[[], None]] = []
        self._wakers: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._rendezvous = ""
        self._interrupted = False

    def publish_rendezvous(self, address: str) -> None:
        report(rendezvous=address, generation=self.generation)

    def await_rendezvous(self) -> str:
        with self._changed:
            while not self._rendezvous:
                self.check()
                self._changed.wait()
            return self._rendezvous

    def on_interrupt(self, wake: Callable[[], None]) -> None:
        with self._changed:
            self._wakers.append(wake)

    def on_generation_end(self, close: Callable[[], None]) -> None:
        self.closers.append(close)

    def check(self) -> None:
        if self._interrupted:
            raise GenerationInterrupted(self.generation, "interrupted by the test")

    def await_interrupt(self) -> None:
        with self._changed:
            while True:
                self.check()
                self._changed.wait()

    def close(self) -> None:
        while self.closers:
            self.closers.pop()()

    # --- called from the control thread

    def open_rendezvous(self, address: str) -> None:
        with self._changed:
            self._rendezvous = address
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._interrupted = True
            wakers = tuple(self._wakers)
            self._changed.notify_all()
        for wake in wakers:
            wake()


def report(**event: Any) -> None:
    """Print one line for the test."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
