"""Where the lengths of passes cannot be compared it is said with its reason, once in a process; that a generation is over is no such news."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import IterableDataset, TensorDataset
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch import ResumableLoader, same_passes
from tests.torch.fake_session import FakeSession
from tests.warm.process import TORCH, Process

SERVER = """
from torch import distributed
from torch._C._distributed_c10d import HashStore, Store, TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
input()
"""


class Stream(IterableDataset[int]):
    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(same_passes, "_said", set())
    caplog.set_level(logging.DEBUG, "recovery.torch")
    return lambda: [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if "event=passes_not_compared" in record.getMessage()
    ]


@contextmanager
def world_over(store: Store) -> Iterator[None]:
    """Of two ranks, of which this is one; its group sends nothing."""
    distributed.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def check(dataset: Any) -> None:
    loader = ResumableLoader(dataset, 2, session=FakeSession())
    same_passes.check(loader.length, epoch=loader.epoch)


def of(size: int) -> TensorDataset:
    return TensorDataset(torch.ones(size))


def test_store_that_cannot_compare_is_said_once_with_its_reason(said: Callable[[], list[str]]) -> None:
    # FakeStore is a store of Python's that has nothing of its own.
    with world_over(FakeStore()):
        for _ in range(2):
            check(of(8))

    [text] = said()
    assert text.startswith("WARNING event=passes_not_compared epoch=1 ")
    assert "Not implemented" in text
    assert "Give every rank as many batches" in text


def test_loader_without_a_length_is_said_once(said: Callable[[], list[str]]) -> None:
    with world_over(HashStore()):
        for _ in range(2):
            check(Stream())

    [text] = said()
    assert text.startswith(
        "INFO event=passes_not_compared epoch=1 the loader does not say how many batches a pass has"
    )


def test_rank_0_that_has_just_left_is_no_news(said: Callable[[], list[str]]) -> None:
    with Process[str](
        [sys.executable, "-c", SERVER],
        imports=TORCH,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        store = TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False, wait_for_workers=False)
        with world_over(store):
            check(of(8))
            server.kill()
            server.wait()
            check(of(8))

    [text] = said()
    assert text.startswith("DEBUG event=passes_not_compared epoch=1 DistNetworkError")


def test_in_a_store_that_can_compare_nothing_is_said_and_what_differs_is_refused(
    said: Callable[[], list[str]],
) -> None:
    with world_over(HashStore()):
        check(of(8))
        check(of(8))
        with pytest.raises(UsageError, match="has 2 batches on rank 0 and 4 on rank 0"):
            check(of(4))

    assert said() == []
