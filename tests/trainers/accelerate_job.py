"""A script with Accelerate, as people write one, configured by its environment."""

from __future__ import annotations

import os

import torch
from accelerate.utils import (
    DataLoaderConfiguration,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
)
from torch.utils.data import DataLoader

import recovery
from recovery.accelerate import Accelerator, current_session
from tests.trainers.tiny_training import (
    ADDS,
    HOOK,
    HOOK_OPTIONS,
    SAMPLES,
    UNFREEZES,
    Net,
    Samples,
    Stream,
    enter,
    finish,
    hold,
    log,
    note,
)

EPOCHS = int(os.environ.get("JOB_EPOCHS", "2"))
SAVE_STEPS = int(os.environ.get("JOB_SAVE_STEPS", "5"))
"""0: at each epoch's end, behind its evaluation."""
ACCUMULATION = int(os.environ.get("JOB_ACCUMULATION", "1"))
STREAM = int(os.environ.get("JOB_STREAM", "0"))
DISPATCH = os.environ.get("JOB_DISPATCH") == "1"
"""Rank 0 reads for all."""
SKIPS = int(os.environ.get("JOB_SKIPS", "0"))
"""Batches that the script leaves out of its second epoch."""
NUM_WORKERS = int(os.environ.get("JOB_NUM_WORKERS", "0"))


@recovery.run
def main() -> None:
    session = current_session()
    enter(session)
    parallel = DistributedDataParallelKwargs(find_unused_parameters=UNFREEZES)
    if HOOK:
        parallel.comm_hook, parallel.comm_state_option = DDPCommunicationHookType.POWER_SGD, HOOK_OPTIONS
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=ACCUMULATION,
        kwargs_handlers=[parallel],
        dataloader_config=DataLoaderConfiguration(dispatch_batches=DISPATCH or None),
    )
    torch.manual_seed(7)
    net = Net()
    train = (
        DataLoader(Stream(STREAM), batch_size=4)
        if STREAM
        else DataLoader(Samples(SAMPLES), batch_size=4, shuffle=True, num_workers=NUM_WORKERS)
    )
    evaluation = DataLoader(Samples(20, first=1_000), batch_size=4)
    optimizer = torch.optim.AdamW(net.trained(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    model, optimizer, train, evaluation, schedule = accelerator.prepare(
        net, optimizer, train, evaluation, schedule
    )

    net.layers[0].requires_grad_(not UNFREEZES and not ADDS)
    step = session.step if session else 0
    for epoch in accelerator.epochs(EPOCHS):
        model.train()
        if epoch == 1 and ADDS:
            net.add_to(optimizer)
        elif epoch == 1:
            net.layers[0].requires_grad_(True)
        skips = SKIPS if epoch == 1 else 0
        used = accelerator.skip_first_batches(train, skips) if skips else train
        for step, batch in accelerator.steps(used):
            total = 0 if STREAM else EPOCHS * len(train)
            assert session is None or SKIPS or session.total_steps == total, (
                "the launcher's line tells when it ends"
            )
            hold(session, "step", step)
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            note(session, step, net)
            if SAVE_STEPS and step % SAVE_STEPS == 0:
                hold(session, "save", step)
                accelerator.save_state(f"ckpt/step_{step}", keep=2)
        hold(session, "epoch", step)
        model.eval()
        losses = []
        with torch.no_grad():
            for batch in evaluation:
                hold(session, "evaluation", step)
                seen = accelerator.gather_for_metrics(model(**batch)["loss"][None])
                losses.append(float(seen.mean()))
        log(session, "evaluations", epoch, losses)
        if not SAVE_STEPS:
            accelerator.save_state(f"ckpt/step_{step}", keep=2)
    hold(session, "end", step)
    finish(session, net, step)


if __name__ == "__main__":
    main()
