"""A file that is laid out in memory is the one that torch.save would have written."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from recovery.torch import TrainState
from recovery.torch.file_layout import FileLayout
from recovery.training.state import CannotLayOutError

_BASE = torch.arange(24, dtype=torch.float32)

PAYLOADS: dict[str, Any] = {
    "nothing": {},
    "no tensor": {"step": 3, "name": "x", "list": [1, 2.5, None]},
    "one": _BASE.clone(),
    "views of one storage": {"all": _BASE, "part": _BASE[3:9], "turned": _BASE.view(4, 6).t(), "step": 2},
    "every second": torch.arange(10)[::2],
    "empty and of no dimension": [torch.empty(0), torch.tensor(7), torch.empty(3, 0), torch.tensor(True)],
    "kinds": [
        torch.ones(5).to(kind) for kind in (torch.bfloat16, torch.float16, torch.int8, torch.complex64)
    ],
    "parameter": torch.nn.Linear(3, 4).state_dict(),
    "sparse": torch.eye(4).to_sparse(),
    "one tensor under two names": {"a": _BASE, "b": _BASE},
}


def written(layout: FileLayout, path: Path) -> Path:
    memory = bytearray(layout.size)
    layout.copy_to(memoryview(memory))
    path.write_bytes(memory)
    return path


def same(found: Any, expected: Any) -> bool:
    """Compare two payloads by what torch.save makes of them: values, kinds, strides and which storages are shared."""
    files = []
    for payload in (found, expected):
        stream = io.BytesIO()
        torch.save(payload, stream)
        files.append(stream.getvalue())
    return files[0] == files[1]


@pytest.mark.parametrize("name", PAYLOADS)
def test_torch_load_gives_back_what_was_laid_out(tmp_path: Path, name: str) -> None:
    path = written(FileLayout(PAYLOADS[name]), tmp_path / "file")

    for mmap in (False, True):
        assert same(torch.load(path, weights_only=True, mmap=mmap), PAYLOADS[name])


@pytest.mark.parametrize("name", PAYLOADS)
def test_nothing_but_checksums_differs_from_what_torch_save_writes(tmp_path: Path, name: str) -> None:
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        by_torch = io.BytesIO()
        torch.save(PAYLOADS[name], by_torch)
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)

    ours = written(FileLayout(PAYLOADS[name]), tmp_path / "ours")

    assert ours.stat().st_size == len(by_torch.getvalue())


def test_what_changes_behind_the_copy_is_not_in_the_file(tmp_path: Path) -> None:
    weight = torch.zeros(1_000)
    layout = FileLayout({"weight": weight})
    memory = bytearray(layout.size)
    layout.copy_to(memoryview(memory))
    weight.fill_(1)

    (tmp_path / "file").write_bytes(memory)
    assert not torch.load(tmp_path / "file", weights_only=True)["weight"].any()
    assert layout.differs_from(memoryview(memory))


def test_a_storage_by_itself_cannot_be_laid_out() -> None:
    with pytest.raises(CannotLayOutError, match="1 holes that are not those of the 0 tensors"):
        FileLayout({"storage": torch.arange(4, dtype=torch.uint8).untyped_storage()})


def test_a_copy_that_is_not_the_state_is_seen(tmp_path: Path) -> None:
    layout = FileLayout({"weight": torch.arange(1_000), "bias": torch.ones(3)})
    memory = bytearray(layout.size)
    layout.copy_to(memoryview(memory))
    path = tmp_path / "file"
    path.write_bytes(memory)
    assert not layout.differs_from(memoryview(memory))
    assert layout.is_read_from(path, memoryview(memory))

    place = memory.index(torch.arange(1_000).numpy().tobytes()) + 4_001
    memory[place] ^= 1
    assert layout.differs_from(memoryview(memory))
    assert not layout.is_read_from(path, memoryview(memory))


def test_a_file_whose_tensors_were_on_a_device_is_read_back_where_they_are_on_the_cpu(tmp_path: Path) -> None:
    """The device is a name only; torch writes it once for each tensor, and it is longer than the CPU's."""
    numbers = ["0"]
    torch.serialization.register_package(
        5,
        lambda _: f"nowhere:{numbers[0]}" if numbers else None,
        lambda storage, at: storage if at == "nowhere:0" else None,
    )
    payload = {str(number): torch.full((9,), number) for number in range(40)}
    layout = FileLayout(payload)
    numbers.clear()
    memory = bytearray(layout.size)
    layout.copy_to(memoryview(memory))
    (tmp_path / "file").write_bytes(memory)
    assert layout.is_read_from(tmp_path / "file", memoryview(memory))


def test_a_layout_holds_no_tensor_longer_than_it_is_asked_to() -> None:
    """A loop clears its gradients while the file is written, and again before the next save: on a device each set would stay."""
    gc.collect()
    gc.disable()
    try:
        weight = torch.ones(1_000)
        storage = weight.untyped_storage()._weak_ref()
        layout = FileLayout({"weight": weight})
        del weight
        assert not torch.UntypedStorage._expired(storage)
        layout.let_go()
        assert torch.UntypedStorage._expired(storage)
    finally:
        gc.enable()


def test_a_training_state_is_laid_out_whole(tmp_path: Path) -> None:
    def built() -> tuple[torch.nn.Module, torch.optim.Optimizer, TrainState]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        return model, optimizer, TrainState(model=model, optimizer=optimizer)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()

    torch.manual_seed(5)
    model, optimizer, state = built()
    step(model, optimizer)
    path = written(state.lay_out(), tmp_path / "file")
    step(model, optimizer)

    again, optimizer_again, restored = built()
    restored.read(path)
    step(again, optimizer_again)

    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
