"""A loader's worker processes and SIGTERM: they leave it to the process that they load for, whose own end they do not hold up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from recovery.torch.stateful_loader import StatefulLoader
from tests.pace import HANG_S
from tests.torch.test_own_generators import torchdatas_loaders

DATA = TensorDataset(torch.arange(64))


@pytest.fixture
def hears_sigterm() -> Iterator[None]:
    """As a training process: it does something of its own."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


def sent_to_all() -> None:
    """Behind their first batches, so that all run."""
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)


def given(batches: Any) -> list[int]:
    got = []
    for number, (batch,) in enumerate(batches):
        got += batch.tolist()
        if number == 3:
            sent_to_all()
    return got


@pytest.mark.usefixtures("hears_sigterm")
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_signal_to_the_workers_ends_none(context: str) -> None:
    loader = DataLoader(DATA, batch_size=2, num_workers=2, multiprocessing_context=context)
    assert given(loader) == list(range(64))
    assert loader.worker_init_fn is None, "the user's loader is as it was"


@pytest.mark.usefixtures("hears_sigterm")
def test_nor_those_of_torchdatas_loader() -> None:
    with torchdatas_loaders() as kind:
        assert given(StatefulLoader(kind(DATA, batch_size=2, num_workers=2))) == list(range(64))


def test_a_process_that_a_signal_ends_takes_its_workers_with_it_as_torch_has_it() -> None:
    # Where the worker dies while a batch is fetched from it, its connection breaks first.
    with pytest.raises((RuntimeError, ConnectionError, EOFError)):
        given(DataLoader(DATA, batch_size=2, num_workers=2))


class Asking(Dataset[int]):
    """Gives how a program and a fork of the worker have SIGTERM."""

    @override
    def __getitem__(self, index: int) -> int:
        ask = "import signal; raise SystemExit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)"
        if index == 0:
            return subprocess.run([sys.executable, "-c", ask], check=False).returncode
        pid = os.fork()
        if pid == 0:
            os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def __len__(self) -> int:
        return 2


@pytest.mark.usefixtures("hears_sigterm")
def test_what_a_worker_starts_ends_by_the_signal() -> None:
    assert [batch.item() for batch in DataLoader(Asking(), num_workers=1)] == [0, 0]


ENDS = """
import signal
import sys

import torch
from torch.utils.data import DataLoader, Dataset

import recovery.torch

signal.signal(signal.SIGTERM, lambda number, frame: None)


class Stuck(Dataset):
    def __getitem__(self, index):
        if index == 2:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            signal.pause()
        return index

    def __len__(self):
        return 8


batches = iter(DataLoader(Stuck(), num_workers=2))
print(next(batches).item())
if "shut" in sys.argv:
    workers = list(batches._workers)
    batches._shutdown_workers()
    print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize(
    ("way", "said"), [("open", "0\n"), pytest.param("shut", "0\n[-9, 0]\n", marks=pytest.mark.slow)]
)
def test_neither_the_end_of_a_process_nor_that_of_its_iteration_waits_for_workers(
    way: str, said: str
) -> None:
    """Also for one that is stuck and hears of nothing."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS, way], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
