"""What a trainer is at is told with the heartbeats: its evaluations and its saves are no part of a step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.trainers.test_changed_script import IMPORTS

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]

NET = """
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import recovery

ROWS = torch.rand(32, 8, generator=torch.Generator().manual_seed(3))

def note(what):
    phase = recovery.current_session().phases.report().phase.value
    with Path(what).open("a") as file:
        file.write(f"{phase}\\n")

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        note("trains" if self.training else "evaluates")
        return {"loss": self.layer(x).abs().mean()}

    def state_dict(self, *arguments, **named):
        note("saves")
        return super().state_dict(*arguments, **named)
"""
JOBS = {
    "transformers": f"""{NET}
from recovery.transformers import Trainer, TrainingArguments, run
from transformers import TrainerCallback

class Ends(TrainerCallback):
    def on_train_end(self, *arguments, **others):
        note("ends")

@run
def main():
    arguments = TrainingArguments(
        output_dir="ckpt", save_steps=5, eval_steps=3, save_total_limit=3, eval_strategy="steps", use_cpu=True, report_to="none", disable_tqdm=True, num_train_epochs=2,
        per_device_train_batch_size=4, per_device_eval_batch_size=4,
    )
    data = [{{"x": row}} for row in ROWS]
    Trainer(model=Layers(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[Ends()]).train()
    note("ends")

main()
""",
    "lightning": f"""{NET}
from lightning import LightningModule
from recovery.lightning import Trainer, run

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = Layers()

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0])

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)

    def on_save_checkpoint(self, checkpoint):
        note("saves")

    def on_train_end(self):
        note("ends")

@run
def main():
    off = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False)
    saves = recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3)
    trainer = Trainer(accelerator="cpu", max_epochs=2, recovery_checkpoint=saves, num_sanity_val_steps=0, **off)
    rows = DataLoader(TensorDataset(ROWS), batch_size=4)
    trainer.fit(Net(), rows, rows)
    note("ends")

main()
""",
    "accelerate": f"""{NET}
from recovery.accelerate import Accelerator, run

@run
def main():
    accelerator = Accelerator(cpu=True)
    net = Layers()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(TensorDataset(ROWS), batch_size=4))
    # A second one, as where two models are trained, whose model is never evaluated.
    second = Accelerator(cpu=True)
    beside = second.prepare(nn.Linear(2, 1))
    for epoch in accelerator.epochs(2):
        for step, (rows,) in accelerator.steps(loader):
            accelerator.backward(net(rows)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                accelerator.save_state(f"ckpt/step_{{step}}")
        net.eval()
        net(ROWS)
        net.train()
    note("ends")

main()
""",
}


@pytest.mark.parametrize("job", JOBS)
def test_evaluations_and_saves_are_told(tmp_path: Path, job: str) -> None:
    (tmp_path / "fit.py").write_text(JOBS[job])
    with LaunchedCluster(tmp_path, workers=1, imports=IMPORTS[job]) as cluster:
        cluster.start("--max_restarts=0", script="fit.py")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()

    told = {name: (tmp_path / name).read_text().split() for name in ("trains", "evaluates", "saves")}
    assert told["trains"][0] == "start"
    # What follows an evaluation is one until that step is applied.
    assert {*told["trains"][1:]} - {"evaluation"} == {"step"}
    assert told["evaluates"][0] == "evaluation"
    assert {*told["evaluates"]} <= {"evaluation", "end"}, "what follows the last step is its end"
    assert "save" in told["saves"]
    assert {*(tmp_path / "ends").read_text().split()} == {"end"}


@pytest.mark.parametrize("job", JOBS)
def test_what_a_ranks_own_work_on_a_batch_takes_is_told(tmp_path: Path, job: str) -> None:
    script = JOBS[job].replace(
        "    def forward(self, x):", "    def forward(self, x):\n        time.sleep(0.02)"
    )
    for epochs in ("epochs=2", "epochs(2)"):
        script = script.replace(epochs, epochs.replace("2", "14"))
    told = 'print("pace:", recovery.current_session().phases.times.pace(0), flush=True)'
    script = script.replace('    note("ends")\n\nmain()', f"    {told}\n\nmain()")
    (tmp_path / "fit.py").write_text(f"import time\n{script}")
    with LaunchedCluster(tmp_path, workers=1, imports=IMPORTS[job]) as cluster:
        cluster.start("--max_restarts=0", script="fit.py")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        said = re.search(
            r"pace: Pace\(batches=(\d+), data_us=(\d+), compute_us=(\d+)",
            (cluster.logs / "worker_0.log").read_text(),
        )
    assert said is not None
    batches, data_us, compute_us = map(int, said.groups())
    assert (batches >= 100, data_us > 0, compute_us > 20_000) == (True, True, True)
