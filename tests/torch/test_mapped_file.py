"""What is loaded from a mapped file is never left in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

from recovery.torch import TrainState, mapped_file


class Kept:
    """An object that keeps what it is given, as an optimizer does."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {"whole": torch.arange(8.0)}
        self.held["part"] = self.held["whole"][2:5]

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


class Keeps(torch.nn.Linear):
    """A module that keeps a tensor in its own way."""

    @override
    def get_extra_state(self) -> Any:
        return torch.ones(4)

    @override
    def set_extra_state(self, state: Any) -> None:
        self.kept = state


class Assigns(torch.nn.Linear):
    @override
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict, assign=True)


def hooked() -> torch.nn.Module:
    module = torch.nn.Linear(3, 3)
    module.register_load_state_dict_post_hook(lambda module, keys: None)  # type: ignore[no-untyped-call]  # torch ships it without types
    return module


def maps(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")


def built(model: torch.nn.Module) -> tuple[TrainState, Kept]:
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    kept = Kept()
    return TrainState(model=model, optimizer=optimizer, kept=kept), kept


@pytest.mark.parametrize(
    "model",
    [
        lambda: torch.nn.Linear(4, 5),
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)),
        lambda: Keeps(3, 3),
        lambda: Assigns(3, 3),
        hooked,
    ],
)
def test_a_restored_state_is_nowhere_in_the_file(
    tmp_path: Path, model: Callable[[], torch.nn.Module]
) -> None:
    path = tmp_path / "state.ckpt"
    with path.open("wb") as file:
        built(model())[0].write(file)
    state, kept = built(model())

    state.read(path)

    assert not maps(path)
    # Shared storages stay shared.
    kept.held["whole"][3] = 70.0
    assert kept.held["part"][1] == 70.0


def test_only_what_is_kept_is_copied(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    payload = {"parts": {"model": [model.state_dict()], "optimizer": [{"state": {0: torch.ones(3)}}]}}
    torch.save(payload, tmp_path / "file")
    loaded = mapped_file.load(tmp_path / "file")

    owned = mapped_file.own(loaded, {"model": [model], "optimizer": [optimizer]})

    for part, is_same in (("model", True), ("optimizer", False)):
        (before,), (after,) = loaded["parts"][part], owned["parts"][part]
        assert (before is after) == is_same
    assert torch.equal(owned["parts"]["optimizer"][0]["state"][0], torch.ones(3))


def test_a_file_that_cannot_be_mapped_is_read_into_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    # torch does not map files of the format before the zip archive.
    torch.save({"x": torch.ones(3)}, path, _use_new_zipfile_serialization=False)

    with caplog.at_level(logging.INFO, logger="recovery.torch"):
        loaded = mapped_file.load(path)

    assert torch.equal(loaded["x"], torch.ones(3))
    assert "event=not_mapped" in caplog.text


def test_what_is_no_file_of_torch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"nothing that anybody has saved")
    with pytest.raises(Exception, match=r"weights_only|archive|load"):
        mapped_file.load(tmp_path / "file")
