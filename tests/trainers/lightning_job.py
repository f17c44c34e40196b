"""A Lightning training as a user writes it, small, configured by its environment. What recovery needs of it is two lines."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, seed_everything
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric
from typing_extensions import override

import recovery
from recovery.lightning import Trainer, run

EPOCHS = int(os.environ.get("JOB_EPOCHS", "3"))
ACCUMULATE = int(os.environ.get("JOB_ACCUMULATE", "1"))
WORKERS = int(os.environ.get("JOB_LOADER_WORKERS", "0"))
STEP_MS = int(os.environ.get("JOB_STEP_MS", "15"))
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A batch that does not end before the file `go_on` is there."""
KILLS = os.environ.get("JOB_KILLS", "").split()
"""`rank:where:number`, where is step, save, validation or epoch; the number is that of the batch or of the epoch. `rank:where:number:step`:
when this step is committed."""
PATIENCE = int(os.environ.get("JOB_PATIENCE", "9"))
PRECISION: Any = os.environ.get("JOB_PRECISION", "32-true")
LOADERS = os.environ.get("JOB_LOADERS", "")
"""two, least, cycled: of them one is shorter and has a generator of its own, and both are made again in each epoch. stream: of a data set without a length."""
BOARDS = os.environ.get("JOB_BOARDS") == "1"
"""Log to TensorBoard too, which not every machine has."""
MAX_STEPS = int(os.environ.get("JOB_MAX_STEPS", "-1"))
VAL_BATCHES = int(os.environ.get("JOB_VAL_BATCHES", "0"))
"""Validation behind so many batches, counted over all epochs."""
MANUAL = os.environ.get("JOB_MANUAL") == "1"
"""Two optimizers, which the module steps by itself."""
VAL_EVERY: Any = float(os.environ.get("JOB_VAL_EVERY", "1.0"))


class Hooks(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """A user's own: what it sets where an epoch begins or ends decides the steps of the next ones."""

    def __init__(self) -> None:
        self.share, self.ends, self.begun = 1.0, [0.0], 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.begun = trainer.global_step

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.share *= 0.7
        pl_module.backbone[2].p = 0.1 * (trainer.current_epoch % 4)
        trainer.gradient_clip_val = 0.5 * trainer.current_epoch or None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            pl_module.head.bias.add_(0.01 * self.share + sum(self.ends) + 0.1 * self.begun)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.ends.append(0.001 * trainer.current_epoch)


CALLBACKS: dict[str, Callable[[], Callback]] = {
    "accumulation": lambda: GradientAccumulationScheduler({1: 3, 3: 2}),
    "backbone": lambda: BackboneFinetuning(1, lambda _: 1.4, backbone_initial_ratio_lr=0.3),
    "averaging": lambda: StochasticWeightAveraging(0.01, swa_epoch_start=2, annealing_epochs=2),
    "pruning": lambda: ModelPruning("l1_unstructured", amount=0.1),
    "hooks": Hooks,
}
MORE = os.environ.get("JOB_CALLBACKS", "").split()
"""Of these."""


class Stream(IterableDataset[Any]):
    def __init__(self, rows: torch.Tensor, ids: torch.Tensor) -> None:
        self.rows, self.ids = rows, ids

    @override
    def __iter__(self) -> Any:
        mine = slice(torch.distributed.get_rank(), None, torch.distributed.get_world_size())
        yield from zip(self.rows[mine], self.ids[mine], strict=True)


class Net(LightningModule):  # type: ignore[misc]  # Lightning is not there where types are checked
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 24})
        self.backbone = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.Dropout(0.2))
        self.head = nn.Linear(24, 1)
        self.seen = MeanMetric()
        self.automatic_optimization = not MANUAL

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.backbone(rows))
        return found

    def steps_by_itself(self, loss: torch.Tensor, batch_idx: int) -> None:
        first, second = self.optimizers()
        self.manual_backward(loss)
        second.step()
        second.zero_grad()
        if batch_idx % 3 == 2:
            first.step()
            first.zero_grad()
            self.lr_schedulers().step(loss.detach())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows, ids = (
            batch
            if LOADERS in ("", "stream")
            else (torch.cat(parts) for parts in zip(*batch.values(), strict=True))
        )
        _note(self, ids.tolist())
        loss: torch.Tensor = self(rows).abs().mean()
        self.seen(loss.detach())
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("seen", self.seen, on_epoch=True)
        if MANUAL:
            self.steps_by_itself(loss, batch_idx)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        rows, _ = batch
        time.sleep(STEP_MS / 1000)
        self.log("val_loss", self(rows).abs().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.02)
        if MANUAL:
            optimizer = torch.optim.AdamW(self.backbone.parameters(), lr=0.02)
            other = torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.9)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return [optimizer, other], [schedule]
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Pace(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """Takes time, writes down what was logged, holds a step for the test, and dies where it is told to."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        # Whoever has begun to save writes behind this batch.
        _die(trainer, "save", trainer.fit_loop.total_batch_idx)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if not trainer.sanity_checking:
            _die(trainer, "validation", trainer.current_epoch + 1)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.fit_loop.total_batch_idx + 1
        _die(trainer, "step", step)
        while step == HELD_STEP and not Path("go_on").exists():
            if trainer.session is not None:
                trainer.session.check()
            time.sleep(0.02)
        time.sleep(STEP_MS / 1000)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        shown = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        with Path(f"epochs_{trainer.global_rank}.jsonl").open("a") as log:
            log.write(json.dumps({"epoch": trainer.current_epoch, **shown}) + "\n")
        _die(trainer, "epoch", trainer.current_epoch + 1)


def _die(trainer: Any, where: str, number: int) -> None:
    """Once for each that is named, over all starts."""
    name = f"{trainer.global_rank}:{where}:{number}"
    behind = {kill.removeprefix(name) for kill in KILLS if f"{kill}:".startswith(f"{name}:")}
    if behind and not (once := Path(f"died_{name}")).exists():
        committed = int(behind.pop()[1:] or 0)
        while trainer.session.committed_step < committed:
            trainer.session.check()
            time.sleep(0.02)
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _note(module: Any, ids: list[int]) -> None:
    trainer = module.trainer
    with Path(f"samples_{trainer.global_rank}.jsonl").open("a") as log:
        generation = trainer.session.generation if trainer.session is not None else 1
        step = trainer.fit_loop.total_batch_idx + 1
        line = {"generation": generation, "step": step, "ids": ids, "pid": os.getpid()}
        log.write(json.dumps(line) + "\n")


@run
def main() -> None:
    seed_everything(7)
    rows, ids = torch.randn(200, 8), torch.arange(200)
    data = DataLoader(TensorDataset(rows, ids), batch_size=8, shuffle=True, num_workers=WORKERS)
    generator = torch.Generator().manual_seed(3)
    short = DataLoader(TensorDataset(rows[:72], ids[:72]), batch_size=8, shuffle=True, generator=generator)
    checking = DataLoader(TensorDataset(rows[:32], ids[:32]), batch_size=8)
    kept = ModelCheckpoint(
        dirpath="kept", monitor="val_loss", save_top_k=2, save_last=True, save_on_exception=True
    )
    every_7 = ModelCheckpoint(dirpath="kept", filename="{step}", every_n_train_steps=7, save_top_k=-1)
    stopping = EarlyStopping(monitor="val_loss", patience=PATIENCE)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        accumulate_grad_batches=ACCUMULATE,
        precision=PRECISION,
        val_check_interval=VAL_BATCHES or VAL_EVERY,
        check_val_every_n_epoch=None if VAL_BATCHES else 1,
        callbacks=[kept, every_7, stopping, *(CALLBACKS[name]() for name in MORE), Pace()],
        max_steps=MAX_STEPS,
        reload_dataloaders_every_n_epochs=1 if LOADERS == "two" else 0,
        use_distributed_sampler=LOADERS != "two",
        logger=[CSVLogger("logs"), *([TensorBoardLogger("boards")] if BOARDS else [])],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        recovery_checkpoint=recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3),
    )
    model = Net()
    stream = DataLoader(Stream(rows, ids), batch_size=8)
    two = {"whole": data, "short": short}
    loaders: Any = {
        "two": two,
        "least": CombinedLoader(two, "min_size"),
        "cycled": CombinedLoader(two, "max_size_cycle"),
        "stream": stream,
        "": data,
    }[LOADERS]
    trainer.fit(model, loaders, checking)
    session = recovery.current_session()
    has_end = LOADERS != "stream" or MAX_STEPS > 0
    assert session is None or bool(session.total_steps) is has_end, "the launcher's line tells when it ends"

    sha256 = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha256.update(name.encode() + tensor.contiguous().numpy().tobytes())
    best = {Path(path).name: float(score) for path, score in kept.best_k_models.items()}
    told = {"weights": sha256.hexdigest(), "best": best, "best_path": Path(kept.best_model_path).name}
    told |= {"waited": stopping.wait_count, "steps": trainer.global_step, "epochs": trainer.current_epoch}
    Path(f"digest_{trainer.global_rank}").write_text(json.dumps(told, sort_keys=True))


if __name__ == "__main__":
    main()
