"""A step of the session may be a micro-batch: what has been accumulated by then comes back with the rest."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recovery.errors import CheckpointStateError
from recovery.torch import TrainState
from tests.torch.accumulating import LOOPS, SAVED_STEP, Accumulating
from tests.untraced import ROOT
from tests.warm.process import TORCH, Process

_ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def _start(*arguments: str) -> Process[str]:
    return Process(
        [sys.executable, "-m", "tests.torch.accumulating", *arguments],
        imports=TORCH,
        cwd=ROOT,
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ends(*processes: Process[str]) -> list[str]:
    found = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), found
    return [out for out, _ in found]


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_fresh_process_goes_on_between_two_optimizer_steps_with_the_same_bits(
    tmp_path: Path, loop: str
) -> None:
    undisturbed = _ends(_start("all", str(tmp_path), loop))

    assert _ends(_start("rest", str(tmp_path), loop)) == undisturbed


@pytest.mark.parametrize("view", ["view", "own"])
def test_fresh_world_goes_on_between_two_optimizer_steps_with_the_same_bits(
    tmp_path: Path, view: str
) -> None:
    runs = [
        _ends(*(_start(part, str(tmp_path), "before", str(rank), "2", view) for rank in (0, 1)))
        for part in ("all", "rest")
    ]

    assert runs[0] == runs[1]


def _at_step(step: int, loop: str, **options: bool) -> Accumulating:
    training = Accumulating(loop, **options)
    for number in range(1, step + 1):
        training.micro_batch(number, torch.ones(4, 8))
    return training


def _written(state: TrainState) -> bytes:
    stream = io.BytesIO()
    state.write(stream)
    return stream.getvalue()


def test_loop_that_clears_behind_the_optimizers_step_saves_no_gradients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cleared, standing = _at_step(8, "behind"), _at_step(8, "before")
    promised = _at_step(8, "before", gradients=False)
    with caplog.at_level("INFO", logger="recovery.torch"):
        assert len(_written(cleared.state)) < len(_written(standing.state))
        assert len(_written(promised.state)) < len(_written(standing.state))
        _written(standing.state)

    [said] = [one for one in caplog.records if "event=gradients_saved" in one.message]
    assert said.levelname == "INFO", "where the loop clears them first they do no harm"
    assert "a loop may add to them, so they are part of the state" in said.message


def test_snapshot_keeps_the_gradients_of_its_step() -> None:
    training = _at_step(SAVED_STEP, "before")
    expected = _written(training.state)
    snapshot = training.state.snapshot()
    training.micro_batch(SAVED_STEP + 1, torch.ones(4, 8))
    stream = io.BytesIO()
    snapshot.write(stream)

    then, now = (torch.load(io.BytesIO(content)) for content in (expected, stream.getvalue()))
    assert then["gradients"].keys() == now["gradients"].keys()
    assert len(then["gradients"]) == 7
    for key, gradient in then["gradients"].items():
        assert torch.equal(gradient.to_dense(), now["gradients"][key].to_dense()), key


def test_file_of_an_earlier_release_loads_without_gradients(tmp_path: Path) -> None:
    training = _at_step(SAVED_STEP, "before")
    payload = torch.load(io.BytesIO(_written(training.state)))
    del payload["gradients"]
    torch.save(payload, tmp_path / "old.ckpt")

    training.state.read(tmp_path / "old.ckpt")

    assert [parameter.grad for parameter in training.net.parameters()] == [None] * 7


def test_gradient_that_fits_no_parameter_is_refused(tmp_path: Path) -> None:
    training = _at_step(SAVED_STEP, "before")
    payload = torch.load(io.BytesIO(_written(training.state)))
    payload["gradients"]["model", 0, "rows.weight"] = torch.ones(3)
    torch.save(payload, tmp_path / "strange.ckpt")

    with pytest.raises(
        CheckpointStateError, match=r"gradient of 'rows.weight' of number 0 that fits no parameter"
    ):
        training.state.read(tmp_path / "strange.ckpt")


def test_gradients_of_what_only_an_optimizer_knows_come_back_too(tmp_path: Path) -> None:
    class Bare:
        """A model that is no module."""

        def __init__(self) -> None:
            self.weight = torch.ones(3, requires_grad=True)

        def state_dict(self) -> dict[str, torch.Tensor]:
            return {"weight": self.weight}

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            with torch.no_grad():
                self.weight.copy_(state["weight"])

    def made() -> tuple[Bare, TrainState]:
        bare = Bare()
        return bare, TrainState(model=bare, optimizer=[torch.optim.SGD([bare.weight], lr=0.1)])

    (bare, state), (fresh, fresh_state) = made(), made()
    (bare.weight * torch.arange(3.0)).sum().backward()  # type: ignore[no-untyped-call]  # torch types it so for a plain tensor
    (tmp_path / "a.ckpt").write_bytes(_written(state))
    fresh_state.read(tmp_path / "a.ckpt")

    assert fresh.weight.grad is not None
    assert fresh.weight.grad.tolist() == [0.0, 1.0, 2.0]


def test_restored_gradients_share_no_memory(tmp_path: Path) -> None:
    """Those of one bucket of DistributedDataParallel are parts of one tensor, and come out of the file as that."""
    bucket = torch.arange(6.0)

    def made() -> tuple[list[torch.nn.Linear], TrainState]:
        layers = [torch.nn.Linear(3, 1, bias=False) for _ in range(2)]
        return layers, TrainState(model=layers)

    (layers, state), (fresh, fresh_state) = made(), made()
    for number, layer in enumerate(layers):
        layer.weight.grad = bucket[3 * number : 3 * number + 3].view(1, 3)
    (tmp_path / "a.ckpt").write_bytes(_written(state))
    fresh_state.read(tmp_path / "a.ckpt")

    found = [layer.weight.grad for layer in fresh]
    assert [gradient.tolist() for gradient in found if gradient is not None] == [
        [[0.0, 1.0, 2.0]],
        [[3.0, 4.0, 5.0]],
    ]
    assert len({gradient.untyped_storage().data_ptr() for gradient in found if gradient is not None}) == 2
