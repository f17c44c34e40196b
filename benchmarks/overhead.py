"""What the engine costs when nothing fails: the example's step with and without it, in pairs.

    python benchmarks/overhead.py [--pairs 5] [--workers 2] [--steps 400] [--step-ms 10] [--rollback checkpoint] [--busy] [--json]

Both sides train the example's network with DistributedDataParallel and gloo, each step filled up to `--step-ms` by sleeping, as
a device would keep the processor free; with `--busy` by computing, as a model on the processor would. Behind a sleep a processor is
cold, so that the same code takes several times as long. With: `@recovery.run`, recovery on, a checkpoint every 100 steps. Without: plain
torch.distributed with torch's DataLoader and DistributedSampler, and `torch.save` every 100 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from typing_extensions import override

import recovery
import recovery.torch as rt

HERE = Path(__file__).resolve()
torch.manual_seed(0)
IMAGES, LABELS = torch.randn(32, 784), torch.randint(10, (32,))
WEIGHTS = torch.randn(784, 784)
_WARM_STEPS = 50
"""Steps before the clock starts, on both sides: what is paid once per process is no cost per step."""


def one_step(net: nn.Module, optimizer: torch.optim.Optimizer, step_ms: float, *, busy: bool) -> torch.Tensor:
    """The example's step on fixed data, filled up to `step_ms`."""
    begun = time.perf_counter()
    optimizer.zero_grad()
    loss: torch.Tensor = nn.functional.cross_entropy(net(IMAGES), LABELS)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    optimizer.step()
    while busy and time.perf_counter() - begun < step_ms / 1000:
        torch.mm(IMAGES, WEIGHTS)
    time.sleep(max(0.0, step_ms / 1000 - (time.perf_counter() - begun)))
    return loss


class Numbers(Dataset[int]):
    """As many samples as there are steps."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @override
    def __getitem__(self, index: int) -> int:
        return index


def without(steps: int, step_ms: float, *, busy: bool) -> None:
    """One process of the plain side."""
    rank, world_size = int(os.environ["MS_NODE_ID"].removeprefix("worker_")), int(os.environ["MS_WORKER_NUM"])
    store = TCPStore("127.0.0.1", int(os.environ["MS_SCHED_PORT"]), world_size, is_master=rank == 0)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    net = DistributedDataParallel(nn.Linear(784, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = Numbers(steps * world_size)
    loader = DataLoader(data, 1, sampler=DistributedSampler(data, world_size, rank))
    begun = 0.0
    for step, _ in enumerate(loader, start=1):
        one_step(net, optimizer, step_ms, busy=busy)
        if step == _WARM_STEPS:
            begun = time.perf_counter()
        if step % 100 == 0:
            torch.save(
                {"net": net.state_dict(), "optimizer": optimizer.state_dict()}, f"plain_{rank}_{step}.ckpt"
            )
    note(rank, time.perf_counter() - begun)
    distributed.destroy_process_group()


def with_engine(steps: int, step_ms: float, *, busy: bool) -> None:
    """One process of the engine's side."""

    @recovery.run
    def train(session: recovery.Session) -> None:
        rt.init_process_group(session)
        net = DistributedDataParallel(nn.Linear(784, 10))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        loader = rt.ResumableLoader(Numbers(steps * session.world_size), 1, session=session)
        state = rt.TrainState(model=net, optimizer=optimizer, loader=loader)
        config = recovery.CheckpointConfig(save_checkpoint_steps=100)
        saver = recovery.ModelCheckpoint("bench", f"ckpt/{session.rank}", config)
        begun = 0.0
        for step, _ in session.steps(state, epochs=1, callbacks=[recovery.LossMonitor(20), saver]):
            session.report(loss=one_step(net, optimizer, step_ms, busy=busy))
            if step == _WARM_STEPS:
                begun = time.perf_counter()
        note(session.rank, time.perf_counter() - begun)

    train()


def note(rank: int, seconds: float) -> None:
    """Rank 0 writes down how long its steps took."""
    if rank == 0:
        Path("result").write_text(str(seconds))


def run_side(mode: str, options: argparse.Namespace) -> float:
    """Run one side and return milliseconds per step."""
    with tempfile.TemporaryDirectory() as place, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        environment = {
            **os.environ,
            "MS_WORKER_NUM": str(options.workers),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(port),
            "MS_ENABLE_RECOVERY": "1",
            "MS_RECOVERY_PATH": "recovery",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "MS_ROLLBACK": options.rollback,
        }
        names = [f"worker_{number}" for number in range(options.workers)] + (
            ["sched"] if mode == "with" else []
        )
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(HERE),
                    "--side",
                    mode,
                    "--steps",
                    str(options.steps),
                    "--step-ms",
                    str(options.step_ms),
                    *(["--busy"] if options.busy else []),
                ],
                cwd=place,
                env={
                    **environment,
                    "MS_NODE_ID": name,
                    "MS_ROLE": "MS_SCHED" if name == "sched" else "MS_WORKER",
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name in names
        ]
        try:
            codes = [process.wait(120) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        if any(codes):
            message = f"{mode}: exit codes {codes}"
            raise SystemExit(message)
        return float(Path(place, "result").read_text()) * 1000 / int(options.steps - _WARM_STEPS)


def main() -> None:
    """Measure in pairs, in turn, and compare pair by pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument(
        "--rollback", choices=["checkpoint", "live"], default="checkpoint", help="MS_ROLLBACK"
    )
    parser.add_argument("--busy", action="store_true", help="fill the step up by computing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=["with", "without"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side = with_engine if options.side == "with" else without
        side(options.steps, options.step_ms, busy=options.busy)
        return
    pairs = [(run_side("with", options), run_side("without", options)) for _ in range(options.pairs)]
    ratios = [engine / plain for engine, plain in pairs]
    row = {
        "mode": f"overhead, {options.rollback}{', busy' if options.busy else ''}",
        "workers": options.workers,
        "with_ms": round(statistics.median(engine for engine, _ in pairs), 3),
        "without_ms": round(statistics.median(plain for _, plain in pairs), 3),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "n": len(pairs),
    }
    print(json.dumps(row) if options.json else "\n".join(f"{key:14} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
