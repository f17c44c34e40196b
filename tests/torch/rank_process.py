"""One rank of a real world, driven by lines on its standard input. What it does is told by its first argument.

It says what happens to it, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from recovery.errors import GenerationInterrupted
from recovery.torch import init_process_group
from recovery.torch.process_group import is_collective_error
from recovery.torch.warm_up import warm_up
from tests.torch.face import Face, tell

_plans: queue.Queue[dict[str, Any]] = queue.Queue()
_faces: dict[int, Face] = {}


def _listen() -> None:
    """The control thread: as long as the pipe is open."""
    for line in sys.stdin:
        word = json.loads(line)
        face = _faces.get(word.get("generation", 0))
        if word["do"] == "enter":
            face = Face(word["rank"], word["world_size"], word["generation"])
            _faces[face.generation] = face
            _plans.put(word)
        elif word["do"] == "rendezvous" and face is not None:
            face.open_rendezvous(word["address"])
        elif word["do"] == "interrupt" and face is not None:
            began = time.monotonic()
            face.interrupt()
            tell(woke_ms=1e3 * (time.monotonic() - began))
    os._exit(0)


def _all_reduce(face: Face, steps: int) -> None:
    """All ranks reduce, step after step."""
    value = torch.ones(1000)
    for step in range(steps):
        face.check()
        distributed.all_reduce(value)
        if step == 0:
            tell(first=True)


def _idle(face: Face, steps: int) -> None:
    """One reduction, then nothing until the generation ends."""
    distributed.all_reduce(torch.ones(1000))
    tell(first=True)
    face.await_interrupt()


def _train(face: Face, steps: int) -> None:
    """All ranks train with DistributedDataParallel: the world breaks in a backward pass."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 1)))
    for step in range(steps):
        face.check()
        model(torch.ones(4, 64)).sum().backward()
        if step == 0:
            tell(first=True)


_PROGRAMS = {"all_reduce": _all_reduce, "idle": _idle, "train": _train}


def _enter(word: dict[str, Any]) -> None:
    face = _faces[word["generation"]]
    began = time.monotonic()
    try:
        init_process_group(face)
        tell(formed_ms=1e3 * (time.monotonic() - began), sockets=_sockets())
        _PROGRAMS[word["program"]](face, word["steps"])
    except GenerationInterrupted:
        tell(left="interrupted")
    except Exception as error:  # noqa: BLE001 - the child reports whatever it met, by plain names
        tell(
            left="error",
            collective=is_collective_error(error),
            kind=type(error).__name__,
            text=str(error)[:300],
        )
    else:
        tell(left="done")
    began = time.monotonic()
    face.close()
    tell(closed_ms=1e3 * (time.monotonic() - began), descriptors=_descriptors(), threads=_threads())


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the child reports whatever it met, by plain names


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - the child reports whatever it met, by plain names


def _sockets() -> int:
    names = (os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path))  # noqa: PTH114, PTH115 - the child reports whatever it met, by plain names
    return sum(name.startswith("socket:") for name in names)


def main() -> None:
    threading.Thread(target=_listen, daemon=True).start()
    warm_up()
    tell(ready=True)
    while True:
        _enter(_plans.get())


if __name__ == "__main__":
    main()
