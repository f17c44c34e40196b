"""One rule for which GPU a rank has and what its collectives go over."""

from __future__ import annotations

import pytest
import torch

from recovery import end_note
from recovery.torch import devices
from tests.torch.fake_session import FakeSession

BOTH = "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(
    ("ranks", "shown", "backend"), [(1, 1, BOTH), (8, 8, BOTH), (2, 8, BOTH), (2, 1, "gloo"), (1, 0, "gloo")]
)
def test_nccl_is_chosen_where_each_rank_has_a_gpu_of_its_own(ranks: int, shown: int, backend: str) -> None:
    assert devices.backend_for(ranks, shown) == backend


class _Gpus:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.current = -1
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", self._take)

    def _take(self, number: int) -> None:
        self.current = number


@pytest.mark.parametrize(
    ("count", "asked", "current", "backend"),
    [
        (4, None, 3, BOTH),
        (4, "nccl", 3, "nccl"),
        (4, "gloo", -1, "gloo"),
        (2, None, 1, "gloo"),
        (0, None, -1, "gloo"),
    ],
)
def test_a_rank_takes_the_gpu_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, count: int, asked: str | None, current: int, backend: str
) -> None:
    gpus = _Gpus(monkeypatch, count)
    assert devices.take(FakeSession(rank=3, world_size=4), asked) == backend
    assert gpus.current == current


@pytest.mark.parametrize(
    ("named", "is_launched", "backend"),
    [("3", False, BOTH), ("GPU-8932f937", False, BOTH), ("3", True, "gloo"), ("", False, "gloo")],
)
def test_a_gpu_that_a_process_was_started_with_is_its_own(
    monkeypatch: pytest.MonkeyPatch, named: str, is_launched: bool, backend: str
) -> None:
    """As each task of Slurm's is; what our launcher was started with, all of its ranks have."""
    _Gpus(monkeypatch, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.delenv(end_note.VARIABLE, raising=False)
    if is_launched:
        monkeypatch.setenv(end_note.VARIABLE, "finished")
    assert devices.take(FakeSession(rank=3, world_size=4)) == backend
    assert devices.are_shared(FakeSession(rank=3, world_size=4)) == (backend == "gloo")


def test_ranks_that_share_a_gpu_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _Gpus(monkeypatch, 1)
    devices.take(FakeSession(rank=1, world_size=2))
    assert "event=gpus_shared ranks=2 gpus=1 backend=gloo NCCL refuses two ranks on one GPU" in caplog.text
