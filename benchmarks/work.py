"""The processes that recover.py measures: one training step, done under the engine, under torchrun, and as bare floors.

Every side trains the example's network (784 -> 10, SGD, DistributedDataParallel, gloo) on random digits; a step ends with a
sleep of `STEP_MS`, as a device would keep the processor free. Each applied step appends one JSON line to `steps.jsonl`.
Not meant to be started by hand: `python work.py engine|torchrun|reform|fresh`.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from work_log import note

STEP_MS = float(os.environ.get("BENCH_STEP_MS", "10"))
SAVE_STEPS = int(os.environ.get("BENCH_SAVE_STEPS", "20"))
# Nobody waits for the end: the measuring process kills all.
EPOCHS = 1_000_000
SNAPSHOT = Path("snapshot.pt")
REFORM_ROUNDS = int(os.environ.get("BENCH_ROUNDS", "20"))


@functools.lru_cache(maxsize=1)
def digits() -> TensorDataset:
    """As many images as scikit-learn's set has: float32 [1797, 784] and int64 [1797]."""
    numbers = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(1797, 784, generator=numbers), torch.randint(10, (1797,), generator=numbers)
    )


def one_step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """The step that all sides do."""
    images, labels = batch
    optimizer.zero_grad()
    loss: Any = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    time.sleep(STEP_MS / 1000)


def engine() -> None:
    """This project: recovery.run; MS_STEP_LOG writes the lines."""
    import recovery  # noqa: PLC0415 - the other sides must not pay for it
    import recovery.torch as rt  # noqa: PLC0415 - as above

    @recovery.run(warm_up=digits)
    def train(session: recovery.Session) -> None:
        rt.init_process_group(session)
        net = DistributedDataParallel(nn.Linear(784, 10))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        loader = rt.ResumableLoader(digits(), batch_size=32, session=session)
        state = rt.TrainState(model=net, optimizer=optimizer, loader=loader)
        config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
        saver = recovery.ModelCheckpoint("bench", f"ckpt/{session.rank}", config)
        for _, batch in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
            one_step(net, optimizer, batch)

    train()


def torchrun() -> None:
    """The same training the way torchrun's users write it: rank 0 saves a snapshot, everybody loads it when started again."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    start = 1 + int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    Path(f"pid_{rank}").write_text(str(os.getpid()))
    distributed.init_process_group("gloo")
    model = nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    step = 0
    if SNAPSHOT.exists():
        saved = torch.load(SNAPSHOT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    net = DistributedDataParallel(model)
    data = digits()
    sampler: DistributedSampler[Any] = DistributedSampler(data, world_size, rank)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            one_step(net, optimizer, batch)
            step += 1
            note(round=start, rank=rank, step=step)
            if rank == 0 and step % SAVE_STEPS == 0:
                draft = SNAPSHOT.with_suffix(".draft")
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft
                )
                draft.replace(SNAPSHOT)


def reform() -> None:
    """Floor: living processes tear their gloo world down and form the next one, until its first all_reduce is done."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for number in range(REFORM_ROUNDS + 1):
        begun = time.perf_counter()
        if number:
            distributed.destroy_process_group()
        address = Path(f"address_{number}")
        if rank == 0:
            store = TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
            draft = Path(f".address_{number}")
            draft.write_text(str(store.port))
            # It listens by now: a store that is dialled too early costs seconds.
            draft.replace(address)
        else:
            while not address.exists():
                time.sleep(0.001)
            store = TCPStore("127.0.0.1", int(address.read_text()), world_size, is_master=False)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        distributed.all_reduce(torch.ones(1))
        if number:
            note(round=number, rank=rank, ms=(time.perf_counter() - begun) * 1000)
        distributed.barrier()
    distributed.destroy_process_group()


def fresh() -> None:
    """Floor: a process of its own, from nothing to its first step, its state loaded from a file."""
    store = HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    if SNAPSHOT.exists():
        model.load_state_dict(torch.load(SNAPSHOT, weights_only=True))
    else:
        torch.save(model.state_dict(), SNAPSHOT)
    net = DistributedDataParallel(model)
    one_step(net, optimizer, next(iter(DataLoader(digits(), batch_size=32))))
    note(round=0, rank=0, step=1)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"engine": engine, "torchrun": torchrun, "reform": reform, "fresh": fresh}[sys.argv[1]]()
