"""Hugging Face's datasets in a loop of one's own: behind deaths the same samples come at the same steps, and the weights have the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("datasets.iterable_dataset")

from tests.cluster import checker
from tests.cluster.test_three_lines import trained

pytestmark = [pytest.mark.trainers, pytest.mark.cluster, pytest.mark.slow]

JOB = """
import json

import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import recovery.torch as rt

def main():
    session = rt.join("gloo")
    torch.manual_seed(7)
    rows = Dataset.from_dict({"id": list(range(256)), "x": torch.randn(256, 8).tolist()})
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    LOADER
    for batch in rt.steps(loader, model, optimizer, epochs=2, save_every=5):
        line = {"generation": session.generation, "step": session.step + 1, "ids": batch["id"].tolist()}
        with open(f"samples_{session.rank}.jsonl", "a") as ledger:
            ledger.write(json.dumps(line) + "\\n")
        optimizer.zero_grad()
        model(batch["x"]).abs().mean().backward()
        optimizer.step()
        __import__("time").sleep(0.02)
    if session.rank == 0:
        torch.save(net.state_dict(), "model.pt")

if __name__ == "__main__":
    main()
"""
_STREAM = """stream = rows.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=40).with_format("torch")
    mine = split_dataset_by_node(stream, session.rank, session.world_size)
    loader = DataLoader(mine, batch_size=8, num_workers={workers})"""
LOADERS = {
    "a stream that shuffles": _STREAM.format(workers=0),
    "a stream that shuffles, read by two processes": _STREAM.format(workers=2),
    "rows by their index": """rows = rows.with_format("torch")
    loader = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows, seed=3))""",
}


def ledger(directory: Path) -> list[dict[int, list[int]]]:
    """What each rank has used at each step that counts."""
    return [checker.samples(directory / f"samples_{rank}.jsonl") for rank in range(2)]


@pytest.mark.parametrize("name", LOADERS)
def test_deaths_change_no_sample_and_no_bit(tmp_path: Path, name: str) -> None:
    script = JOB.replace("LOADER", LOADERS[name])
    _, expected = trained(tmp_path / "undisturbed", script, HF_HUB_OFFLINE="1")
    # In the first pass and in the second.
    _, found = trained(tmp_path / "disturbed", script, "1", "0", HF_HUB_OFFLINE="1")
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    used = ledger(tmp_path / "disturbed")
    assert used == ledger(tmp_path / "undisturbed")
    assert [len(of_rank) for of_rank in used] == [32, 32]
    first = [number for of_rank in used for step in range(1, 17) for number in of_rank[step]]
    assert sorted(first) == list(range(256)), "each sample once in a pass"
