"""When a process's memory of a training state can be given to others, and when it says that it cannot."""

from __future__ import annotations

import dataclasses
import gc
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.optim.optimizer import _global_optimizer_pre_hooks
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import ResumableLoader, TrainState, live_header, live_transfer
from recovery.torch.live_header import CannotCarryError
from recovery.torch.live_memory import LiveMemory
from recovery.torch.live_parts import LiveParts
from recovery.training.live import GivesMemory, StepPosition
from tests.torch.fake_session import FakeSession


class Small:
    """A net, an optimizer, a schedule and a loader; `extra` are further parts."""

    def __init__(self, **extra: Any) -> None:
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        data = torch.utils.data.TensorDataset(torch.randn(16, 4))
        self.loader = ResumableLoader(data, 4, session=FakeSession())
        self.state = TrainState(
            model=self.net, optimizer=self.optimizer, lr_scheduler=self.schedule, loader=self.loader, **extra
        )
        self.batches = iter(self.loader)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.net(next(self.batches)[0]).square().mean().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.schedule.step()

    def begun(self) -> LiveMemory:
        memory = self.state.live_memory()
        memory.begin(0)
        return memory


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    before = dict(_global_optimizer_pre_hooks)
    yield
    for number in set(_global_optimizer_pre_hooks) - set(before):
        del _global_optimizer_pre_hooks[number]


@pytest.fixture
def world_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    distributed.destroy_process_group()


def test_memory_is_what_the_session_asks_for() -> None:
    assert isinstance(Small().state, GivesMemory)


def test_survivor_in_the_backward_pass_is_clean_at_the_step_before() -> None:
    small = Small()
    memory = small.begun()
    small.step()
    memory.boundary(1)
    digest = memory.digest()

    small.backward()
    shapes, why_not = memory.offer()

    assert (len(shapes), why_not) == (64, "")
    assert memory.digest() == digest
    assert memory.offer() == (shapes, "")


def test_nothing_is_offered_before_the_first_boundary() -> None:
    memory = Small().state.live_memory()

    assert memory.offer() == ("", "no step has ended since its state was built")


def test_survivor_is_torn_until_the_next_boundary() -> None:
    small = Small()
    memory = small.begun()

    small.step()
    assert memory.why_not() == "AdamW had begun its step"
    memory.boundary(1)
    assert memory.why_not() == ""


def test_optimizer_of_something_else_tears_nothing() -> None:
    memory = Small().begun()
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    other.step()

    assert memory.why_not() == ""


def test_optimizer_that_is_no_part_but_trains_a_part_tears_it() -> None:
    small = Small()
    memory = small.begun()

    torch.optim.SGD(small.net.parameters(), lr=0.1).step()

    assert memory.why_not() == "SGD had begun its step"


def test_optimizer_that_is_given_another_state_tears_it() -> None:
    small = Small()
    memory = small.begun()

    small.optimizer.load_state_dict(small.optimizer.state_dict())

    assert memory.why_not() == "AdamW was given another state"


def test_parameter_that_was_put_in_the_place_of_another_is_noticed() -> None:
    small = Small()
    memory = small.begun()

    small.net[0].bias = nn.Parameter(torch.zeros(4))

    assert memory.why_not() == "parameter model[0].0.bias is another tensor than at the begin"


def test_closed_memory_leaves_no_hook() -> None:
    small = Small()
    before = len(_global_optimizer_pre_hooks)
    memory = small.begun()
    assert len(_global_optimizer_pre_hooks) == before + 1

    memory.close()

    assert len(_global_optimizer_pre_hooks) == before
    assert not small.optimizer._optimizer_load_state_dict_pre_hooks
    assert memory.offer() == ("", "it was closed")


class Thing:
    """Anything with a state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class OwnOptimizer(torch.optim.SGD):
    """One whose state is what it says."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict()


class WithExtra(nn.Linear):
    """A module with a state beside its tensors."""

    @override
    def get_extra_state(self) -> Any:
        return {"any": object()}


class Counting(torch.utils.data.IterableDataset[torch.Tensor]):
    """A data set with a state."""

    @override
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])

    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"thing": Thing({}), "per_rank": ["thing"]}, "Part thing differs between the ranks"),
        ({"thing": Thing({"a": [{1, 2}]})}, "thing[0]/a/0 is a builtins.set, which cannot be sent"),
        ({"thing": Thing({"a": {(1, 2): 3}})}, "thing[0]/a has a tuple as key"),
        ({"thing": Thing({"a": 2**70})}, "thing[0]/a is an integer of more than 64 bits"),
        (
            {"thing": [Thing({}), Thing({"a": torch.zeros(300_000)})]},
            "have 1200064 bytes, most of them in thing[1]",
        ),
        ({"second": WithExtra(2, 2)}, "second[0] (WithExtra) has an extra state of its own"),
        (
            {"own": OwnOptimizer},
            "own[0] (OwnOptimizer) has a state_dict of its own",
        ),
        (
            {"rows": ResumableLoader(Counting(), 4, session=FakeSession())},
            "rows[0]: its data set Counting has a state_dict of its own",
        ),
    ],
)
def test_what_cannot_be_given_is_named(extra: dict[str, Any], sentence: str) -> None:
    if "own" in extra:
        # Made here: other tests look for all optimizers that are alive.
        extra = {"own": extra["own"]([nn.Parameter(torch.zeros(1))], lr=0.1)}
    (why,) = Small(**extra).state.why_not_live()

    assert sentence in why


def test_training_of_usual_parts_can_be_given() -> None:
    small = Small(
        scaler=torch.amp.GradScaler("cpu"), average=torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    )

    assert small.state.why_not_live() == ()


def test_what_appears_later_and_cannot_be_sent_is_said_when_it_is_asked_for() -> None:
    thing = Thing({})
    memory = Small(thing=thing).begun()
    thing.state = {"when": object()}
    memory.boundary(1)

    assert memory.offer() == ("", "/others/thing[0]/when is a builtins.object, which cannot be sent")


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("steps", [0, 2])
def test_source_puts_its_state_into_objects_that_were_built_anew(steps: int) -> None:
    old, new = Small(), Small()
    memory = old.begun()
    for step in range(1, steps + 1):
        old.step()
        memory.boundary(step)
    taken = old.state._take()
    expected = {part: _readable(taken[part]) for part in ("parts", "gradients")}
    digest = memory.digest()
    old.backward()
    old.schedule.load_state_dict({**old.schedule.state_dict(), "last_epoch": 99})
    old.optimizer.param_groups[0]["lr"] = 7.0

    shapes, _ = memory.offer()
    given = memory.transfer(new.state, source=0, rank=0, shapes=shapes, at=StepPosition(steps, 1, steps))

    assert given == digest
    found = new.state._take()
    assert {part: _readable(found[part]) for part in expected} == expected
    # It is the memory of the new ones from here on.
    assert memory.why_not() == ""
    new.batches = iter(new.loader)
    new.step()
    assert memory.why_not() == "AdamW had begun its step"
    memory.close()


@pytest.mark.usefixtures("world_of_one")
def test_state_is_not_put_into_other_parts() -> None:
    memory = Small().begun()
    shapes, _ = memory.offer()
    other = TrainState(model=nn.Linear(3, 3))

    with pytest.raises(CheckpointStateError, match="not like those of rank 0"):
        memory.transfer(other, source=0, rank=0, shapes=shapes, at=StepPosition(0, 1, 0))


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("alike", [True, False])
def test_gradients_of_a_checkpoint_are_given_only_where_it_says_that_all_ranks_had_them(
    tmp_path: Path, *, alike: bool
) -> None:
    def built() -> tuple[nn.Module, TrainState]:
        net = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
        return net, TrainState(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))

    net, saved = built()
    # Without a memory, as without live rollback, nobody knows.
    memory = saved.live_memory() if alike else None
    net(torch.ones(2, 4)).sum().backward()
    if memory is not None:
        memory.boundary(1)
    with (tmp_path / "saved").open("wb") as stream:
        saved.write(stream)

    net, loaded = built()
    taking = loaded.live_memory()
    loaded.read(tmp_path / "saved")
    taking.loaded(1, rank=0)

    assert next(net.parameters()).grad is not None
    assert ("its checkpoint holds gradients" in taking.why_not()) != alike


@pytest.mark.parametrize("rank", [0, 1])
def test_batch_statistics_of_a_checkpoint_are_given_by_rank_0_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    saved = Small()
    saved.step()
    saved.optimizer.zero_grad()
    with (tmp_path / "saved").open("wb") as stream:
        saved.state.write(stream)

    loaded = Small()
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", HashStore)
    monkeypatch.setattr(LiveParts, "takes_buffers_of_rank_0", lambda parts: True)
    parts = loaded.state.live_parts()
    parts.buffers = [dataclasses.replace(one, alike=True) for one in parts.buffers]
    taking = LiveMemory(parts)
    loaded.state.read(tmp_path / "saved")
    taking.loaded(1, rank=rank)

    assert ("the ranks have not agreed on it yet" in taking.why_not()) == bool(rank)


@pytest.mark.usefixtures("world_of_one")
def test_source_that_was_changed_behind_its_offer_gives_nothing() -> None:
    small = Small()
    memory = small.begun()
    shapes, _ = memory.offer()
    with torch.no_grad():
        next(small.net.parameters()).zero_()

    with pytest.raises(CheckpointStateError, match="cannot give its state of step 0 any more"):
        memory.transfer(small.state, source=0, rank=0, shapes=shapes, at=StepPosition(0, 1, 0))


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(("kept", "why"), [(True, "it was taking the state of step 5"), (False, "")])
def test_transfer_that_breaks_leaves_clean_what_it_has_not_written_to(
    monkeypatch: pytest.MonkeyPatch, kept: bool, why: str
) -> None:
    small = Small()
    memory = small.begun()
    shapes, _ = memory.offer()

    def breaks(*arguments: Any, **named: Any) -> None:
        reason = "Connection closed by peer"
        raise RuntimeError(reason)

    monkeypatch.setattr(live_transfer, "take", breaks)
    with pytest.raises(RuntimeError, match="closed by peer"):
        memory.transfer(
            small.state if kept else Small().state, source=1, rank=0, shapes=shapes, at=StepPosition(5, 1, 5)
        )

    assert memory.why_not() == why


def test_tree_comes_back_as_it_was() -> None:
    tree = {
        "plain": [None, True, -5, 2**63, 0.1, float("inf"), "text", b"bytes", (), {}],
        "nested": {"a": (1, [2, {"b": OrderedDict([("x", 1)])}]), 3: Counter({30: 1})},
        "tensors": [torch.arange(3), torch.zeros(()), torch.zeros(0, 2), torch.ones(2, dtype=torch.bool)],
    }

    packed = live_header.pack(tree)
    found = live_header.unpack(packed.header, packed.tensors)

    assert repr(found) == repr(tree)
    assert [type(found["nested"][3]), type(found["nested"]["a"])] == [Counter, tuple]
    assert [note.path for note in packed.notes] == [f"/tensors/{number}" for number in range(4)]


def test_sparse_tensor_is_refused_by_its_place() -> None:
    with pytest.raises(CannotCarryError, match="/gradients/a is a tensor that is not dense"):
        live_header.pack({"gradients": {"a": torch.eye(2).to_sparse()}})


def _readable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), str(value.dtype), value.detach().numpy().tobytes())
    if isinstance(value, dict):
        return [(key, _readable(inner)) for key, inner in value.items()]
    return [_readable(inner) for inner in value] if isinstance(value, (list, tuple)) else value
