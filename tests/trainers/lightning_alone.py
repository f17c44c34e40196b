"""Lightning trainings of one rank in this process, without a cluster: each saves behind every step, and can go on from any of these files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelPruning,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from typing_extensions import override

from recovery.checkpoint.position import Position
from recovery.lightning import Trainer
from recovery.training import current
from recovery.training.callbacks import ModelCheckpoint
from recovery.worker.phase_clock import PhaseClock

EPOCHS, BATCHES, ROWS = 5, 4, 16


class AloneSession:
    """Of a rank that has nobody beside it, as a Trainer sees it."""

    job, host, run, rank, local_rank, epoch = "0123456789ab-alone", "127.0.0.1", 1, 0, 0, 1
    world_size = local_world_size = generation = 1
    interrupted = False

    def __init__(self, file: Path | None) -> None:
        self._file, self.state = file, None
        self.step, self.total_steps = int(file.name) if file else 0, 0
        self.training_stop = SimpleNamespace(refusal="")
        self.phases = PhaseClock()

    @property
    def position(self) -> Position:
        """Where training stands."""
        return Position(step=self.step, epoch=self.step // BATCHES, batch=self.step % BATCHES)

    def restore(self, state: Any) -> None:
        if self._file is None:
            state.begin()
        else:
            state.read(self._file)

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        yield

    def applied(self, *, step: int, epoch: int, step_in_epoch: int) -> None:
        self.step = step

    def check(self) -> None: ...

    def stop_if_asked(self) -> None: ...


class EachStep(ModelCheckpoint):
    """Saves all of them, as files that are named by the step."""

    def __init__(self, directory: Path) -> None:
        self._into = directory

    @override
    def on_begin(self, session: Any) -> None:
        self._into.mkdir(exist_ok=True)

    @override
    def on_step_end(self, session: Any) -> None:
        with (self._into / str(session.step)).open("wb") as stream:
            session.state.write(stream)


class Rows(Dataset[Any]):
    """Of which an epoch's hook decides something."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        self.rows, self.epoch = torch.randn(ROWS, 6, generator=generator), 0

    def __len__(self) -> int:
        return ROWS

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @override
    def __getitem__(self, index: int) -> Any:
        return self.rows[index] * (1 + self.epoch), index


class Net(LightningModule):  # type: ignore[misc]  # Lightning is not there where types are checked
    def __init__(self, *, normalised: bool = True, scheduled: bool = True) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(8) if normalised else nn.Tanh()
        self.backbone = nn.Sequential(nn.Linear(6, 8), norm, nn.Dropout(0.3))
        self.head = nn.Linear(8, 1)
        self.scheduled, self.trace = scheduled, Trace()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        rows, ids = batch
        loss: torch.Tensor = self.head(self.backbone(rows)).square().mean()
        self.trace.lines.append([self.trainer.fit_loop.total_batch_idx + 1, ids.tolist(), loss.item()])
        return loss

    def configure_optimizers(self) -> Any:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.03)
        if not self.scheduled:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Plateau(Net):
    """Whose schedule waits for what is logged of an epoch."""

    @override
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss = super().training_step(batch, number)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    @override
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.03)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}


class Centred(nn.Module):
    """An average that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = torch.zeros(8)

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * rows.detach().mean(0)
        return rows - self.centre


class Stepwise(Net):
    """Whose steps change its submodules, and which remembers where its training began."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*self.backbone, Centred())

    def on_train_start(self) -> None:
        self.began = self.current_epoch

    @override
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if self.global_step == 6:
            self.backbone[1].eval()
            setattr(self.backbone[2], "p", 0.6)  # noqa: B010 - of whatever class the type checker takes it for
        loss: torch.Tensor = super().training_step(batch, number) * (1 + self.current_epoch - self.began)
        return loss


class Reversing(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """Turns the data round behind each epoch: a Subset is torch's own."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.train_dataloader.dataset.indices = list(trainer.train_dataloader.dataset.indices)[::-1]


class Trace:
    """What was trained on, for the test: nothing that a script would have."""

    def __init__(self) -> None:
        self.lines: list[Any] = []


class Hooked(Net):
    """Whose hooks set all that one can set."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.seen = 0.0, 0
        self.losses: list[torch.Tensor] = []
        self.register_buffer("mask", torch.ones(1), persistent=False)
        self.late = nn.Linear(8, 1)

    @override
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([*self.backbone.parameters(), *self.head.parameters()], lr=0.03)

    def on_train_epoch_start(self) -> None:
        epoch = self.current_epoch
        self.scale, self.hint = torch.rand(()).item(), torch.full((1,), float(epoch))
        self.mask.fill_(1 + epoch)
        self.backbone[2].p = 0.1 * epoch
        self.backbone[1].train(epoch % 2 == 0)
        self.head.bias.requires_grad_(epoch % 3 != 1)
        self.trainer.gradient_clip_val = 0.5 * epoch or None
        self.trainer.train_dataloader.dataset.dataset.set_epoch(epoch % 2)
        if epoch == 2:
            self.optimizers().add_param_group({"params": self.late.parameters(), "lr": 0.1})

    @override
    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss = super().training_step(batch, number)
        self.seen += 1
        self.losses.append(loss.detach())
        more = self.late(torch.ones(1, 8)).square().mean() * self.hint.sum()
        more = more + 0.01 * self.seen * self.mask.sum() * self.head.weight.abs().sum()
        return torch.add(more, loss * self.scale)

    def on_train_epoch_end(self) -> None:
        self.trace.lines.append(["mean", torch.stack(self.losses).mean().item()])
        self.losses.clear()


class Halving(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """A user's own, without a state_dict."""

    def __init__(self) -> None:
        self.share = 1.0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.share /= 2

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            pl_module.head.weight.add_(0.01 * self.share)


Script = Callable[[], tuple[Net, list[Any]]]
SCRIPTS: dict[str, Script] = {
    "accumulation": lambda: (Net(), [GradientAccumulationScheduler({1: 3, 2: 2, 3: 7})]),
    "averaging": lambda: (Net(), [StochasticWeightAveraging(0.05, swa_epoch_start=2, annealing_epochs=3)]),
    "averaging, without statistics or schedule": lambda: (
        Net(normalised=False, scheduled=False),
        [StochasticWeightAveraging(0.05, swa_epoch_start=0.3, annealing_strategy="linear")],
    ),
    "averaging at once": lambda: (Net(), [StochasticWeightAveraging(0.05, 1, annealing_epochs=0)]),
    "a backbone": lambda: (Net(), [BackboneFinetuning(2, lambda _: 1.7, backbone_initial_ratio_lr=0.2)]),
    "a backbone whose statistics are frozen": lambda: (Net(scheduled=False), [FrozenStatistics(3)]),
    "pruned weights": lambda: (Net(), [ModelPruning("l1_unstructured", amount=0.3)]),
    "a backbone with pruned weights": lambda: (
        Net(),
        [
            BackboneFinetuning(2, lambda _: 1.7, backbone_initial_ratio_lr=0.2),
            ModelPruning("l1_unstructured", amount=0.1),
        ],
    ),
    "pruned weights, with the masks": lambda: (
        Net(),
        [
            ModelPruning(
                "l1_unstructured",
                parameter_names=["weight"],
                amount=0.2,
                make_pruning_permanent=False,
                use_lottery_ticket_hypothesis=False,
            )
        ],
    ),
    "moving averages": lambda: (Net(), [EMAWeightAveraging(decay=0.8, update_starting_at_step=3)]),
    "a schedule that waits for a metric": lambda: (Plateau(), []),
    "the user's own hooks": lambda: (Hooked(), [Halving()]),
    "steps that change submodules, and data": lambda: (Stepwise(), [Reversing()]),
    "all together": lambda: (
        Net(),
        [
            BackboneFinetuning(1, lambda _: 1.3),
            GradientAccumulationScheduler({2: 2}),
            StochasticWeightAveraging(0.05, swa_epoch_start=3, annealing_epochs=2),
            Halving(),
        ],
    ),
}


class FrozenStatistics(BackboneFinetuning):  # type: ignore[misc]  # as above
    """A user's own way of freezing."""

    @override
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone, train_bn=False)


def train(script: Script, directory: Path, *, behind: int = 0, max_steps: int = -1) -> tuple[list[Any], str]:
    """Train to the end, from the beginning or behind a step that an earlier call has saved there; `max_steps` as Lightning's.

    Returns:
        What was trained on, a line a step, and a digest of the weights.
    """
    torch.manual_seed(behind + 1)
    session: Any = AloneSession(directory / str(behind) if behind else None)
    current.enter(session)
    try:
        torch.manual_seed(5)
        net, callbacks = script()
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            max_steps=max_steps,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=directory,
            recovery_checkpoint=EachStep(directory / "again" if behind else directory),
        )
        trainer.fit(net, DataLoader(Subset(Rows(), range(ROWS)), batch_size=ROWS // BATCHES, shuffle=True))
    finally:
        current.enter(None)
    sha256 = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        sha256.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return net.trace.lines, sha256.hexdigest()
