"""What a program compiles or wraps decides no name in its checkpoints, and how often it began does not decide what is compiled."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from recovery.torch import ResumableLoader, TrainState, module_names
from recovery.torch.compiled_code import compiled_code
from recovery.torch.resharding import Saved
from recovery.torch.weights_export import export
from tests.torch import sharded_world
from tests.torch.fake_session import FakeSession


class Net(nn.Module):
    """A block that may be compiled on its own."""

    def __init__(self, *, inner: bool) -> None:
        super().__init__()
        block: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.block = torch.compile(block, backend="eager") if inner else block
        self.last = nn.Linear(3, 1)

    @override
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.block(batch))
        return found


def _made(compiled: str, seed: int = 0) -> tuple[Any, TrainState]:
    torch.manual_seed(seed)
    net: Any = Net(inner="inner" in compiled)
    if "outer" in compiled:
        net = torch.compile(net, backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(2, 3)).sum().backward()
    if seed == 0:
        optimizer.step()
    return net, TrainState(model=net, optimizer=optimizer)


def _written(state: TrainState) -> bytes:
    stream = io.BytesIO()
    state.write(stream)
    return stream.getvalue()


def _bits(net: Any) -> list[str]:
    bare = module_names.bare(net)
    gradients = [repr(parameter.grad) for parameter in bare.parameters()]
    return [*(repr(value) for value in bare.state_dict().values()), *gradients]


_COMPILED = ("", "inner", "outer", "inner and outer")


@pytest.mark.parametrize("here", _COMPILED)
@pytest.mark.parametrize("there", _COMPILED)
def test_checkpoint_knows_nothing_of_what_was_compiled(tmp_path: Path, there: str, here: str) -> None:
    net, state = _made(there)
    content = _written(state)
    assert b"_orig_mod" not in content
    (tmp_path / "state").write_bytes(content)
    fresh, fresh_state = _made(here, seed=1)
    assert _bits(fresh) != _bits(net)

    fresh_state.read(tmp_path / "state")

    assert _bits(fresh) == _bits(net)


@pytest.mark.parametrize("here", _COMPILED)
def test_file_of_an_earlier_release_with_the_wrappers_names_is_read(tmp_path: Path, here: str) -> None:
    net, state = _made("inner and outer")
    payload = torch.load(io.BytesIO(_written(state)), weights_only=True)
    payload["parts"]["model"] = [net.state_dict()]
    names = {module_names.plain(name): name for name, _ in net.named_parameters()}
    payload["gradients"] = {
        (part, number, names[name]): one for (part, number, name), one in payload["gradients"].items()
    }
    torch.save(payload, tmp_path / "old")
    assert b"_orig_mod" in (tmp_path / "old").read_bytes()
    fresh, fresh_state = _made(here, seed=1)

    fresh_state.read(tmp_path / "old")

    assert _bits(fresh) == _bits(net)


def test_versions_of_inner_modules_stay_with_their_names() -> None:
    plain, compiled = _made("")[0], _made("inner")[0]

    there = vars(module_names.state_of(compiled))["_metadata"]
    here = vars(module_names.as_named_by(compiled, plain.state_dict()))["_metadata"]

    assert there["block.1"] == here["block._orig_mod.1"] == {"version": 2}


class Odd(nn.Module):
    """Has the wrapper's name itself: without it two of its parameters would have one name."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod, self.weight = nn.Linear(1, 1), nn.Parameter(torch.ones(1))


def test_name_that_the_author_gave_himself_is_kept() -> None:
    names = ["weight", "_orig_mod.weight", "_orig_mod.bias"]
    assert list(module_names.state_of(Odd())) == names
    assert list(TrainState(model=Odd()).live_parts().parameters) == [f"model[0].{name}" for name in names]


class Averages:
    """Of a model's parameters, under the names that it has for them."""

    def __init__(self, net: Any) -> None:
        self.by_name = {name: one.detach() * 0 for name, one in net.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.by_name)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.by_name = dict(state)


def test_object_that_is_no_module_is_given_the_names_that_it_gave(tmp_path: Path) -> None:
    net, _ = _made("inner")
    averages = Averages(net)
    (tmp_path / "state").write_bytes(_written(TrainState(model=net, averages=averages)))
    fresh, _ = _made("inner", seed=1)
    found = Averages(fresh)

    TrainState(model=fresh, averages=found).read(tmp_path / "state")

    assert list(found.by_name) == list(averages.by_name)
    assert list(found.by_name) == [name for name, _ in fresh.named_parameters()]


def test_gradients_of_parameters_that_differ_by_that_name_alone_are_all_saved(tmp_path: Path) -> None:
    trained, fresh = Odd(), Odd()
    for value, parameter in enumerate(trained.parameters()):
        parameter.grad = torch.full_like(parameter, value)
    (tmp_path / "state").write_bytes(_written(TrainState(model=trained)))

    TrainState(model=fresh).read(tmp_path / "state")

    assert _bits(fresh) == _bits(trained)


def test_live_rollback_unwraps_what_torch_has_compiled_and_no_module_of_the_authors() -> None:
    class Around(nn.Module):
        """Has a part of the wrapper's name."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod, self.head = nn.Linear(1, 1), nn.Linear(1, 1)

    around = Around()
    for model in (around, torch.compile(around, backend="eager")):
        found = TrainState(model=model).live_parts()
        assert found.modules == {"model[0]": around}
        assert len(found.parameters) == 4


def test_exported_weights_have_the_authors_names(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from recovery.checkpoint import whole_step
    from recovery.checkpoint.contribution import Layout

    _, state = _made("inner and outer")
    sharded_world.save(tmp_path / "saved", state, rank=0, world_size=1, layout=Layout.RANK)
    export(Saved(whole_step.find(tmp_path / "saved", None)), tmp_path / "weights")

    content = (tmp_path / "weights" / "model.safetensors").read_bytes()
    assert b"block.0.weight" in content
    assert b"_orig_mod" not in content


def test_tenth_entry_compiles_as_the_first() -> None:
    """torch compiles a piece of code 8 times at most, for modules that are built again as for others."""
    torch._dynamo.reset()
    compiled: list[bool] = []
    session = FakeSession()

    def backend(graph: Any, inputs: Any) -> Any:
        compiled[-1] = True
        return graph.forward

    for _ in range(10):
        compiled.append(False)
        ResumableLoader(TensorDataset(torch.ones(1)), 1, session=session)
        net = Net(inner=False)
        net.last = nn.Linear(3, len(compiled))
        torch.compile(net, backend=backend, dynamic=False)(torch.ones(2, 3))
        session.close()

    assert compiled == [True] * 10


def test_where_nothing_was_compiled_the_compiler_is_not_imported_to_forget_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU that took a survivor 3.7 of the 4.4 s from a death to the next step."""
    import torch._dynamo

    torch._dynamo.reset()
    begun = list[str]()
    monkeypatch.setattr(torch._dynamo, "reset", lambda: begun.append("afresh"))
    compiled_code.end_generation()
    assert not begun
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.zeros(1, 2))
    compiled_code.end_generation()
    assert begun == ["afresh"]
