"""A script with the Trainer of transformers, as people write one, configured by its environment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from torch.utils.data import Sampler
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from typing_extensions import override

import recovery.transformers
from recovery.transformers import Trainer, current_session
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
    note,
)

ARGUMENTS: dict[str, Any] = json.loads(os.environ.get("JOB_ARGUMENTS", "{}"))
"""More of TrainingArguments."""
STREAM = int(os.environ.get("JOB_STREAM", "0"))
"""How many samples the training set has, that has no length then."""
PATIENCE = int(os.environ.get("JOB_PATIENCE", "0"))
LENGTHS = os.environ.get("JOB_LENGTHS") == "1"
"""The samples have input_ids of different lengths, which the model does not take."""
ASKS = os.environ.get("JOB_ASKS") == "1"
"""A callback asks for a save behind every second evaluation."""
IMPROVES = os.environ.get("JOB_IMPROVES") == "1"
"""Each evaluation has a metric, `eval_step`, that is better than all before."""
ALONE = os.environ.get("JOB_ALONE") == "1"
"""Without recovery, as transformers alone trains."""
PASSES = os.environ.get("JOB_PASSES") == "1"
"""A sampler of the script's own, with `set_epoch`."""
COUNTS = os.environ.get("JOB_COUNTS") == "1"
"""A callback, a trainer of one's own and a metric count, and the steps depend on it."""
_NOT_OF_TRAINING = ("runtime", "per_second", "train_loss", "flos")


class Sized(Samples):
    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            # The Trainer asks for all lengths by iterating.
            raise IndexError(index)
        return {**super().__getitem__(index), "input_ids": torch.zeros(3 + index % 5)}


class Watched(TrainerCallback):  # type: ignore[misc]  # not installed where types are checked
    """Notes what was trained on, and waits where a test wants it."""

    def __init__(self, net: Net) -> None:
        self.net, self.session = net, current_session()

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.net.layers[0].requires_grad_(not UNFREEZES and not ADDS)

    @override
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if int(state.epoch) == 1 and ADDS:
            self.net.add_to(others["optimizer"])
        elif state.epoch == 1:
            self.net.layers[0].requires_grad_(True)

    @override
    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        hold(self.session, "step", state.global_step + 1)

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        note(self.session, state.global_step, self.net)

    @override
    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        hold(self.session, "evaluation", state.global_step)

    @override
    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        hold(self.session, "epoch", state.global_step)

    @override
    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        hold(self.session, "save", state.global_step)

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        hold(self.session, "end", state.global_step)


class Asks(TrainerCallback):  # type: ignore[misc]  # as above
    """Asks for a save that nobody has planned."""

    @override
    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_save = state.global_step % 8 < 4


class Improves(TrainerCallback):  # type: ignore[misc]  # as above
    """Whoever trains on gets better."""

    @override
    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        others["metrics"]["eval_step"] = float(state.global_step)


class Counts(TrainerCallback):  # type: ignore[misc]  # as above
    """A user's own, without a state that it saves."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.epochs, self.begun, self.share, self.best = 0, 0, 1.0, float("inf")
        self.seen: dict[str, Any] = {"losses": [], "mean": torch.zeros(2)}
        self.log = Log()

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.begun = state.global_step

    @override
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.epochs, self.share = self.epochs + 1, 1.0

    @override
    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.share *= 0.9
        with torch.no_grad():
            bias = self.net.get_parameter("layers.3.bias")
            bias.add_(0.01 * self.share + 0.003 * self.epochs + 0.1 * self.begun + self.seen["mean"])
            self.seen["mean"].add_(0.001 * bias)

    @override
    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        loss = others["metrics"]["eval_loss"]
        self.seen["losses"].append(loss)
        self.best = min(self.best, loss)
        self.log.lines += 1
        with torch.no_grad():
            self.net.get_parameter("layers.3.bias").add_(0.1 * (self.best - sum(self.seen["losses"])))


class Log:
    lines = 0


class Order(Sampler[int]):
    """Of a pass."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SAMPLES

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist())


class Ordered(Trainer):
    """Has an order of its own, and weighs its losses."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.running, self.weights = 0.0, [1.0]

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        loss = super().compute_loss(*given, **named)
        if not COUNTS or not self.model.training:
            return loss
        self.running = 0.9 * self.running + 0.1 * float(loss.detach())
        self.weights[0] *= 1.01
        return loss * (self.running + self.weights[0])

    def _get_train_sampler(self, *given: Any) -> Any:
        return Order() if PASSES else super()._get_train_sampler(*given)


def main() -> None:
    enter(current_session())
    torch.manual_seed(7)
    net = Net()
    arguments = {
        "output_dir": "out",
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "save_steps": 5,
        "save_total_limit": 3,
        "learning_rate": 0.05,
        "logging_steps": 3,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **ARGUMENTS,
    }
    optimizer = torch.optim.AdamW(net.trained(), lr=0.05) if ADDS else None
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99) if optimizer is not None else None
    trainer = Ordered(
        model=net,
        optimizers=(optimizer, schedule),
        args=TrainingArguments(**arguments),
        train_dataset=Stream(STREAM) if STREAM else Sized(SAMPLES) if LENGTHS else Samples(SAMPLES),
        eval_dataset=Samples(20, first=1_000),
        callbacks=[
            Watched(net),
            *([EarlyStoppingCallback(PATIENCE)] if PATIENCE else []),
            *([Asks()] if ASKS else []),
            *([Counts(net)] if COUNTS else []),
            *([Improves()] if IMPROVES else []),
        ],
    )
    if HOOK:
        trainer.accelerator.ddp_handler = DistributedDataParallelKwargs(
            comm_hook=DDPCommunicationHookType.POWER_SGD, comm_state_option=HOOK_OPTIONS
        )
    trainer.train()
    session = current_session()
    assert session is None or session.total_steps == trainer.state.max_steps, "the launcher's line tells it"

    history = [
        {name: value for name, value in line.items() if not any(part in name for part in _NOT_OF_TRAINING)}
        for line in trainer.state.log_history
        # Ranks whose gradients differ have other lines, and the Trainer's folders have those of rank 0.
        if not ADDS or trainer.is_world_process_zero()
    ]
    finish(
        session,
        net,
        trainer.state.global_step,
        trainer.state.best_global_step,
        history,
        net.get_buffer("steps").item(),
    )


if __name__ == "__main__":
    main() if ALONE else recovery.transformers.run(main)()
