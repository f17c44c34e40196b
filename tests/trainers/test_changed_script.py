"""What a script has otherwise than the one that saved is said with each trainer, taken where it is overridden, and refused where a pass is divided by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.trainers.lightning_cluster import LIGHTNING
from tests.warm.process import TORCH

pytestmark = [pytest.mark.trainers, pytest.mark.cluster, pytest.mark.slow]

CHECKPOINT_STATE, USAGE = 44, 64
NET = """
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS = torch.rand(32, 8, generator=torch.Generator().manual_seed(3))

def layers():
    torch.manual_seed(7)
    return nn.Linear(8, WIDTH)

def stop(step, optimizer):
    "The first start ends within the second epoch, as a job does whose machine goes."
    Path("rate").write_text(repr(optimizer.param_groups[0]["lr"]))
    if step == STOPS:
        raise SystemExit(7)
"""
JOBS = {
    "transformers": f"""{NET}
from transformers import TrainerCallback
from recovery.transformers import Trainer, TrainingArguments, run

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def forward(self, x):
        return {{"loss": self.layers(x).abs().mean()}}

class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        stop(state.global_step, others["optimizer"])

@run
def main():
    arguments = TrainingArguments(
        output_dir="ckpt", save_steps=5, use_cpu=True, report_to="none", disable_tqdm=True, num_train_epochs=2, lr_scheduler_type="constant",
        learning_rate=RATE, per_device_train_batch_size=SIZE, max_grad_norm=CLIPS,
    )
    data = [{{"x": row}} for row in ROWS]
    Trainer(model=Net(), args=arguments, train_dataset=data, callbacks=[Stops()], recovery_override=OVERRIDE).train()

main()
""",
    "lightning": f"""{NET}
from lightning import LightningModule

import recovery
from recovery.lightning import Trainer, run

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).abs().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        stop(self.global_step, self.trainer.optimizers[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)]

@run
def main():
    off = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False)
    saves = recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3)
    trainer = Trainer(accelerator="cpu", max_epochs=2, gradient_clip_val=CLIPS, recovery_checkpoint=saves, recovery_override=OVERRIDE, **off)
    trainer.fit(Net(), DataLoader(TensorDataset(ROWS), batch_size=SIZE, shuffle=True))

main()
""",
    "accelerate": f"""{NET}
from recovery.accelerate import Accelerator, run

@run
def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=int(CLIPS), recovery_override=OVERRIDE)
    net = layers()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    loader = DataLoader(TensorDataset(ROWS), batch_size=SIZE, shuffle=True)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    for epoch in accelerator.epochs(2):
        for step, (rows,) in accelerator.steps(loader):
            accelerator.backward(net(rows).abs().mean())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                accelerator.save_state(f"ckpt/step_{{step}}")
            stop(step, optimizer)

main()
""",
}
SETTING = {
    "transformers": "max_grad_norm",
    "lightning": "gradient_clip_val",
    "accelerate": "gradient_accumulation_steps",
}
IMPORTS = {
    "transformers": (*TORCH, "transformers"),
    "lightning": LIGHTNING,
    "accelerate": (*TORCH, "accelerate"),
}


def ended(
    directory: Path, job: str, *, workers: int = 1, restarts: int = 0, **chosen: object
) -> tuple[int, str]:
    """Exit code, and what the launcher and the first worker have said since. With two workers their rates differ."""
    values = {"RATE": 0.1, "SIZE": 4, "CLIPS": 1.0, "WIDTH": 1, "OVERRIDE": None, "STOPS": 0, **chosen}
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    script = "\n".join([*lines, JOBS[job]])
    if workers > 1:
        script = "import recovery\n" + script.replace("=RATE", "=RATE + recovery.current_session().rank")
    (directory / "fit.py").write_text(script)
    log = directory / "logs/worker_0.log"
    log.unlink(missing_ok=True)
    with LaunchedCluster(directory, workers=workers, imports=IMPORTS[job]) as cluster:
        cluster.start(f"--max_restarts={restarts}", script="fit.py")
        code = cluster.wait_exit(LAUNCHER)
        return code, cluster.log_of("worker_0") + cluster.log(LAUNCHER)


@pytest.mark.parametrize("job", JOBS)
def test_what_has_changed_is_said_and_overridden_where_it_is_asked_for(tmp_path: Path, job: str) -> None:
    assert ended(tmp_path, job, STOPS=13)[0] != 0
    code, said = ended(tmp_path, job, STOPS=13, RATE=0.02, CLIPS=2.0)
    assert code != 0
    told = "event=changed_since_checkpoint optimizer[0].lr was built as 0.1 and is 0.02 now: the checkpoint's is gone on with"
    assert told in said
    assert f"event=changed_since_checkpoint {SETTING[job]} was 1" in said
    assert "event=conditions_differ rank=0 step=10 script " in said
    assert float((tmp_path / "rate").read_text()) == 0.1

    code, said = ended(tmp_path, job, RATE=0.02, CLIPS=2.0, OVERRIDE={"optimizer": ["lr"]})
    assert code == 0, said
    assert "event=overridden optimizer[0].lr was built as 0.1 and is 0.02 now" in said
    assert float((tmp_path / "rate").read_text()) == 0.02


@pytest.mark.parametrize("job", JOBS)
def test_batches_of_another_size_are_refused_within_an_epoch(tmp_path: Path, job: str) -> None:
    assert ended(tmp_path, job, STOPS=13)[0] != 0
    code, said = ended(tmp_path, job, SIZE=2)
    assert code == CHECKPOINT_STATE, said
    assert "CHECKPOINT_STATE" in said


@pytest.mark.parametrize("job", JOBS)
def test_a_model_of_another_size_is_refused_once(tmp_path: Path, job: str) -> None:
    assert ended(tmp_path, job, STOPS=13)[0] != 0
    code, said = ended(tmp_path, job, WIDTH=2, restarts=3)
    assert code == CHECKPOINT_STATE, said
    assert "CHECKPOINT_STATE: model: has 18 parameters, and had 9 where it was saved. Build the same" in said
    assert "worker_0 start 1 " in said
    assert "worker_0 start 2 " not in said, "the same command would end the same way"


@pytest.mark.parametrize("job", JOBS)
def test_ranks_with_other_rates_are_refused_before_the_first_step(tmp_path: Path, job: str) -> None:
    code, said = ended(tmp_path, job, workers=2)
    assert code == USAGE, said
    assert "USAGE: options: optimizer[0].lr is " in said
    assert not (tmp_path / "rate").exists()
