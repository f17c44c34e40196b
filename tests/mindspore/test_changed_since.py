"""What a MindSpore program builds otherwise than the one that saved is said by name, and taken where it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.checkpoint.position import Position
from recovery.errors import CheckpointStateError, UsageError
from recovery.training.planned_checkpoint import for_manifest

pytestmark = pytest.mark.mindspore


class Training:
    """A network with an optimizer that was built with these options, and 24 rows."""

    def __init__(
        self,
        rate: Any = 0.1,
        *,
        batch: int = 4,
        hidden: int = 2,
        grouped: bool = False,
        override: Any = None,
        shuffle: bool = False,
        **options: Any,
    ) -> None:
        import numpy as np
        from mindspore import dataset as ds
        from mindspore import nn

        from recovery.mindspore.state import TrainState

        net = nn.SequentialCell(nn.Dense(1, hidden), nn.Dense(hidden, 1))
        trained: Any = net.trainable_params()
        if grouped:
            trained = [{"params": trained[:1], "lr": rate}, {"params": trained[1:]}]
            rate = 0.5
        self.optimizer = nn.Momentum(trained, **{"learning_rate": rate, "momentum": 0.9, **options})
        rows = np.arange(24, dtype=np.float32).reshape(24, 1)
        data = ds.NumpySlicesDataset((rows,), ["x"], shuffle=shuffle).batch(batch)
        self.state = TrainState(network=net, optimizer=self.optimizer, dataset=data, override=override)

    def saved(self, path: Path) -> Saved:
        with path.open("wb") as stream:
            self.state.write(stream)
        return Saved(path, for_manifest(self.state))

    @property
    def division(self) -> Any:
        return self.state._division

    @property
    def rate(self) -> Any:
        return self.optimizer.learning_rate.asnumpy().tolist()

    def next_rows(self) -> list[float]:
        return [row[0] for row in next(iter(self.state.batches))[0].asnumpy().tolist()]


class Saved:
    """A file, and what its manifest says."""

    def __init__(self, path: Path, said: dict[str, str]) -> None:
        self.path, self.said = path, said

    def loaded(self, training: Training) -> Training:
        training.state.compare(self.said)
        training.state.read(self.path)
        return training


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    caplog.set_level(logging.INFO, "recovery.mindspore")
    return lambda event: [text for text in caplog.messages if f"event={event} " in text]


def close(*values: float) -> Any:
    return pytest.approx(values[0] if len(values) == 1 else list(values))


def test_a_changed_rate_is_named_and_stays_as_it_was_saved(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    here = Training(0.1).saved(tmp_path / "a.ckpt").loaded(Training(0.02, momentum=0.8))
    assert here.rate == close(0.1)
    rate, momentum = said("changed_since_checkpoint")
    assert (
        "optimizer.learning_rate was built as 0.1 and is 0.02 now: the checkpoint's is gone on with" in rate
    )
    assert 'override={"optimizer": ["learning_rate"]} takes that of now' in rate
    assert "optimizer.momentum was built as 0.9 and is 0.8 now" in momentum


def test_what_is_overridden_is_as_it_is_built_now_until_training_changes_it(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    import mindspore

    override = {"optimizer": ["learning_rate"]}
    first = Training(0.1).saved(tmp_path / "a.ckpt")
    here = first.loaded(Training(0.02, momentum=0.8, override=override))
    assert here.rate == close(0.02)
    assert here.optimizer.momentum.asnumpy() == close(0.9)
    assert "optimizer.learning_rate was built as 0.1 and is 0.02 now" in said("overridden")[0]

    # The script still says so behind the next failure, where it is nothing new.
    here.optimizer.learning_rate.set_data(mindspore.Tensor(0.005, mindspore.float32))
    again = here.saved(tmp_path / "b.ckpt").loaded(Training(0.02, momentum=0.9, override=override))
    assert again.rate == close(0.005)
    assert len(said("overridden")) == 1


def test_what_a_start_was_only_told_of_may_be_overridden_by_a_later_one(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    told = Training(0.1).saved(tmp_path / "a.ckpt").loaded(Training(0.02))
    here = told.saved(tmp_path / "b.ckpt").loaded(Training(0.02, override={"optimizer": ["learning_rate"]}))
    assert here.rate == close(0.02)
    assert "built as 0.1 and is 0.02 now" in said("overridden")[0]


def test_rates_in_a_list_are_named(tmp_path: Path, said: Callable[[str], list[str]]) -> None:
    first = Training([0.1, 0.2, 0.3]).saved(tmp_path / "a.ckpt")
    override = {"optimizer": ["learning_rate"]}
    assert first.loaded(
        Training([0.1, 0.25, 0.3])
    ).optimizer.learning_rate.learning_rate.asnumpy().tolist() == (close(0.1, 0.2, 0.3))
    (line,) = said("changed_since_checkpoint")
    assert "optimizer.learning_rate was built as 3 values (0.1 to 0.3, sha256 " in line
    for other in ([0.1, 0.2], 0.1):
        with pytest.raises(CheckpointStateError, match=r"optimizer\.learning_rate: was built as 3 values"):
            first.loaded(Training(other))
    here = first.loaded(Training([0.1, 0.2], override=override))
    assert here.optimizer.learning_rate.learning_rate.asnumpy().tolist() == close(0.1, 0.2)


def test_rates_of_groups_are_overridden_together_or_by_their_own_name(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    first = Training(0.1, grouped=True).saved(tmp_path / "a.ckpt")
    first.loaded(Training(0.2, grouped=True))
    assert (
        "optimizer.learning_rate_group_0 was built as 0.1 and is 0.2 now"
        in said("changed_since_checkpoint")[0]
    )
    for name in ("learning_rate", "learning_rate_group_0"):
        here = first.loaded(Training(0.2, grouped=True, override={"optimizer": [name]}))
        assert here.optimizer.learning_rate[0].asnumpy() == close(0.2)


def test_what_no_checkpoint_has_is_named_and_is_that_of_now(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    from mindspore import nn

    def decaying(factor: float) -> Any:
        return nn.ExponentialDecayLR(0.1, factor, 4)

    first = Training(decaying(0.9), weight_decay=0.01).saved(tmp_path / "a.ckpt")
    first.loaded(Training(decaying(0.9), weight_decay=0.01))
    assert not said("changed_since_checkpoint")
    first.loaded(Training(decaying(0.8), weight_decay=0.02))
    lines = said("changed_since_checkpoint")
    assert len(lines) == 2
    assert "optimizer.weight_decay was 0.01 and is 0.02 now, which is gone on with" in lines[0]
    assert "optimizer.learning_rate.decay_rate was 0.9 and is 0.8 now" in lines[1]

    # A rate that was a Parameter is what a schedule gives now.
    Training(0.1).saved(tmp_path / "b.ckpt").loaded(Training(decaying(0.9)))
    assert "optimizer.learning_rate was 0.1 and is not there now" in said("changed_since_checkpoint")[-1]


def test_options_of_mint_are_named(said: Callable[[str], list[str]]) -> None:
    """Its rates are no Parameters of the cell, so that no checkpoint has them."""
    from mindspore import mint, nn

    from recovery.mindspore.built import Built

    def built(**options: Any) -> Built:
        net = nn.Dense(1, 1)
        first, second = net.trainable_params()
        optimizer = mint.optim.AdamW([{"params": [first]}, {"params": [second], "lr": 0.5}], **options)
        return Built(net, optimizer, Training().division, None)

    first = built(lr=0.1).said()
    built(lr=0.1).compare(first)
    assert not said("changed_since_checkpoint")
    built(lr=0.2, weight_decay=0.3).compare(first)
    rate, decay, of_other = said("changed_since_checkpoint")
    assert "optimizer.lr was 0.1 and is 0.2 now, which is gone on with" in rate
    assert "optimizer.weight_decay was 0.01 and is 0.3 now" in decay
    assert "optimizer.weight_decay_group_1 was 0.01 and is 0.3 now" in of_other


def test_a_loss_scale_is_named_and_overridden(tmp_path: Path, said: Callable[[str], list[str]]) -> None:
    """Of a train network that the script has made by itself."""
    import mindspore
    from mindspore import nn

    from recovery.mindspore.built import Built, optimizer_in

    def built(scale: float, override: Any = None) -> Built:
        net = nn.WithLossCell(nn.Dense(1, 1), nn.MSELoss())
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        around = nn.TrainOneStepWithLossScaleCell(
            net, optimizer, scale_sense=mindspore.Tensor(scale, mindspore.float32)
        )
        assert optimizer_in(around) is optimizer
        return Built(around, optimizer, Training().division, override, around=around)

    first = built(8.0).said()
    assert first["network.parameters"] == "2"
    built(8.0).compare(first)
    assert not said("changed_since_checkpoint")
    built(4.0).compare(first)
    assert "train_network.scale_sense was built as 8.0 and is 4.0 now" in said("changed_since_checkpoint")[0]
    here = built(4.0, {"train_network": ["scale_sense"]})
    here.compare(first)
    assert here.overridden == {"scale_sense"}


def test_a_network_of_another_size_is_refused(tmp_path: Path) -> None:
    first = Training(hidden=3).saved(tmp_path / "a.ckpt")
    with pytest.raises(
        CheckpointStateError, match="network: has 7 parameters, and had 10 where it was saved"
    ):
        first.loaded(Training(hidden=2))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"optimiser": ["learning_rate"]}, "names the part 'optimiser'"),
        ({"optimizer": ["lr"]}, r"names \['lr'\] of 'optimizer', and what may be named there"),
        ({"optimizer": "learning_rate"}, "in a list"),
        ({"dataset": ["seed"]}, r"in a list, is \['batch_size'\]"),
    ],
)
def test_a_name_of_nothing_is_refused(override: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        Training(override=override)


def test_within_an_epoch_another_division_is_refused_by_name() -> None:
    first = Training(batch=4).state.built()
    at = Position(step=4, epoch=0, batch=4)
    same = Training(batch=4)
    same.state.compare(first)
    assert same.state.take_position(at, exact=True) == at
    assert same.next_rows() == [16, 17, 18, 19]
    other = Training(batch=2)
    other.state.compare(first)
    with pytest.raises(
        CheckpointStateError, match="batch_size was 4 and is 2, batches_per_epoch was 6 and is 12, so batch 4"
    ):
        other.state.take_position(at, exact=True)


@pytest.mark.parametrize("at", [Position(step=6, epoch=0, batch=6), Position(step=6, epoch=1, batch=0)])
def test_between_two_epochs_the_next_one_may_be_another(
    at: Position, said: Callable[[str], list[str]]
) -> None:
    here = Training(batch=2)
    here.state.compare(Training(batch=4).state.built())
    assert here.state.take_position(at, exact=True) == Position(step=6, epoch=1, batch=0)
    assert here.next_rows() == [0, 1]
    assert "batch_size was 4 and is 2" in said("division_changed")[0]

    # Its own checkpoints are no other place, though its steps are more than its epochs say.
    again = Training(batch=2)
    again.state.compare(here.state.built())
    at = Position(step=9, epoch=1, batch=3)
    assert again.state.take_position(at, exact=True) == at
    assert again.next_rows() == [6, 7]


def test_another_batch_size_is_taken_where_it_is_asked_for() -> None:
    first = Training(batch=4).state.built()
    at, override = Position(step=3, epoch=0, batch=3), {"dataset": ["batch_size"]}
    here = Training(batch=2, override=override)
    here.state.compare(first)
    assert here.state.take_position(at, exact=True) == Position(step=3, epoch=0, batch=6)
    assert here.next_rows() == [12, 13]
    other = Training(batch=8, override=override)
    other.state.compare(first)
    with pytest.raises(CheckpointStateError, match="the 12 rows behind are no whole number of batches"):
        other.state.take_position(at, exact=True)


def test_rows_are_counted_only_where_nothing_is_done_with_batches() -> None:
    import numpy as np
    from mindspore import dataset as ds

    from recovery.mindspore.division import Division

    def division(batch: int, change: Callable[[Any], Any]) -> Division:
        rows = np.arange(24, dtype=np.float32).reshape(24, 1)
        data = change(ds.NumpySlicesDataset((rows,), ["x"], shuffle=False).batch(batch))
        made = Division(data, int(data.get_dataset_size()))
        made.redivides = True
        return made

    at = Position(step=3, epoch=0, batch=3)
    changes: list[Callable[[Any], Any]] = [
        lambda data: data.repeat(2),
        lambda data: data.shuffle(3),
        lambda data: data.skip(1),
    ]
    for change in changes:
        here = division(2, change)
        here.saved = division(4, change).now
        with pytest.raises(CheckpointStateError, match="the rows behind cannot be counted"):
            here.place(at)
    here = division(2, lambda data: data.map(lambda row: row, "x").rename("x", "row"))
    here.saved = division(4, lambda data: data).now
    assert here.place(at).batch == 6


def test_another_order_is_refused_within_an_epoch() -> None:
    from mindspore import set_seed

    at = Position(step=4, epoch=0, batch=4)
    set_seed(1)
    first = Training(shuffle=True).state.built()
    set_seed(2)
    for other, expected in (
        (Training(shuffle=True), "seed was 1 and is 2"),
        (Training(), "order was RandomSampler"),
    ):
        other.state.compare(first)
        with pytest.raises(CheckpointStateError, match=expected):
            other.state.take_position(at, exact=True)


def test_a_shuffle_without_a_seed_is_said_at_once(said: Callable[[str], list[str]]) -> None:
    """Nothing that could be compared tells that its order is another one at each start."""
    from mindspore import dataset as ds

    ds.config.set_seed(5489)
    Training()
    assert not said("shuffle_without_seed")
    Training(shuffle=True)
    assert said("shuffle_without_seed")
    ds.config.set_seed(1)
    Training(shuffle=True)
    assert len(said("shuffle_without_seed")) == 1


def test_a_checkpoint_of_an_earlier_release_says_nothing_of_it(
    tmp_path: Path, said: Callable[[str], list[str]]
) -> None:
    first = Training(0.1).saved(tmp_path / "a.ckpt")
    first.said = {"mindspore": first.said["mindspore"]}
    here = first.loaded(Training(0.02, batch=2))
    assert here.rate == close(0.1)
    assert here.state.take_position(Position(step=4, epoch=0, batch=4), exact=True).batch == 4
    assert not said("changed_since_checkpoint")
    first = Training([0.1, 0.2, 0.3]).saved(tmp_path / "b.ckpt")
    first.said = {}
    with pytest.raises(
        CheckpointStateError, match=r"learning_rate was saved with shape \(3,\), and has \(2,\)"
    ):
        first.loaded(Training([0.1, 0.2]))


def test_another_script_is_a_condition_that_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from recovery.mindspore.state import versions
    from recovery.training import changed_since

    script = tmp_path / "train.py"
    script.write_text("rate = 1\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    changed_since.script.cache_clear()
    assert versions().keys() == {"mindspore", "script"}
    changed_since.script.cache_clear()
