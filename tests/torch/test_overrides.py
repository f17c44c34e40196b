"""What the program builds otherwise than the one that saved is said by name, and taken where it is asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import ResumableLoader, TrainState
from recovery.torch.overrides import BUILT
from recovery.training import changed_since
from tests.torch.fake_session import FakeSession


class Training:
    """A model with an optimizer that was built with these options, and a schedule perhaps."""

    def __init__(
        self,
        schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
        *,
        override: Any = None,
        **options: Any,
    ) -> None:
        torch.manual_seed(1)
        self.net = torch.nn.Linear(2, 1)
        groups: list[dict[str, Any]] = [{"params": [self.net.weight]}, {"params": [self.net.bias], "lr": 0.5}]
        self.optimizer = torch.optim.SGD(groups, **options)
        self.schedule = schedule(self.optimizer) if schedule is not None else None
        self.state = TrainState(
            model=self.net, optimizer=self.optimizer, lr_scheduler=self.schedule, override=override
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.net(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        if isinstance(self.schedule, lr_scheduler.ReduceLROnPlateau):
            self.schedule.step(1.0)
        elif self.schedule is not None:
            self.schedule.step()

    @property
    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def saved(self, path: Path) -> Path:
        with path.open("wb") as stream:
            self.state.write(stream)
        return path


def begun(**given: Any) -> Training:
    training = Training(**given)
    training.state.begin()
    return training


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    caplog.set_level(logging.INFO, "recovery.torch")
    return lambda event: [text for text in caplog.messages if f"event={event} " in text]


def test_what_has_changed_is_named_and_stays_as_it_was_saved(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    path = begun(lr=0.1, momentum=0.9).saved(tmp_path / "state")
    here = Training(lr=0.2, momentum=0.9, weight_decay=0.01)
    here.state.read(path)

    assert (here.rates, here.optimizer.param_groups[1]["weight_decay"]) == ([0.1, 0.5], 0)
    lines = said("changed_since_checkpoint")
    assert len(lines) == 3
    assert "optimizer[0].lr was built as 0.1 and is 0.2 now: the checkpoint's is gone on with" in lines[0]
    assert 'override={"optimizer": ["lr"]} takes that of now' in lines[0]
    assert "optimizer[0].weight_decay of group 1 was built as 0 and is 0.01 now" in lines[2]


def test_what_is_overridden_is_as_it_is_built_now_until_training_changes_it(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    path = begun(lr=0.1, momentum=0.9).saved(tmp_path / "state")
    given: dict[str, Any] = {"lr": 0.2, "momentum": 0.8, "override": {"optimizer": ["lr"]}}
    here = Training(**given)
    here.state.read(path)
    assert (here.rates, here.optimizer.param_groups[0]["momentum"]) == ([0.2, 0.5], 0.9)
    assert "optimizer[0].lr was built as 0.1 and is 0.2 now" in said("overridden")[0]
    assert "momentum" in said("changed_since_checkpoint")[0]

    # The script still says so behind the next failure, where it is nothing new.
    here.optimizer.param_groups[0]["lr"] = 0.05
    again = Training(**given)
    again.state.read(here.saved(tmp_path / "next"))
    assert again.rates == [0.05, 0.5]
    assert len(said("overridden")) == 1


def test_what_a_start_was_only_told_of_may_be_overridden_by_a_later_one(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    def halved(optimizer: torch.optim.Optimizer) -> Any:
        return lr_scheduler.ExponentialLR(optimizer, 0.5)

    for schedule, rate in ((None, 0.2), (halved, 0.1)):
        first = begun(schedule=schedule, lr=0.1, momentum=0.9)
        first.step()
        told = Training(schedule, lr=0.2, momentum=0.8)
        told.state.read(first.saved(tmp_path / "state"))
        path = told.saved(tmp_path / "told")

        here = Training(schedule, lr=0.2, momentum=0.8, override={"optimizer": ["lr"]})
        here.state.read(path)
        assert here.rates[0] == pytest.approx(rate)
        assert here.optimizer.param_groups[0]["momentum"] == 0.9
        assert "optimizer[0].lr was built as 0.1 and is 0.2 now" in said("overridden")[-1]
        # What was built as before is nothing that has changed.
        count = len(said("changed_since_checkpoint"))
        Training(schedule, lr=0.2, momentum=0.9).state.read(here.saved(tmp_path / "here"))
        assert len(said("changed_since_checkpoint")) == count


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.25), lr_scheduler.StepLR(optimizer, 2)],
            [3],
        ),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
    ],
)
def test_a_schedule_goes_on_with_another_rate(tmp_path: Path, schedule: Callable[[Any], Any]) -> None:
    def trained(lr: float) -> Training:
        return begun(schedule=schedule, lr=lr)

    first, whole = trained(0.5), trained(1.0)
    for _ in range(2):
        first.step()
        whole.step()
    here = trained(1.0)
    here.state = TrainState(
        model=here.net, optimizer=here.optimizer, lr_scheduler=here.schedule, override={"optimizer": ["lr"]}
    )
    here.state.read(first.saved(tmp_path / "state"))
    for _ in range(4):
        assert here.rates == pytest.approx(whole.rates)
        here.step()
        whole.step()


def test_a_schedules_own_values_are_named_and_overridden(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    def schedule(gamma: float) -> Callable[[Any], Any]:
        return lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, gamma)], [1]
        )

    path = begun(schedule=schedule(0.5), lr=1.0).saved(tmp_path / "state")
    here = Training(schedule(0.1), lr=1.0)
    here.state.read(path)
    (line,) = said("changed_since_checkpoint")
    assert "lr_scheduler[0]._schedulers.1.gamma was built as 0.5 and is 0.1 now" in line
    here = Training(schedule(0.1), lr=1.0, override={"lr_scheduler": ["_schedulers.1.gamma"]})
    here.state.read(path)
    assert here.schedule is not None
    assert here.schedule._schedulers[1].gamma == 0.1


def test_a_scheduled_rate_of_nothing_is_refused(tmp_path: Path) -> None:
    def built(lr: float, **given: Any) -> Training:
        return begun(schedule=lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5), lr=lr, **given)

    path = built(0.0).saved(tmp_path / "state")
    with pytest.raises(UsageError, match=r"lr was built as 0\.0 and is scheduled"):
        built(0.1, override={"optimizer": ["lr"]}).state.read(path)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"optimiser": ["lr"]}, "names the part 'optimiser'"),
        ({"optimizer": ["rate"]}, r"names \['rate'\] of 'optimizer', and what may be named"),
        ({"optimizer": "lr"}, "in a list"),
        ({"model": ["lr"]}, r"in a list, is \[\]"),
    ],
)
def test_a_name_of_nothing_is_refused(override: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        begun(lr=0.1, override=override)


def test_a_file_of_an_earlier_release_says_nothing_of_it(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    saved = torch.load(begun(lr=0.1).saved(tmp_path / "state"), weights_only=True)
    del saved[BUILT]
    torch.save(saved, tmp_path / "state")
    here = Training(lr=0.2)
    here.state.read(tmp_path / "state")
    assert here.rates == [0.1, 0.5]
    assert not said("changed_since_checkpoint")


def test_another_batch_size_is_taken_where_it_is_asked_for(tmp_path: Path) -> None:
    def state(size: int, override: Any = None) -> TrainState:
        loader = ResumableLoader(torch.arange(12), size, session=FakeSession(), shuffle=False)  # type: ignore[arg-type]
        return TrainState(model=torch.nn.Linear(1, 1), loader=loader, override=override)

    first = state(4)
    next(iter(first.batches))
    with (tmp_path / "state").open("wb") as stream:
        first.write(stream)
    with pytest.raises(CheckpointStateError, match="batch_size was 4 and is 2"):
        state(2).read(tmp_path / "state")
    here = state(2, {"loader": ["batch_size"]})
    here.read(tmp_path / "state")
    assert next(iter(here.batches)).tolist() == [4, 5]
    with pytest.raises(UsageError, match="batch_size of a ResumableLoader"):
        state(2, {"loader": ["seed"]}).begin()


def test_another_script_is_a_condition_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"

    def digest() -> dict[str, str]:
        changed_since.script.cache_clear()
        return changed_since.script()

    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert digest() == {}
    script.write_text("lr = 1\n")
    first = digest()
    script.write_text("lr = 2\n")
    # What runs is what was read at the begin.
    assert changed_since.script() == first
    assert digest().keys() == {"script"}
    assert digest() != first
    assert TrainState(model=torch.nn.Linear(1, 1)).versions()["script"] == digest()["script"]
    changed_since.script.cache_clear()
