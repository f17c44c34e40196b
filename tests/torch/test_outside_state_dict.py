"""What training changes and no `state_dict` has comes back with a checkpoint; what a start could not load is said at the first save."""

from __future__ import annotations

import gc
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from recovery.errors import CheckpointStateError
from recovery.torch import TrainState
from recovery.torch.outside_state_dict import OUTSIDE


class Net(nn.Module):
    """A frozen layer, and buffers that are not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("centre", torch.zeros(3), persistent=False)
        self.register_buffer("cache", None, persistent=False)


def _write(state: TrainState, path: Path) -> None:
    with path.open("wb") as stream:
        state.write(stream)


def _lay_out(state: TrainState, path: Path) -> None:
    layout = state.lay_out()
    content = bytearray(layout.size)
    layout.copy_to(memoryview(content))
    path.write_bytes(content)


def _snapshot(state: TrainState, path: Path) -> None:
    snapshot = state.snapshot()
    with path.open("wb") as stream:
        snapshot.write(stream)


def again(saved: TrainState, here: TrainState, path: Path) -> None:
    _write(saved, path)
    here.read(path)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    caplog.set_level(logging.INFO, "recovery.torch")
    return lambda event: [text for text in caplog.messages if f"event={event} " in text]


@pytest.mark.parametrize("save", [_write, _lay_out, _snapshot])
def test_flags_of_parameters_and_buffers_that_are_not_saved_come_back(
    tmp_path: Path, save: Callable[[TrainState, Path], None]
) -> None:
    net, here = Net(), Net()
    net.first.weight.requires_grad_(False)
    here.second.bias.requires_grad_(False)
    net.get_buffer("centre").add_(1)
    net.cache = torch.tensor([7, 8])
    net.second.register_buffer("made_by_the_first_step", torch.ones(2, dtype=torch.float64), persistent=False)
    save(TrainState(model=net), tmp_path / "state")

    TrainState(model=here).read(tmp_path / "state")

    assert [name for name, one in here.named_parameters() if not one.requires_grad] == ["first.weight"]
    found = dict(here.named_buffers())
    assert found.keys() == {"centre", "cache", "second.made_by_the_first_step"}
    for name, buffer in net.named_buffers():
        assert torch.equal(found[name], buffer), name
        assert found[name].dtype == buffer.dtype
        assert found[name].data_ptr() != buffer.data_ptr()
    assert here.state_dict().keys() == Net().state_dict().keys()


def test_a_buffer_that_training_has_enlarged_or_taken_away_comes_back(tmp_path: Path) -> None:
    net, here = Net(), Net()
    net.centre = torch.arange(5)
    here.cache = torch.ones(1)
    again(TrainState(model=net), TrainState(model=here), tmp_path / "state")
    assert torch.equal(here.get_buffer("centre"), torch.arange(5))
    assert here.cache is None


def test_a_buffer_that_is_none_here_is_named(tmp_path: Path, said: Callable[[str], list[str]]) -> None:
    net, here = Net(), Net()
    net.register_buffer("other", torch.ones(1), persistent=False)
    vars(here)["other"] = "of the program"
    again(TrainState(model=net), TrainState(model=here), tmp_path / "state")
    assert vars(here)["other"] == "of the program"
    assert "part=model[0] buffer=other" in said("buffer_not_restored")[0]


def test_a_file_of_an_earlier_release_leaves_them_as_they_were_built(tmp_path: Path) -> None:
    net, here = Net(), Net()
    net.first.weight.requires_grad_(False)
    net.get_buffer("centre").add_(1)
    _write(TrainState(model=net), tmp_path / "state")
    payload = torch.load(tmp_path / "state", weights_only=True)
    del payload[OUTSIDE]
    torch.save(payload, tmp_path / "earlier")

    TrainState(model=here).read(tmp_path / "earlier")

    assert torch.equal(here.first.weight, net.first.weight)
    assert here.first.weight.requires_grad
    assert torch.equal(here.get_buffer("centre"), torch.zeros(3))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_whose_elements_lie_in_one_place_comes_back(tmp_path: Path, persistent: bool) -> None:
    def built(value: float) -> nn.Module:
        net = nn.Linear(1, 1)
        net.register_buffer("wide", torch.full((1,), value).expand(4), persistent=persistent)
        return net

    here = built(0)
    again(TrainState(model=built(3)), TrainState(model=here), tmp_path / "state")
    assert torch.equal(here.get_buffer("wide"), torch.full((4,), 3.0))


# --- parameter groups --------------------------------------------------------------------------------------------------


def _trained(net: Net, *, is_named: bool) -> torch.optim.Optimizer:
    of: Any = net.second.named_parameters() if is_named else net.second.parameters()
    return torch.optim.Adam(list(of), lr=0.1)


def _step(net: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net.second(net.first(torch.ones(2, 3))).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("is_named", [False, True])
def test_groups_that_training_has_added_are_added_again(tmp_path: Path, is_named: bool) -> None:
    net, here = Net(), Net()
    optimizers = [_trained(one, is_named=is_named) for one in (net, here)]
    added: Any = net.first.named_parameters() if is_named else net.first.parameters()
    optimizers[0].add_param_group({"params": list(added), "lr": 0.5, "betas": (0.5, 0.6)})
    _step(net, optimizers[0])
    saved, started = (
        TrainState(model=one, optimizer=its) for one, its in zip((net, here), optimizers, strict=True)
    )
    again(saved, started, tmp_path / "state")

    for one, its in zip((net, here), optimizers, strict=True):
        _step(one, its)
    assert repr(optimizers[0].state_dict()) == repr(optimizers[1].state_dict())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), here.parameters(), strict=True))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (
            lambda net: [net.second.weight, net.first.weight],
            r"train \[2\] parameters, those of the checkpoint \[2\]; .* is model\[0\]\.second\.weight, and was model\[0\]\.first\.weight",
        ),
        (lambda net: [net.first.weight], r"train \[1\] .* is none, and was model\[0\]\.second\.weight"),
    ],
)
def test_an_optimizer_of_other_parameters_is_refused(
    tmp_path: Path, chosen: Callable[[Net], list[Any]], expected: str
) -> None:
    net, here = Net(), Net()
    first = torch.optim.SGD([net.first.weight, net.second.weight], momentum=0.9)
    second = torch.optim.SGD(chosen(here), momentum=0.9)
    with pytest.raises(CheckpointStateError, match=expected):
        again(
            TrainState(model=net, optimizer=first),
            TrainState(model=here, optimizer=second),
            tmp_path / "state",
        )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda net, optimizer: net.register_parameter("extra", nn.Parameter(torch.ones(2))),
            "model[0].extra was not there where training began, and is float32[2]",
        ),
        (
            lambda net, optimizer: setattr(net, "first", nn.Linear(3, 4)),
            "model[0].first.weight was float32[3, 3] where training began, and is float32[4, 3]",
        ),
        (lambda net, optimizer: delattr(net, "first"), "model[0].first.weight was float32[3, 3]"),
        (
            lambda net, optimizer: optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)]}),
            "optimizer[0] had groups of [2] parameters where training began, and has groups of [2, 1]",
        ),
        (lambda net, optimizer: optimizer.param_groups[0]["params"].pop(), "has groups of [1]"),
    ],
)
def test_what_a_start_could_not_load_is_said_at_the_first_save(
    tmp_path: Path, said: Callable[[str], list[str]], change: Callable[[Any, Any], None], expected: str
) -> None:
    net = Net()
    optimizer = _trained(net, is_named=False)
    state = TrainState(model=net, optimizer=optimizer)
    state.begin()
    _write(state, tmp_path / "state")
    assert not said("structure_changed")

    change(net, optimizer)
    _write(state, tmp_path / "state")
    _write(state, tmp_path / "state")
    (line,) = said("structure_changed")
    assert expected in line
    here = Net()
    with pytest.raises(CheckpointStateError):
        TrainState(model=here, optimizer=_trained(here, is_named=False)).read(tmp_path / "state")


def test_what_a_start_can_load_is_no_news(tmp_path: Path, said: Callable[[str], list[str]]) -> None:
    net, lazy = Net(), nn.LazyLinear(2)
    optimizer = _trained(net, is_named=False)
    state = TrainState(model=[net, lazy], optimizer=optimizer)
    state.begin()
    lazy(torch.ones(1, 3))
    optimizer.add_param_group({"params": list(net.first.parameters())})
    _write(state, tmp_path / "state")
    assert not said("structure_changed")


# --- parameters that no module has -------------------------------------------------------------------------------------


def _with_a_temperature(value: float, size: int = 1) -> tuple[TrainState, nn.Parameter]:
    """As the centres of a loss that the program has not named, say."""
    net, temperature = Net(), nn.Parameter(torch.full((size,), float(value)))
    optimizer = torch.optim.SGD([*net.parameters(), temperature], lr=0.1)
    return TrainState(model=net, optimizer=[torch.optim.SGD(net.parameters()), optimizer]), temperature


@pytest.mark.parametrize("write", [_write, _lay_out, _snapshot])
def test_what_an_optimizer_trains_and_no_module_has_comes_back(
    tmp_path: Path, write: Callable[[TrainState, Path], None]
) -> None:
    (state, _), (here, temperature) = _with_a_temperature(3), _with_a_temperature(7)
    write(state, tmp_path / "state")
    here.read(tmp_path / "state")
    assert temperature.item() == 3
    assert temperature.requires_grad


def test_one_of_another_shape_is_refused(tmp_path: Path) -> None:
    (state, _), (here, _) = _with_a_temperature(3), _with_a_temperature(3, size=2)
    with pytest.raises(CheckpointStateError, match=r"optimizer\[1\]: its parameter 4.*\[1\], and is .*\[2\]"):
        again(state, here, tmp_path / "state")


# --- communication hooks -----------------------------------------------------------------------------------------------


@pytest.fixture
def world_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # As in a world of ours: a hook's state is by the number of the bucket.
    monkeypatch.setattr("torch.distributed.Reducer._rebuild_buckets", lambda reducer: False)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    distributed.destroy_process_group()


class Compressed:
    """A model whose gradients PowerSGD compresses from the third step on."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.wrapper = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
        self.state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
        self.wrapper.register_comm_hook(self.state, powerSGD_hook.powerSGD_hook)
        self.optimizer = torch.optim.SGD(self.wrapper.parameters(), lr=0.1)
        self.parts = TrainState(model=self.wrapper, optimizer=self.optimizer)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
        self.wrapper(rows).square().sum().backward()
        self.optimizer.step()


@pytest.mark.usefixtures("world_of_one")
def test_the_state_of_powersgd_comes_back(tmp_path: Path) -> None:
    first, second = Compressed(), Compressed()
    for number in range(5):
        first.step(number)
    again(first.parts, second.parts, tmp_path / "state")
    for number in range(5, 8):
        first.step(number)
        second.step(number)

    assert second.state.iter == first.state.iter
    pairs = zip(first.wrapper.parameters(), second.wrapper.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def _evaluate(wrapper: Any) -> None:
    with torch.no_grad():
        wrapper(torch.ones(2, 1))


def _add_up(wrapper: Any) -> None:
    with wrapper.no_sync():
        wrapper(torch.ones(2, 1)).sum().backward()


def _train(wrapper: Any) -> None:
    wrapper(torch.ones(2, 1)).sum().backward()


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(("last", "sends"), [(_train, True), (_evaluate, False), (_add_up, False)])
@pytest.mark.parametrize("before", [_train, _evaluate])
def test_rank_0s_buffers_are_sent_next_where_they_would_have_been(
    tmp_path: Path, last: Callable[[Any], None], sends: bool, before: Callable[[Any], None]
) -> None:
    """The statistics of a batch norm differ between ranks until they are sent: once more or less gives the other ranks other ones."""
    first, second = (cast("Any", DistributedDataParallel(nn.BatchNorm1d(1))) for _ in range(2))
    _train(first)
    last(first)
    before(second)
    again(TrainState(model=first), TrainState(model=second), tmp_path / "state")
    assert (first.will_sync_module_buffers(), second.will_sync_module_buffers()) == (sends, sends)


class Counting:
    """The state of a user's hook."""

    def __init__(self, group: Any) -> None:
        self.group, self.calls, self.rng = group, 0, numpy.random.default_rng(1)
        self.file = io.BytesIO()


@pytest.mark.usefixtures("world_of_one")
def test_a_hook_of_the_users_is_kept_and_what_is_not_is_named(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    group = distributed.group.WORLD
    held: list[Any] = [Counting(group), Counting(group), {"calls": 0}, {"calls": 0}, group, group]
    wrapped = []
    for state in held:
        wrapped.append(DistributedDataParallel(nn.Linear(1, 1)))
        wrapped[-1].register_comm_hook(state, allreduce_hook)
    held[0].calls, held[2]["calls"] = 4, 5
    held[0].rng.random(3)
    here = TrainState(model=wrapped[1::2])
    again(TrainState(model=wrapped[::2]), here, tmp_path / "state")

    assert (held[1].calls, held[3]["calls"]) == (4, 5)
    assert held[1].rng.random() == held[0].rng.random()
    assert held[1].group is group
    assert ["attributes=Counting.file " in line for line in said("hook_state_not_saved")] == [True]
    assert any("its own" in reason or "every rank" in reason for reason in here.why_not_live())


@pytest.mark.usefixtures("world_of_one")
def test_a_hook_that_is_not_registered_here_is_named(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    net = Compressed()
    _write(net.parts, tmp_path / "state")
    bare = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    TrainState(model=bare, optimizer=optimizer).read(tmp_path / "state")
    assert "the states of 1 communication hooks, and here are 0" in said("hook_state_not_restored")[0]
