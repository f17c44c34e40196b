"""What a script has beside what it gave to the Trainer: it is named before the first step or at the first save, or refused; what the Trainer keeps is not."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers.trainer_callback")

import torch
import transformers
from torch import distributed, nn
from torch.optim import lr_scheduler, swa_utils
from transformers import TrainerCallback, TrainingArguments
from typing_extensions import override

import recovery.torch
from recovery.errors import UsageError
from recovery.torch import own_generators
from recovery.training import current, earlier_jobs
from recovery.transformers import Recovered
from tests.trainers.alone import Alone
from tests.trainers.tiny_training import Net, Samples

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
"""transformers has some of its own."""

Said = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    monkeypatch.setattr(own_generators, "_said", set())
    # A folder of one rank that no scheduler has heard of.
    monkeypatch.setattr(recovery.torch, "adopt_folder", lambda *_, **__: None)
    monkeypatch.setattr(distributed, "barrier", lambda: None)
    monkeypatch.setattr(earlier_jobs, "check", lambda *_: None)
    caplog.set_level(logging.INFO, "recovery")
    events = ("event=own_generator", "event=not_a_part")
    yield lambda: [text for text in caplog.messages if text.startswith(events)]
    current.enter(None)


class Own(Recovered, transformers.Trainer):  # type: ignore[misc]  # not installed where types are checked
    """A Trainer of the script's own."""


class Drawing(Own):
    """With an attribute that it draws from."""

    def __init__(self, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)
        self.noise = random.Random(3)


class Unlabelled(Net):
    """Its loss is computed elsewhere."""

    @override
    def forward(
        self, ids: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        return super().forward(ids, rows, torch.zeros_like(ids) if labels is None else labels)


def train(
    directory: Path, *, behind: int = 0, net: nn.Module | None = None, kind: type[Own] = Own, **given: Any
) -> None:
    """Save behind each of four steps."""
    session: Any = Alone(directory / f"checkpoint-{behind}" if behind else None, behind)
    current.enter(session)
    arguments = TrainingArguments(
        output_dir=str(directory),
        use_cpu=True,
        report_to="none",
        max_steps=4,
        save_steps=1,
        per_device_train_batch_size=4,
        disable_tqdm=True,
    )
    kind(model=net or Net(), args=arguments, train_dataset=Samples(40), **given).train()


class Noisy(TrainerCallback):  # type: ignore[misc]  # as above
    def __init__(self) -> None:
        self.rng = random.Random(3)


class Shadowed(TrainerCallback):  # type: ignore[misc]  # as above
    """An average by hand: attributes of callbacks are kept."""

    def __init__(self, weights: dict[str, torch.Tensor] | None = None) -> None:
        self.weights = {} if weights is None else weights

    @override
    def on_step_end(self, *_: Any, model: nn.Module, **others: Any) -> None:
        for name, one in model.named_parameters():
            self.weights[name] = one.detach() * 0.5


class Scheduling(TrainerCallback):  # type: ignore[misc]  # as above
    """By a schedule that the Trainer is not given."""

    @override
    def on_train_begin(self, *_: Any, optimizer: Any, **others: Any) -> None:
        self.schedule = lr_scheduler.StepLR(optimizer, 2)


def noisy_net() -> Net:
    net = Net()
    vars(net)["rng"] = torch.Generator()
    return net


def noisy_loss() -> Callable[..., torch.Tensor]:
    rng = random.Random(3)

    def loss(outputs: Any, labels: Any, **_: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs["logits"], labels) * rng.random()

    return loss


NAMED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "of the model": (lambda: {"net": noisy_net()}, "model[0] keeps a random generator of its own: .rng ("),
    "of a callback": (
        lambda: {"callbacks": [Noisy()]},
        "Noisy_0 keeps a random generator of its own: .rng (random.Random)",
    ),
    "of a Trainer of one's own": (
        lambda: {"kind": Drawing},
        "Drawing keeps a random generator of its own: .noise (random.Random)",
    ),
    "of a function that the Trainer calls": (
        lambda: {"net": Unlabelled(), "compute_loss_func": noisy_loss()},
        "compute_loss_func keeps a random generator of its own: .rng (random.Random)",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_generator_that_no_folder_has_is_named(tmp_path: Path, said: Said, name: str) -> None:
    made, expected = NAMED[name]
    train(tmp_path, **made())
    (line,) = said()
    assert line.startswith(f"event=own_generator {expected}")


def test_the_generator_of_the_function_that_trains_is_named(tmp_path: Path, said: Said) -> None:
    mine = random.Random(3)
    train(tmp_path)
    (line,) = said()
    assert (
        "_function_that_trains_is_named() keeps a random generator of its own: mine (random.Random)." in line
    )
    assert mine.random() > 0


def test_what_else_the_function_has_beside_is_named(tmp_path: Path, said: Said) -> None:
    net = Net()
    average, second = swa_utils.AveragedModel(net), torch.optim.Adagrad(net.parameters())
    weights = {name: one.detach().clone() for name, one in net.named_parameters()}
    train(tmp_path, net=net, callbacks=[Shadowed(weights)])
    beside, copies = said()
    assert beside.startswith("event=not_a_part objects=Adagrad,AveragedModel they are used beside")
    assert copies.startswith("event=not_a_part objects=weights the steps have changed them")
    assert average.n_averaged == 0
    assert second.param_groups


def test_a_schedule_that_was_not_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"Trainer\(optimizers\): StepLR sets the learning rate of AcceleratedOptimizer"
    ):
        train(tmp_path, callbacks=[Scheduling()])
    assert not list(tmp_path.glob("checkpoint-*")), "it is refused before the first step"


def test_behind_a_restore_it_is_refused_at_the_first_save(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(UsageError, match="StepLR sets the learning rate of AcceleratedOptimizer"):
        train(tmp_path, behind=2, callbacks=[Scheduling()])


def test_what_the_trainer_keeps_is_not_named(tmp_path: Path, said: Said) -> None:
    for behind in (0, 2):
        net = Net()
        net.average = swa_utils.AveragedModel(net.layers)
        optimizer = torch.optim.AdamW(net.layers.parameters(), 0.1)
        schedule = lr_scheduler.StepLR(optimizer, 2)
        shadowed = Shadowed()
        train(tmp_path, behind=behind, net=net, callbacks=[shadowed], optimizers=(optimizer, schedule))
        assert shadowed.weights
    assert not said()


def test_what_the_trainer_makes_itself_is_not_named(tmp_path: Path, said: Said) -> None:
    train(tmp_path)
    train(tmp_path, behind=2)
    assert not said()
