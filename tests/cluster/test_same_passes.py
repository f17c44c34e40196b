"""Ranks whose passes have different numbers of batches: refused by name before the pass, not found out by a collective's timeout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.needs import needs_package
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

USAGE = 64
SCRIPT = """
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import recovery
import recovery.torch as rt

DATA = TensorDataset(torch.arange(40.0).reshape(40, 1))
KIND, FACE = sys.argv[1:]


class Share:
    "Of a sampler of the user's, longer on rank 0 from some pass on."

    def __init__(self, session, longer_from):
        self.rank, self.num_replicas = session.rank, session.world_size
        self.longer_from, self.epoch = longer_from, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 20 if self.rank == 0 and self.epoch >= self.longer_from else 18

    def __iter__(self):
        return iter(range(self.rank, 40, 2)[: len(self)])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(18, 1).unbind())


def made(session):
    rank, kept = session.rank, {"session": session, "batch_size": 2}
    if KIND == "sampler":
        return rt.ResumableLoader(DATA, sampler=Share(session, 0), **kept)
    if KIND == "second-pass":
        return rt.ResumableLoader(DATA, sampler=Share(session, 1), **kept)
    if KIND in ("share-behind", "live-behind"):
        return rt.ResumableLoader(DATA, sampler=Share(session, 0 if session.generation > 1 else 9), **kept)
    if KIND == "batch-size":
        return rt.ResumableLoader(DATA, session=session, batch_size=4 - 2 * rank)
    if KIND == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader
        return StatefulDataLoader(DATA, batch_size=2, sampler=range(rank, 40 - 2 * rank))
    if KIND == "stateful-behind":
        from torchdata.stateful_dataloader import StatefulDataLoader
        longer = rank == 0 and session.generation > 1
        return StatefulDataLoader(DATA, batch_size=2, sampler=range(0 if longer else 2, 40))
    if KIND == "stream":
        return rt.ResumableLoader(Stream(), **kept)
    if KIND == "distributed":
        return DataLoader(DATA, batch_size=7, sampler=DistributedSampler(DATA, session.world_size, rank))
    return rt.ResumableLoader(DATA, **kept)


def train(session):
    rt.init_process_group(session)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader, steps = made(session), 0
    if KIND == "distributed":
        batches = enumerate(rt.steps(loader, model, optimizer, epochs=2, save_every=5), 1)
    else:
        state = rt.TrainState(model=model, optimizer=optimizer, loader=loader)
        config = recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3)
        saver = recovery.ModelCheckpoint("train", f"ckpt/{session.rank}", config)
        batches = session.steps(state, epochs=2, callbacks=[saver])
    for step, batch in batches:
        rows = batch if KIND == "stream" else batch[0]
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        Path(f"step_{session.rank}").write_text(str(step))
        while (KIND == "killed" or "-behind" in KIND) and step == 8 and not Path("go_on").exists():
            session.check()
            time.sleep(0.02)


if FACE == "init":
    train(recovery.init())
else:
    recovery.run(train)()
"""


def started(cluster: LaunchedCluster, kind: str, face: str) -> None:
    (cluster.directory / "passes.py").write_text(SCRIPT.replace("sys.argv[1:]", repr((kind, face))))
    cluster.start(script="passes.py")


@pytest.mark.parametrize(
    ("kind", "face", "lengths", "number"),
    [
        ("sampler", "run", (10, 9), 1),
        ("sampler", "init", (10, 9), 1),
        ("second-pass", "run", (10, 9), 2),
        ("batch-size", "run", (5, 10), 1),
        ("stateful", "run", (20, 19), 1),
    ],
)
def test_passes_of_unequal_length_are_refused_before_they_begin(
    tmp_path: Path, kind: str, face: str, lengths: tuple[int, int], number: int
) -> None:
    if kind == "stateful":
        needs_package("torchdata.stateful_dataloader")
    with LaunchedCluster(tmp_path, imports=TORCH) as cluster:
        started(cluster, kind, face)

        assert cluster.wait_exit(LAUNCHER) == USAGE, cluster.tails()
        said = re.search(
            r"USAGE: loader: pass (\d+) has (\d+) batches on rank (\d) and (\d+) on rank (\d):.* drop_last",
            cluster.log(LAUNCHER),
        )
        assert said is not None, cluster.tails()
        found, own, rank, others, other = map(int, said.groups())
        assert (found, {rank: own, other: others}) == (number, dict(enumerate(lengths)))
        # Steps of the passes before; none of this one was applied.
        steps = [int(path.read_text()) for path in tmp_path.glob("step_*")]
        assert max(steps, default=0) <= 9 * (number - 1)


@pytest.mark.parametrize("kind", ["equal", "distributed", "stream"])
def test_of_passes_that_are_equal_or_of_unknown_length_nothing_is_said(tmp_path: Path, kind: str) -> None:
    with LaunchedCluster(tmp_path, imports=TORCH) as cluster:
        started(cluster, kind, "run")

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "batches on rank" not in cluster.log(LAUNCHER)
        assert {(tmp_path / f"step_{rank}").read_text() for rank in range(2)} == {
            {"equal": "20", "distributed": "6", "stream": "18"}[kind]
        }


def test_the_rest_of_a_pass_behind_a_kill_counts_as_the_whole_one(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, imports=TORCH) as cluster:
        started(cluster, "killed", "run")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.kill_node("1")
        cluster.wait_event(EventKind.PLAN_MADE, count=1)
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "batches on rank" not in cluster.log(LAUNCHER)
        assert {(tmp_path / f"step_{rank}").read_text() for rank in range(2)} == {"20"}


def test_the_rest_of_a_pass_that_has_become_longer_on_one_rank_is_refused_by_its_position(
    tmp_path: Path,
) -> None:
    needs_package("torchdata.stateful_dataloader")
    with LaunchedCluster(tmp_path, imports=TORCH) as cluster:
        started(cluster, "stateful-behind", "run")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.kill_node("0")

        assert cluster.wait_exit(LAUNCHER) != 0, cluster.tails()
        assert "where the checkpoint stands, is another place" in cluster.log(LAUNCHER)
        assert max(int(path.read_text()) for path in tmp_path.glob("step_*")) <= 8


@pytest.mark.parametrize("kind", ["share-behind", "live-behind"])
def test_a_pass_that_has_become_longer_on_one_rank_ends_as_it_began_and_the_next_one_is_refused(
    tmp_path: Path, kind: str
) -> None:
    """The order of a pass is in the checkpoint."""
    live = {"MS_ROLLBACK": "live"} if kind == "live-behind" else {}
    with LaunchedCluster(tmp_path, imports=TORCH, environment=live) as cluster:
        started(cluster, kind, "run")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.kill_node("0")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == USAGE, cluster.tails()
        assert "event=order_kept" in cluster.log(LAUNCHER)
        assert re.search(r"USAGE: loader: pass 2 has (10|9) batches on rank", cluster.log(LAUNCHER))
        assert {int(path.read_text()) for path in tmp_path.glob("step_*")} == {9}
