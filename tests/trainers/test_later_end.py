"""A finished job of Lightning, of transformers' Trainer or of Accelerate goes on to a later end with the bits of one training, and refuses an end that is behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.trainers.test_changed_script import IMPORTS

pytestmark = [pytest.mark.trainers, pytest.mark.cluster, pytest.mark.slow]

NET = """
import torch
from torch import nn

def layers():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))

ROWS = torch.rand(64, 8, generator=torch.Generator().manual_seed(3))
"""
JOBS = {
    "transformers": f"""{NET}
from recovery.transformers import Trainer, TrainingArguments, run

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def forward(self, x):
        return {{"loss": self.layers(x).abs().mean()}}

@run
def main():
    net = Net()
    arguments = TrainingArguments(
        output_dir="ckpt", save_steps=6, seed=3, use_cpu=True, report_to="none", disable_tqdm=True, num_train_epochs=EPOCHS, lr_scheduler_type="constant"
    )
    Trainer(model=net, args=arguments, train_dataset=[{{"x": row}} for row in ROWS]).train()
    torch.save(net.layers.state_dict(), "model.pt")

main()
""",
    "lightning": f"""{NET}
from lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset

import recovery
from recovery.lightning import Trainer, run

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).abs().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)

@run
def main():
    net = Net()
    off = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False)
    saves = recovery.CheckpointConfig(save_checkpoint_steps=6, keep_checkpoint_max=3)
    trainer = Trainer(accelerator="cpu", max_epochs=EPOCHS, recovery_checkpoint=saves, **off)
    trainer.fit(net, DataLoader(TensorDataset(ROWS), batch_size=8, shuffle=True))
    torch.save(net.layers.state_dict(), "model.pt")

main()
""",
    "accelerate": f"""{NET}
from torch.utils.data import DataLoader, TensorDataset

from recovery.accelerate import Accelerator, run

@run
def main():
    accelerator = Accelerator(cpu=True)
    net = layers()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(TensorDataset(ROWS), batch_size=8, shuffle=True))
    for epoch in accelerator.epochs(EPOCHS):
        for step, (rows,) in accelerator.steps(loader):
            accelerator.backward(net(rows).abs().mean())
            optimizer.step()
            optimizer.zero_grad()
            if step % 8 == 0:
                accelerator.save_state(f"ckpt/step_{{step}}")
    torch.save(accelerator.unwrap_model(net).state_dict(), "model.pt")

main()
""",
}


def ended(directory: Path, job: str, epochs: int, **environment: str) -> tuple[int, str]:
    """Exit code and console."""
    directory.mkdir(exist_ok=True)
    (directory / "fit.py").write_text(JOBS[job].replace("EPOCHS", str(epochs)))
    with LaunchedCluster(directory, workers=1, imports=IMPORTS[job], environment=environment) as cluster:
        cluster.start(script="fit.py")
        return cluster.wait_exit(LAUNCHER), cluster.log(LAUNCHER)


@pytest.mark.parametrize("job", JOBS)
def test_a_later_end_and_one_that_is_done_already(tmp_path: Path, job: str) -> None:
    assert ended(tmp_path / "at_once", job, 2)[0] == 0
    directory = tmp_path / "job"
    assert ended(directory, job, 1)[0] == 0
    assert ended(directory, job, 2)[0] == 22, "nothing says whether to go on"
    code, said = ended(directory, job, 2, MS_CONTINUE="1")
    assert code == 0, said
    expected, found = (torch.load(place / "model.pt") for place in (tmp_path / "at_once", directory))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    code, said = ended(directory, job, 1, MS_CONTINUE="1")
    assert code == 64, said
    assert "is less than what this job has done: it stands at step" in said
