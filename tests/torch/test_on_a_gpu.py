"""What only a GPU shows of a state that lies on it. Skipped where there is none; two ranks and their deaths: tests/cluster/test_on_a_gpu.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recovery.checkpoint.staging_buffer import KeptMemory
from recovery.torch.file_layout import FileLayout
from recovery.torch.host_copy import copied_to_host
from recovery.torch.random_state import capture_random_state, restore_random_state

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_capture_of_a_gpu_is_read_back_as_what_it_was_and_takes_little_memory_there(tmp_path: Path) -> None:
    payload = {str(number): torch.rand(2**20, device="cuda") for number in range(40)}
    kept = KeptMemory()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layout = FileLayout(payload)
    memory = kept.take(layout.size)
    layout.copy_to(memory)
    assert not layout.differs_from(memory)
    assert torch.cuda.max_memory_allocated() - before <= 2 * 16 * 2**20
    layout.let_go()
    (tmp_path / "file").write_bytes(memory[: layout.size])
    assert layout.is_read_from(tmp_path / "file", memory)
    payload["7"].add_(1)
    assert FileLayout(payload).differs_from(memory)
    del memory
    kept.release()


def test_a_copy_in_the_hosts_memory_takes_none_of_the_gpus() -> None:
    tree = {"weight": torch.rand(2**20, device="cuda"), "step": torch.tensor(3.0)}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    copied = copied_to_host(tree)
    assert torch.cuda.max_memory_allocated() == before
    assert copied["weight"].device.type == "cpu"


def test_generators_of_a_gpu_go_on_where_they_were() -> None:
    torch.cuda.manual_seed_all(3)
    torch.rand(5, device="cuda")
    state = capture_random_state()
    drawn = torch.rand(5, device="cuda")
    restore_random_state(state)
    assert torch.equal(torch.rand(5, device="cuda"), drawn)
