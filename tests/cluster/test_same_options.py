"""Two hosts whose scripts build other options: refused by name before the first step, or said. Needs root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import LaunchedCluster
from tests.faults.hosts import Host, host, hosts
from tests.warm.process import TORCH

__all__ = ["host", "hosts"]

pytestmark = pytest.mark.cluster

USAGE = 64
SCRIPT = """
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import recovery.torch as rt

session = rt.join()
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
model = DistributedDataParallel(model) if WRAPPED else model
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, GAMMA)
loader = DataLoader(TensorDataset(torch.ones(16, 1)), batch_size=4)
for (rows,) in rt.steps(loader, model, optimizer, epochs=1, lr_scheduler=schedule):
    model(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    Path(f"step_{session.rank}").touch()
"""


def ended(directory: Path, host: Host, *choices: dict[str, object]) -> tuple[list[int], str]:
    """Exit codes of two hosts with these scripts, and what both have said."""
    with LaunchedCluster(directory, imports=TORCH) as cluster:
        for number, chosen in enumerate(choices):
            script = f"host_{number}/train.py"
            (directory / script).parent.mkdir()
            values = {"WRAPPED": True, "RATE": 0.1, "GAMMA": 0.9, **chosen}
            lines = [f"{name} = {value!r}" for name, value in values.items()]
            (directory / script).write_text("\n".join([*lines, SCRIPT]))
            flags = ("--local_worker_num=1", f"--node_rank={number}", f"--master_addr={host.scheduler}")
            prefix = host.prefix if number else ()
            cluster.start(
                *flags, f"--log_dir=logs_{number}", script=script, name=f"host_{number}", prefix=prefix
            )
        codes = [cluster.wait_exit(f"host_{number}") for number in range(len(choices))]
        logs = sorted(directory.glob("logs_*/**/*.log"))
        return codes, "\n".join(path.read_text(errors="replace") for path in logs)


@pytest.mark.parametrize(
    ("other", "named"),
    [({"RATE": 0.2}, "optimizer[0].lr is "), ({"GAMMA": 0.5}, "lr_scheduler[0].gamma is ")],
)
def test_replicas_with_other_options_are_refused_before_the_first_step(
    tmp_path: Path, host: Host, other: dict[str, object], named: str
) -> None:
    codes, said = ended(tmp_path, host, {}, other)
    assert USAGE in codes, said
    assert 0 not in codes, said
    assert f"USAGE: options: {named}" in said
    assert not list(tmp_path.glob("step_*"))


def test_other_options_of_what_is_no_replica_and_another_script_are_said(tmp_path: Path, host: Host) -> None:
    codes, said = ended(tmp_path, host, {"WRAPPED": False}, {"WRAPPED": False, "RATE": 0.2})
    assert codes == [0, 0], said
    (line,) = [line for line in said.splitlines() if "event=options_differ_between_ranks" in line]
    assert "optimizer[0].lr is 0." in line
    assert "script is '" in line


def test_of_the_same_script_on_two_hosts_nothing_is_said(tmp_path: Path, host: Host) -> None:
    codes, said = ended(tmp_path, host, {}, {})
    assert codes == [0, 0], said
    assert "options" not in said
