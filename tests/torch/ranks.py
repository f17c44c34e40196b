"""Real processes that form worlds, and the test's hands on them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.warm.process import TORCH, Process

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 120
"""How long a test waits for one report of a process, in seconds. A hundred times what it takes."""


class Rank:
    """One process."""

    def __init__(self) -> None:
        self.process: Process[str] = Process(
            [sys.executable, "-m", "tests.torch.rank_process"],
            imports=TORCH,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._kept: list[dict[str, Any]] = []
        self.world: Ranks | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if "rendezvous" in event and self.world is not None:
                self.world.meet(event["generation"], event["rendezvous"])
            else:
                self._events.put(event)

    def send(self, **event: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(event) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            # It was killed.
            pass

    def wait(self, key: str, patience_s: float = _PATIENCE_S) -> dict[str, Any]:
        """The next report with this key; others are kept for later calls.

        Raises:
            queue.Empty: none came in time.
        """
        while True:
            for position, event in enumerate(self._kept):
                if key in event:
                    return self._kept.pop(position)
            self._kept.append(self._events.get(timeout=patience_s))

    def used(self) -> tuple[bool, str]:
        """Does its main thread sleep, and how much processor time has it used?"""
        stat = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return fields[0] == "S", "/".join(fields[11:13])

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(_PATIENCE_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:  # noqa: SIM105 - reads in the order of what happens
                    pipe.close()
                except BrokenPipeError:
                    pass


class Ranks:
    """A handful of processes; ended when the block is left."""

    def __init__(self, count: int) -> None:
        self.ranks = [Rank() for _ in range(count)]
        self.withhold_rendezvous = False
        self._addresses: defaultdict[int, queue.Queue[str]] = defaultdict(queue.Queue)
        for rank in self.ranks:
            rank.world = self

    def __enter__(self) -> Ranks:
        for rank in self.ranks:
            rank.wait("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            rank.end()

    def enter(self, generation: int, program: str = "all_reduce", steps: int = 10**9) -> None:
        for number, rank in enumerate(self.ranks):
            rank.send(
                do="enter",
                generation=generation,
                rank=number,
                world_size=len(self.ranks),
                program=program,
                steps=steps,
            )

    def address(self, generation: int) -> str:
        """Where rank 0 listens."""
        return self._addresses[generation].get(timeout=_PATIENCE_S)

    def meet(self, generation: int, address: str) -> None:
        self._addresses[generation].put(address)
        if not self.withhold_rendezvous:
            self.send_address(generation, address)

    def send_address(self, generation: int, address: str, *, but: tuple[int, ...] = ()) -> None:
        for number, rank in enumerate(self.ranks):
            if number not in (0, *but):
                rank.send(do="rendezvous", generation=generation, address=address)

    def interrupt(self, generation: int, *, but: tuple[int, ...] = ()) -> None:
        for number, rank in enumerate(self.ranks):
            if number not in but:
                rank.send(do="interrupt", generation=generation)

    def wait_all(self, key: str, *, but: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        return [rank.wait(key) for number, rank in enumerate(self.ranks) if number not in but]

    def wait_idle(self, *, but: tuple[int, ...] = ()) -> None:
        """Until the main threads of all the others have slept through five looks in a row, none having run in between."""
        others = [rank for number, rank in enumerate(self.ranks) if number not in but]
        deadline, quiet, before = time.monotonic() + _PATIENCE_S, 0, [(False, "")]
        pause = threading.Event()
        while quiet < 5:
            assert time.monotonic() < deadline, "they never wait"
            pause.wait(0.05)
            now = [rank.used() for rank in others]
            quiet = quiet + 1 if now == before and all(sleeps for sleeps, _ in now) else 0
            before = now

    def replace(self, number: int) -> None:
        """Start a process in the place of one that was killed."""
        self.ranks[number].end()
        self.ranks[number] = Rank()
        self.ranks[number].world = self
        self.ranks[number].wait("ready")
