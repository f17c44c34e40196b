"""The training of the comparison under this engine, as its users write it. Started by `recovery msrun`."""

from __future__ import annotations

import torch
from program_common import BATCH_SIZE, EPOCHS, SAVE_STEPS, digits, one_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from work_log import mark, stepped

import recovery
import recovery.torch as rt


@recovery.run(warm_up=digits)
def train(session: recovery.Session) -> None:
    """Entered again for every generation."""
    rt.init_process_group(session)
    mark("world", session.rank)
    bare = session.keep(lambda: nn.Linear(784, 10), "net")
    optimizer = session.keep(lambda: torch.optim.SGD(bare.parameters(), lr=1e-2), "optimizer")
    net = DistributedDataParallel(bare)
    loader = rt.ResumableLoader(digits(), batch_size=BATCH_SIZE, session=session)
    state = rt.TrainState(model=net, optimizer=optimizer, loader=loader)
    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("bench", f"ckpt/{session.rank}", config)
    loaded = False
    for step, batch in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
        if not loaded:
            mark("loaded", session.rank)
            loaded = True
        one_step(net, optimizer, batch)
        stepped(session.rank, step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    mark("entered")
    train()
