"""The training of the comparison in a trainer: `program_trainers.py lightning|transformers|accelerate [plain]`.

Plain is as the trainer's users write it for torchrun: the trainer saves, and loads its newest checkpoint when it is started again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from program_common import BATCH_SIZE, EPOCHS, SAVE_STEPS, STEP_MS, digits
from torch import nn
from typing_extensions import override
from work_log import mark, stepped


def told(rank: int, step: int, first: int) -> None:
    """The rank has applied a step; a step ends with a sleep, as a device would keep the processor free."""
    time.sleep(STEP_MS / 1000)
    if step == first:
        mark("loaded", rank)
    stepped(rank, step)


def lightning(*, plain: bool) -> Callable[[], None]:
    """Give the training."""
    import lightning.pytorch as pl  # noqa: PLC0415 - the other trainer must not pay for it
    from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

    class Net(pl.LightningModule):  # type: ignore[misc]  # not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(784, 10)

        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    class Told(pl.Callback):  # type: ignore[misc]  # as above
        first = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            mark("world", trainer.global_rank)
            self.first = trainer.global_step + 1

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            told(trainer.global_rank, trainer.global_step, self.first)

    options: dict[str, Any] = {
        "accelerator": "cpu",
        "strategy": "ddp",
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [Told()],
    }

    def train() -> None:
        data = DataLoader(digits(), batch_size=BATCH_SIZE, shuffle=True)
        if plain:
            saver = pl.callbacks.ModelCheckpoint("ckpt", every_n_train_steps=SAVE_STEPS, save_last=True)
            options["callbacks"].append(saver)
            trainer = pl.Trainer(devices=int(os.environ["LOCAL_WORLD_SIZE"]), **options)
            last = Path("ckpt/last.ckpt")
            trainer.fit(Net(), data, ckpt_path=str(last) if last.exists() else None)
        else:
            import recovery  # noqa: PLC0415 - as above
            from recovery.lightning import Trainer  # noqa: PLC0415 - as above

            config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
            Trainer(enable_checkpointing=False, recovery_checkpoint=config, **options).fit(Net(), data)

    if plain:
        return train
    from recovery.lightning import run  # noqa: PLC0415 - as above

    return run(train)


def transformers(*, plain: bool) -> Callable[[], None]:
    """Give the training."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: PLC0415 - as above

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(784, 10)

        @override
        def forward(self, images: Any, labels: Any) -> Any:
            return {"loss": nn.functional.cross_entropy(self.net(images), labels)}

    class Told(TrainerCallback):  # type: ignore[misc]  # as above
        first = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            mark("world", args.process_index)
            self.first = state.global_step + 1

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            told(args.process_index, state.global_step, self.first)

    def train() -> None:
        arguments = TrainingArguments(
            output_dir="ckpt",
            per_device_train_batch_size=BATCH_SIZE,
            num_train_epochs=EPOCHS,
            save_steps=SAVE_STEPS,
            save_total_limit=3,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        made: Any = Trainer
        if not plain:
            from recovery.transformers import Trainer as Recovered  # noqa: PLC0415 - as above

            made = Recovered
        images, labels = digits().tensors
        data = [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]
        trainer = made(model=Net(), args=arguments, train_dataset=data, callbacks=[Told()])
        trainer.train(resume_from_checkpoint=plain and any(Path("ckpt").glob("checkpoint-*")))

    if plain:
        return train
    import recovery.transformers  # noqa: PLC0415 - as above

    return recovery.transformers.run(train)


def accelerate(*, plain: bool) -> Callable[[], None]:
    """Give the training."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

    if plain:
        from accelerate import Accelerator  # noqa: PLC0415 - as above
    else:
        from recovery.accelerate import Accelerator, current_session  # noqa: PLC0415 - as above

    def train() -> None:
        accelerator: Any = Accelerator(cpu=True)
        rank = accelerator.process_index
        mark("world", rank)
        net: Any = nn.Linear(784, 10)
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=1e-2)
        loader: Any = DataLoader(digits(), batch_size=BATCH_SIZE, shuffle=True)
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        if plain:
            first, steps = 1 + _resumed(accelerator), _steps(accelerator, loader)
        else:
            session = current_session()
            assert session is not None, "it is entered by recovery.accelerate.run"
            first = session.step + 1
            steps = (found for _ in accelerator.epochs(EPOCHS) for found in accelerator.steps(loader))
        for step, (images, labels) in steps:
            loss = nn.functional.cross_entropy(net(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            told(rank, step, first)
            if step % SAVE_STEPS == 0 and plain:
                accelerator.save_state(f"ckpt/step_{step}")
                accelerator.wait_for_everyone()
                Path(f"ckpt/step_{step}/all").touch()
            elif step % SAVE_STEPS == 0:
                accelerator.save_state(f"ckpt/step_{step}", keep=3)

    if plain:
        return train
    import recovery.accelerate  # noqa: PLC0415 - as above

    return recovery.accelerate.run(train)


def _newest() -> int:
    """The step of the newest folder that all ranks have written; 0: there is none."""
    return max(
        (int(path.parent.name.partition("_")[2]) for path in Path("ckpt").glob("step_*/all")), default=0
    )


def _resumed(accelerator: Any) -> int:
    """Load it, as a plain script does when it is started again."""
    step = _newest()
    if step:
        accelerator.load_state(f"ckpt/step_{step}")
    return step


def _steps(accelerator: Any, loader: Any) -> Iterator[tuple[int, Any]]:
    """Every batch from there on, with the number of its step."""
    step = _newest()
    epoch, behind = divmod(step, len(loader))
    rest = accelerator.skip_first_batches(loader, behind)
    for _ in range(epoch, EPOCHS):
        for batch in rest:
            step += 1
            yield step, batch
        rest = loader


if __name__ == "__main__":
    torch.set_num_threads(1)
    mark("entered")
    made = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}
    made[sys.argv[1]](plain="plain" in sys.argv)()
