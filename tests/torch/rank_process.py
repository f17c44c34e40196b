"""One rank of a real world, driven by orders on its standard input, one JSON object a line.

It reports what happens to it in the same form.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from recovery.errors import GenerationInterrupted
from recovery.torch import init_process_group
from recovery.torch.collective_errors import is_collective_error
from recovery.torch.warm_up import warm_up
from tests.torch.fake_session import FakeSession, report

_plans: queue.Queue[dict[str, Any]] = queue.Queue()
_sessions: dict[int, FakeSession] = {}
_refused: list[tuple[str, int]] = []
"""Where nobody listened yet, in this generation."""


def _listen() -> None:
    """The control thread: as long as the pipe is open."""
    for line in sys.stdin:
        order = json.loads(line)
        session = _sessions.get(order.get("generation", 0))
        if order["do"] == "enter":
            session = FakeSession(order["rank"], order["world_size"], order["generation"])
            _sessions[session.generation] = session
            _plans.put(order)
        elif order["do"] == "rendezvous" and session is not None:
            session.open_rendezvous(order["address"])
        elif order["do"] == "interrupt" and session is not None:
            session.interrupt()
            report(woke=True)
    os._exit(0)


def _all_reduce(session: FakeSession, steps: int) -> None:
    """All ranks reduce, step after step."""
    value = torch.ones(1000)
    for step in range(steps):
        session.check()
        distributed.all_reduce(value)
        if step == 0:
            report(first=True)


def _idle(session: FakeSession, steps: int) -> None:
    """One reduction, then nothing until the generation ends."""
    distributed.all_reduce(torch.ones(1000))
    report(first=True)
    session.await_interrupt()


def _train(session: FakeSession, steps: int) -> None:
    """All ranks train with DistributedDataParallel: the world breaks in a backward pass."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 1)))
    for step in range(steps):
        session.check()
        model(torch.ones(4, 64)).sum().backward()
        if step == 0:
            report(first=True)


def _pair(session: FakeSession, steps: int) -> None:
    """Ranks 0 and 1 reduce in a group of their own, step after step; the others wait."""
    pair = distributed.new_group([0, 1])
    value = torch.ones(1000)
    for step in range(steps if session.rank < 2 else 0):
        session.check()
        distributed.all_reduce(value, group=pair)
        if step == 0:
            report(first=True)
    report(first=True)
    session.await_interrupt()


_PROGRAMS = {"pair": _pair, "all_reduce": _all_reduce, "idle": _idle, "train": _train}


def _enter(order: dict[str, Any]) -> None:
    session = _sessions[order["generation"]]
    _refused.clear()
    try:
        init_process_group(session)
        report(formed=True, refused=len(_refused), sockets=_sockets())
        _PROGRAMS[order["program"]](session, order["steps"])
    except GenerationInterrupted:
        report(left="interrupted")
    except Exception as error:  # noqa: BLE001 - the child reports whatever it met, by plain names
        report(
            left="error",
            collective=is_collective_error(error),
            kind=type(error).__name__,
            text=str(error)[:300],
        )
    else:
        report(left="done")
    session.close()
    report(closed=True, descriptors=_descriptors(), threads=_threads())


def _note_refused_dials() -> None:
    dial = socket.create_connection

    def noted(address: tuple[str, int], **options: Any) -> socket.socket:
        try:
            return dial(address, **options)
        except ConnectionRefusedError:
            _refused.append(address)
            raise

    # In this process only, which is one rank's.
    socket.create_connection = noted  # type: ignore[assignment]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the child reports whatever it met, by plain names


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - the child reports whatever it met, by plain names


def _sockets() -> int:
    names = (os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path))  # noqa: PTH114, PTH115 - the child reports whatever it met, by plain names
    return sum(name.startswith("socket:") for name in names)


def main() -> None:
    threading.Thread(target=_listen, daemon=True).start()
    _note_refused_dials()
    warm_up()
    report(ready=True)
    while True:
        _enter(_plans.get())


if __name__ == "__main__":
    main()
