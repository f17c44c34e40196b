"""What a framework's folder lacks of modules and optimizers: groups that were added, flags, and what DistributedDataParallel keeps alike on no rank."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from recovery.torch import outside_state_dict
from recovery.torch.outside_folders import OutsideFolders

_PARAMETERS = inspect.signature(DistributedDataParallel).parameters
UNSENT: Any = {
    "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers": False
}


@pytest.fixture
def world_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    distributed.destroy_process_group()


class Program:
    """Trains its head, and its backbone from the third step on, in the wrapper that was made before."""

    def __init__(self, wrap: Callable[[nn.Module], Any] = lambda net: net) -> None:
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.net[0].requires_grad_(False)
        frozen = outside_state_dict.frozen(self.net)
        self.model = wrap(self.net)
        trained = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.1)
        self.parts: dict[str, list[Any]] = {"model": [self.model], "optimizer": [self.optimizer]}
        self.outside = OutsideFolders(lambda: self.parts, frozen=[frozen])

    def unfreeze(self) -> None:
        self.net[0].requires_grad_(True)
        self.optimizer.add_param_group({"params": self.net[0].parameters(), "lr": 0.02})

    def step(self, number: int) -> None:
        rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        self.model(rows).square().sum().backward()
        self.optimizer.step()

    def state(self) -> Any:
        return [self.net.state_dict(), self.optimizer.state_dict()]


def through_a_file(value: Any) -> Any:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def restored(saved: Any, folder: Any, into: Program) -> None:
    """As a framework does it, whose folder has the states of one rank."""
    into.outside.make_room(saved)
    into.net.load_state_dict(folder[0])
    into.optimizer.load_state_dict(folder[1])
    into.outside.put(saved)
    into.outside.begin()


@pytest.mark.parametrize("adds_again", [False, True])
def test_an_added_group_comes_back_and_may_be_added_again_by_the_epochs_code(
    adds_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Program(), Program()
    first.outside.begin()
    first.step(1)
    first.unfreeze()
    first.step(2)
    with caplog.at_level(logging.INFO, "recovery"):
        restored(through_a_file(first.outside.take()), copy.deepcopy(first.state()), second)
        if adds_again:
            second.unfreeze()
    assert ("event=param_group_kept part=optimizer[0] a group of 2" in caplog.text) is adds_again
    for program in (first, second):
        program.step(3)
    assert repr(first.state()) == repr(second.state())
    if not adds_again:
        second.unfreeze()
    with pytest.raises(ValueError, match="more than one parameter group"):
        second.unfreeze()
    other = nn.Linear(1, 1)
    second.optimizer.add_param_group({"params": other.bias})
    assert second.optimizer.param_groups[-1]["params"] == [other.bias]


@pytest.mark.usefixtures("world_of_one")
def test_what_the_wrapper_averages_on_no_rank_is_each_ranks_own(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Program(DistributedDataParallel), Program(DistributedDataParallel)
    first.outside.begin()
    first.step(1)
    assert through_a_file(first.outside.take())["model"][0]["own"] == {}
    first.unfreeze()
    first.step(2)
    saved = through_a_file(first.outside.take())
    assert saved["model"][0]["own"].keys() == dict(first.net.named_parameters()).keys()
    assert caplog.text.count("event=weights_differ_between_ranks 2 parameters (0.weight, ...)") == 1
    folder = copy.deepcopy(first.state())
    # Of another rank, whose samples were others.
    folder[0]["0.weight"].add_(1)
    for value in folder[1]["state"].values():
        value["exp_avg"].add_(1)
    restored(saved, folder, second)
    for program in (first, second):
        program.step(3)
    assert repr(first.state()) == repr(second.state())
    # Frozen again, it is another one on each rank all the same.
    second.net[0].requires_grad_(False)
    assert {"0.weight", "0.bias"} <= second.outside.take()["model"][0]["own"].keys()


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("starts_again", [False, True])
def test_weights_that_drift_behind_a_save_of_statistics_are_each_ranks_own(
    starts_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    program, second = Program(DistributedDataParallel), Program(DistributedDataParallel)
    program.outside.begin()
    program.step(1)
    with torch.no_grad():
        program.model(torch.ones(4, 3))
    saved = through_a_file(program.outside.take())
    assert {"1.running_mean"} <= saved["model"][0]["own"].keys() <= dict(program.net.named_buffers()).keys()
    if starts_again:
        restored(saved, copy.deepcopy(program.state()), second)
        program = second
    program.unfreeze()
    program.step(2)
    own = through_a_file(program.outside.take())["model"][0]["own"]
    assert dict(program.net.named_parameters()).keys() <= own.keys()
    assert caplog.text.count("event=weights_differ_between_ranks") == 1


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("kind", ["plain", "foreach", "fused"])
def test_what_begins_to_train_behind_weights_that_drift_is_each_ranks_own(kind: str) -> None:
    program = Program(lambda net: DistributedDataParallel(net, find_unused_parameters=True))
    program.optimizer.param_groups[0].update(foreach=kind == "foreach", fused=kind == "fused")
    program.net[2].requires_grad_(False)
    program.outside.begin()
    program.unfreeze()
    program.step(1)
    assert "2.weight" not in program.outside.take()["model"][0]["own"]
    # The wrapper averages its gradients, and what they come from differs.
    program.net[2].requires_grad_(True)
    program.step(2)
    assert "2.weight" in program.outside.take()["model"][0]["own"]


@pytest.mark.usefixtures("world_of_one")
def test_statistics_that_are_not_sent_to_all_are_each_ranks_own() -> None:
    first, second = (Program(lambda net: DistributedDataParallel(net, **UNSENT)) for _ in range(2))
    first.outside.begin()
    first.step(1)
    saved, folder = through_a_file(first.outside.take()), copy.deepcopy(first.state())
    folder[0]["1.running_mean"] += 1
    restored(saved, folder, second)
    assert torch.equal(second.net.get_buffer("1.running_mean"), first.net.get_buffer("1.running_mean"))


def test_an_object_that_was_prepared_in_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    program = Program()
    program.outside.begin()
    program.parts["optimizer"].append(torch.optim.SGD(program.net[2].parameters()))
    for _ in range(2):
        program.outside.take()
    said = [text for text in caplog.messages if "event=structure_changed" in text]
    assert ["optimizer were 1 objects where training began, and are 2" in text for text in said] == [True]


@pytest.mark.usefixtures("world_of_one")
def test_statistics_that_are_not_sent_next_are_each_ranks_own() -> None:
    first, second = Program(DistributedDataParallel), Program(DistributedDataParallel)
    first.outside.begin()
    first.step(1)
    with torch.no_grad():
        first.model(torch.ones(4, 3))
    saved, folder = through_a_file(first.outside.take()), copy.deepcopy(first.state())
    folder[0]["1.running_mean"] += 1
    restored(saved, folder, second)
    assert torch.equal(second.net.get_buffer("1.running_mean"), first.net.get_buffer("1.running_mean"))
    assert second.model.will_sync_module_buffers() is False


@pytest.mark.usefixtures("world_of_one")
def test_what_the_wrapper_was_told_to_ignore_is_each_ranks_own() -> None:
    def wrapped(net: nn.Module) -> DistributedDataParallel:
        ignored = ["2.bias", "1.running_mean"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignored)  # type: ignore[no-untyped-call]  # of torch
        return DistributedDataParallel(net)

    first, second = Program(wrapped), Program(wrapped)
    first.outside.begin()
    first.step(1)
    saved, folder = through_a_file(first.outside.take()), copy.deepcopy(first.state())
    assert saved["model"][0]["own"].keys() == {"2.bias", "1.running_mean"}
    for name in ("2.bias", "1.running_mean"):
        folder[0][name] += 1
    restored(saved, folder, second)
    for program in (first, second):
        program.step(2)
    assert repr(first.state()) == repr(second.state())
