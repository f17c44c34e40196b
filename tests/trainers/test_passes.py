"""Passes and generators that frameworks draw from: what they leave unequal is refused before the pass, what no checkpoint has is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.needs import needs_package

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]

USAGE = 64
HEAD = """
import random
import torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, size):
        self.size, self.rng = size, random.Random(1)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        x = torch.full((1,), index + self.rng.random())
        return {{"x": x, "labels": x}}


UNEQUAL = {unequal!r}
DATA = Noisy(36 if UNEQUAL else 34)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        Path(f"trained_{{torch.distributed.get_rank()}}").touch()
        return {{"loss": (self.inner(x) - labels).square().mean()}}

"""
SCRIPTS = {
    "lightning": """
from lightning import LightningModule
from recovery.lightning import Trainer, run


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, number):
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


@run
def main():
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        use_distributed_sampler=not UNEQUAL,
    )
    shares = {"sampler": range(20 if trainer.session.rank == 0 else 16)} if UNEQUAL else {"shuffle": True}
    trainer.fit(Module(), DataLoader(DATA, batch_size=4, **shares))


main()
""",
    "accelerate": """
import contextlib
from torch.distributed.algorithms.join import Join
from accelerate import DataLoaderConfiguration
import recovery.accelerate
from recovery.accelerate import Accelerator


@recovery.accelerate.run
def main():
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=not UNEQUAL))
    net = Net()
    loader, net, optimizer = accelerator.prepare(
        DataLoader(DATA, batch_size=4, shuffle=True), net, torch.optim.SGD(net.parameters(), lr=1e-4)
    )
    for epoch in accelerator.epochs(1 if UNEQUAL else 2):
        with contextlib.ExitStack() as joined:
            if UNEQUAL == "joined":
                # The first has no effect on CPUs, and is the second elsewhere.
                joined.enter_context(accelerator.join_uneven_inputs([net], even_batches=False))
                joined.enter_context(Join([net]))
            for step, batch in accelerator.steps(loader):
                accelerator.backward(net(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
        if not UNEQUAL:
            accelerator.save_state(f"ckpt/step_{step}", keep=2)
        Path(f"passed_{accelerator.process_index}").write_text(str(step))


main()
""",
    "transformers": """
import recovery.transformers
from recovery.transformers import Trainer
from transformers import TrainingArguments


@recovery.transformers.run
def main():
    given = TrainingArguments(
        "out", num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True, report_to="none", save_steps=5,
        disable_tqdm=True, accelerator_config={"even_batches": not UNEQUAL},
    )
    Trainer(Net(), given, train_dataset=DATA).train()


main()
""",
}


def started(cluster: LaunchedCluster, framework: str, *, unequal: str) -> None:
    needs_package(framework)
    head = HEAD.format(unequal=unequal)
    (cluster.directory / "passes.py").write_text(head + SCRIPTS[framework])
    cluster.start(script="passes.py")


@pytest.mark.parametrize("framework", SCRIPTS)
def test_passes_that_a_framework_leaves_unequal_are_refused_before_they_begin(
    tmp_path: Path, framework: str
) -> None:
    with LaunchedCluster(tmp_path, environment={"OMP_NUM_THREADS": "1"}) as cluster:
        started(cluster, framework, unequal="left")

        assert cluster.wait_exit(LAUNCHER) == USAGE, cluster.tails()
        assert "USAGE: loader: pass 1 has " in cluster.log(LAUNCHER)
        # The first to begin waits in its first step; the other has not begun.
        assert len(list(tmp_path.glob("trained_*"))) < 2


@pytest.mark.parametrize("framework", SCRIPTS)
def test_passes_that_a_framework_makes_equal_are_trained_and_a_data_sets_generator_is_said(
    tmp_path: Path, framework: str
) -> None:
    with LaunchedCluster(tmp_path, environment={"OMP_NUM_THREADS": "1"}) as cluster:
        started(cluster, framework, unequal="")

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "batches on rank" not in cluster.log(LAUNCHER)
        told = (
            "event=own_generator the data set Noisy keeps a random generator of its own: .rng (random.Random)"
        )
        assert told in cluster.log_of("worker_0")


def test_passes_that_are_joined_may_be_unequal(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"OMP_NUM_THREADS": "1"}) as cluster:
        started(cluster, "accelerate", unequal="joined")

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert [(tmp_path / f"passed_{rank}").read_text() for rank in range(2)] == ["5", "4"]
