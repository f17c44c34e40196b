"""One rank of `checkpoint.py`: trains with steps of 10 ms and saves in every way in turn; prints one JSON line for each save."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from checkpoint_ways import WAYS, Durable, OfRank, Way, clear

from recovery.checkpoint import names, verify
from recovery.checkpoint.publish import Content, publish
from recovery.torch import TrainState

STEP_S = 0.01
STEPS_BETWEEN = 10
RESTORES = 5
RESTORED = ("verified", "torch_load", "torch_load_applied")
_SIDE = 1_000
_LAYER_BYTES = 3 * 4 * (_SIDE * _SIDE + _SIDE)
"""A layer's weights and AdamW's two averages of them."""


def built(state_bytes: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, TrainState]:
    """A model with its optimizer, after one step, so that all of its state is there."""
    layers = max(1, round(state_bytes / _LAYER_BYTES))
    model = torch.nn.Sequential(*[torch.nn.Linear(_SIDE, _SIDE) for _ in range(layers)])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer, TrainState(model=model, optimizer=optimizer)


def step() -> float:
    """A step of training: some work, a collective, and waiting for a device. Returns how long it took, in seconds."""
    began = time.perf_counter()
    a = torch.ones(64, 64)
    dist.all_reduce(a @ a)
    time.sleep(max(0.0, STEP_S - (time.perf_counter() - began)))
    return time.perf_counter() - began


def cpu_s() -> float:
    """Processor time of this process and of whoever writes for it."""
    this = psutil.Process()
    found = 0.0
    for process in (this, *this.children(recursive=True)):
        times = process.cpu_times()
        found += times.user + times.system
    return found


def cpu_of_a_step(steps: int) -> float:
    """Seconds."""
    before = cpu_s()
    for _ in range(steps):
        step()
    return (cpu_s() - before) / steps


def one_save(way: Way, number: int) -> dict[str, float]:
    """Save, and train on until it is durable."""
    dist.barrier()
    cpu, thread, began = cpu_s(), time.thread_time(), time.perf_counter()
    durable = way.save(number)
    stall, busy = time.perf_counter() - began, time.thread_time() - thread
    ended, steps, middle = _train_until(durable)
    return {
        "stall_ms": 1e3 * stall,
        "stall_cpu_ms": 1e3 * busy,
        "durable_ms": 1e3 * (ended - began),
        "cpu_ms": 1e3 * (cpu_s() - cpu),
        "steps": steps,
        "step_ms": 1e3 * middle,
    }


def _train_until(durable: Durable) -> tuple[float, int, float]:
    """Steps go on behind the stall: at least as many as lie between two saves, and until all ranks' saves are durable.

    Returns when this rank's was, how many steps there were, and how long the middle one took, in seconds.
    """
    ended: list[float] = []

    def wait() -> None:
        durable()
        ended.append(time.perf_counter())

    threading.Thread(target=wait, daemon=True).start()
    taken: list[float] = []
    while True:
        taken.append(step())
        left = torch.tensor([float(not ended)])
        dist.all_reduce(left)
        if not left.item() and len(taken) >= STEPS_BETWEEN:
            return ended[0], len(taken), statistics.median(taken)


def restore_row(directory: Path, state: TrainState, size: int) -> dict[str, Any]:
    """Load a checkpoint of ours as a plan does, verified; beside it torch.load of the same file, and its tensors put into the same objects."""
    name = names.file_name("load", epoch=1, step_in_epoch=1)
    of = OfRank(state, {}, directory, dist.get_rank(), dist.get_world_size())
    _, path = publish(directory, [Content(name, state.write)], lambda files: of.manifest(1, files))
    taken: dict[str, list[float]] = {}
    for number in range(RESTORES):
        for kind in RESTORED if number % 2 else RESTORED[::-1]:
            objects = built(size)
            # A restore comes at the start of a process, whose memory is fresh; the allocator would have given it that of the time before.
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            dist.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            _restore(kind, path, *objects)
            taken.setdefault(f"{kind}_ms", []).append(1e3 * (time.perf_counter() - began))
            taken.setdefault(f"{kind}_cpu_ms", []).append(1e3 * (time.process_time() - cpu))
    return {kind: statistics.median(times) for kind, times in taken.items()}


def _restore(
    kind: str, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: TrainState
) -> None:
    if kind == "verified":
        verify.check(path)
        state.read(path)
        return
    loaded = torch.load(path, weights_only=True)
    if kind == "torch_load_applied":
        model.load_state_dict(loaded["parts"]["model"][0])
        optimizer.load_state_dict(loaded["parts"]["optimizer"][0])


def main() -> None:
    """`checkpoint_rank.py RANK RANKS STATE_BYTES ROUNDS DIRECTORY WAY...`."""
    rank, ranks, state_bytes, rounds = map(int, sys.argv[1:5])
    directory, chosen = Path(sys.argv[5]), sys.argv[6:]
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=ranks)
    model, optimizer, state = built(state_bytes)
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    ways = {name: WAYS[name](OfRank(state, parts, directory / str(rank), rank, ranks)) for name in chosen}
    per_step = cpu_of_a_step(50)
    for number in range(rounds + 1):
        order = list(ways) if number % 2 else list(ways)[::-1]
        for name in order:
            found = one_save(ways[name], number + 1)
            found["cpu_ms"] -= 1e3 * per_step * found.pop("steps")
            dist.barrier()
            # The first of each way starts what it needs.
            if number:
                print(
                    json.dumps({"way": name, "rank": rank, "bytes": _bytes(directory, rank), **found}),
                    flush=True,
                )
            dist.barrier()
            clear(directory / str(rank))
            if not rank:
                clear(directory / "all")
    print(json.dumps({"rank": rank, **restore_row(directory / str(rank), state, state_bytes)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _bytes(directory: Path, rank: int) -> int:
    """What is there of a save: each rank counts its own directory, rank 0 also the one of all."""
    places = [directory / str(rank), *([directory / "all"] if not rank else [])]
    return sum(file.stat().st_size for place in places for file in place.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
