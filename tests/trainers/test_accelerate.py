"""Accelerate: whatever dies, wherever it stands, training ends with the same bits, and who lived keeps its process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from recovery.errors import UsageError
from tests.cluster.undisturbed import Undisturbed
from tests.torch.fake_session import FakeSession
from tests.trainers.transformers_cluster import AccelerateCluster, killed, undisturbed_accelerate

pytestmark = pytest.mark.trainers
__all__ = ["undisturbed_accelerate"]


def run(directory: Path, undisturbed: Undisturbed, victim: str, held: str, back_to: int, **job: str) -> None:
    with AccelerateCluster(directory, environment={**job, "JOB_HELD": held}) as cluster:
        killed(cluster, undisturbed, victim, back_to, **job)


def test_a_killed_rank_goes_on_within_an_epoch_with_the_same_bits(
    tmp_path: Path, undisturbed_accelerate: Undisturbed
) -> None:
    run(tmp_path, undisturbed_accelerate, "worker_1", "step@28", 25)
    assert "data_draws_random" not in undisturbed_accelerate(workers=2).log("worker_0")


CASES: dict[str, tuple[str, dict[str, str], int]] = {
    "within the first epoch": ("step@13", {}, 10),
    "in a save": ("save@10", {}, 5),
    "where an epoch ends": ("epoch@19", {}, 15),
    "in the evaluation": ("evaluation@38", {}, 35),
    "behind the save of an epoch's last step": ("evaluation@19", {"JOB_SAVE_STEPS": "19"}, 19),
    "where an epoch has begun": ("step@20", {"JOB_SAVE_STEPS": "0"}, 19),
    "before anything is saved": ("step@3", {}, 0),
    "behind the last step": ("end@38", {"JOB_SAVE_STEPS": "0"}, 38),
    "with accumulated gradients": (
        "step@15",
        {"JOB_ACCUMULATION": "2", "JOB_SAVE_STEPS": "6"},
        12,
    ),
    "in a stream": ("step@20", {"JOB_STREAM": "90"}, 15),
    "where the epoch before has unfrozen a layer": (
        "step@44",
        {"JOB_UNFREEZES": "1", "JOB_EPOCHS": "3"},
        40,
    ),
    "where the epoch before has added a group": ("step@44", {"JOB_ADDS": "1", "JOB_EPOCHS": "3"}, 40),
    "where this epoch has added a group": ("step@28", {"JOB_ADDS": "1"}, 25),
    "where rank 0 reads for all": ("step@28", {"JOB_DISPATCH": "1"}, 25),
    "where rank 0 reads a stream for all": ("step@20", {"JOB_DISPATCH": "1", "JOB_STREAM": "90"}, 15),
    "where the script leaves out the first batches of an epoch": ("step@28", {"JOB_SKIPS": "3"}, 25),
    "with accumulated gradients, in the evaluation": (
        "evaluation@38",
        {"JOB_ACCUMULATION": "3", "JOB_SAVE_STEPS": "19"},
        38,
    ),
    "with loader workers": ("step@28", {"JOB_NUM_WORKERS": "1"}, 25),
    "with compressed gradients": ("step@28", {"JOB_HOOK": "1"}, 25),
}


@pytest.mark.parametrize("case", CASES)
def test_rank_0_is_killed(tmp_path: Path, undisturbed_accelerate: Undisturbed, case: str) -> None:
    held, job, back_to = CASES[case]
    run(tmp_path, undisturbed_accelerate, "worker_0", held, back_to, **job)


def test_data_that_draws_in_the_training_process_is_named(tmp_path: Path) -> None:
    with AccelerateCluster(tmp_path, environment={"JOB_DRAWS": "1"}) as cluster:
        cluster.run()
        assert cluster.log("worker_0").count("event=data_draws_random") == 1


class Unmeasured:
    """Batches of a sampler whose author has left its length open."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        raise NotImplementedError


def test_a_loader_that_cannot_say_its_length_trains_all_the_same() -> None:
    from recovery.accelerate.loop_progress import LoopProgress

    data = TensorDataset(torch.arange(4.0))
    session: Any = SimpleNamespace(total_steps=0)
    for batches, total_steps in ((Unmeasured(), 0), ([[0, 1], [2, 3]], 6)):
        progress = LoopProgress(session)
        progress.epochs = 3
        progress.begin_epoch(0)
        assert progress.begin_steps(DataLoader(data, batch_sampler=batches)) == 0
        assert session.total_steps == total_steps


def test_ranks_that_share_a_gpu_are_refused_before_accelerates_first_barrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names the GPU of the local rank there, which is none of this host's."""
    from recovery.accelerate.accelerator import check_devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    session = FakeSession(rank=1, world_size=2)
    check_devices(session, torch.device("cpu"))
    with pytest.raises(UsageError, match="wants a GPU for each of the 2 ranks of this host, which shows 1"):
        check_devices(session, torch.device("cuda", 0))
