"""MindSpore's CheckpointConfig: its order, its precedence, its refusals."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from recovery.errors import SettingError
from recovery.training.checkpoint_config import CheckpointConfig


def test_names_order_and_defaults_are_those_of_mindspore() -> None:
    parameters = inspect.signature(CheckpointConfig).parameters

    assert [(name, one.default) for name, one in parameters.items()] == [
        ("save_checkpoint_steps", 1),
        ("save_checkpoint_seconds", 0),
        ("keep_checkpoint_max", 5),
        ("keep_checkpoint_per_n_minutes", 0),
        ("integrated_save", True),
        ("async_save", False),
    ]


def test_the_seeds_configuration_is_taken_by_name_and_by_place() -> None:
    named = CheckpointConfig(save_checkpoint_steps=100, keep_checkpoint_max=5)

    assert named == CheckpointConfig(100, 0, 5, 0, True, False)
    assert (named.save_checkpoint_steps, named.keep_checkpoint_max) == (100, 5)
    assert named.integrated_save
    assert not named.async_save


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        ({"save_checkpoint_steps": 10, "save_checkpoint_seconds": 60}, (10, 0, 5, 0)),
        ({"save_checkpoint_steps": 0, "save_checkpoint_seconds": 60}, (0, 60, 5, 0)),
        ({"save_checkpoint_steps": None, "save_checkpoint_seconds": 60}, (0, 60, 5, 0)),
        ({"keep_checkpoint_max": 3, "keep_checkpoint_per_n_minutes": 10}, (1, 0, 3, 0)),
        ({"keep_checkpoint_max": 0, "keep_checkpoint_per_n_minutes": 10}, (1, 0, 0, 10)),
        ({"keep_checkpoint_max": None, "keep_checkpoint_per_n_minutes": 10}, (1, 0, 0, 10)),
        ({"keep_checkpoint_max": None}, (1, 0, 1, 0)),
        ({"save_checkpoint_steps": 0}, (0, 0, 5, 0)),
    ],
)
def test_steps_win_over_seconds_and_the_number_over_minutes(
    given: dict[str, Any], settled: tuple[int, int, int, int]
) -> None:
    config = CheckpointConfig(**given)

    assert settled == (
        config.save_checkpoint_steps,
        config.save_checkpoint_seconds,
        config.keep_checkpoint_max,
        config.keep_checkpoint_per_n_minutes,
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "the state is saved at every step, the newest 5 stay"),
        ({"save_checkpoint_steps": 100}, "the state is saved every 100 steps, the newest 5 stay"),
        (
            {
                "save_checkpoint_steps": 0,
                "save_checkpoint_seconds": 60,
                "keep_checkpoint_max": 0,
                "keep_checkpoint_per_n_minutes": 10,
            },
            "the state is saved every 60 s, one per 10 minutes stays",
        ),
        ({"save_checkpoint_steps": 0}, "the state is saved behind the last step, the newest 5 stay"),
    ],
)
def test_it_says_when_it_saves_and_what_stays(given: dict[str, Any], said: str) -> None:
    assert CheckpointConfig(**given).sentence == said


@pytest.mark.parametrize("nothing", [None, 0])
def test_all_none_or_zero_is_refused(nothing: int | None) -> None:
    with pytest.raises(SettingError, match=r"SETTING_RANGE: .*can't be all None or 0"):
        CheckpointConfig(nothing, nothing, nothing, nothing)


_NUMBERS = (
    "save_checkpoint_steps",
    "save_checkpoint_seconds",
    "keep_checkpoint_max",
    "keep_checkpoint_per_n_minutes",
)


@pytest.mark.parametrize("field", _NUMBERS)
def test_a_negative_number_is_refused_by_name(field: str) -> None:
    with pytest.raises(
        SettingError, match=f"SETTING_RANGE: .*{field}=-1: must be a whole number from 0"
    ) as caught:
        CheckpointConfig(**{field: -1})  # type: ignore[arg-type]  # one of many fields
    assert caught.value.parts["field"] == field


@pytest.mark.parametrize("field", [*_NUMBERS, "integrated_save", "async_save"])
@pytest.mark.parametrize("value", ["5", 1.5, [5]])
def test_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(
        SettingError, match=f"SETTING_TYPE: .*{field}=.*must be .*not {type(value).__name__}"
    ) as caught:
        CheckpointConfig(**{field: value})
    assert caught.value.parts["value"] == value


@pytest.mark.parametrize(("field", "value"), [("keep_checkpoint_max", True), ("integrated_save", 1)])
def test_true_is_no_number_and_one_no_switch(field: str, value: Any) -> None:
    with pytest.raises(SettingError, match="SETTING_TYPE"):
        CheckpointConfig(**{field: value})


@pytest.mark.parametrize(
    "config",
    [
        CheckpointConfig(),
        CheckpointConfig(keep_checkpoint_max=2),
        CheckpointConfig(keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=1),
        CheckpointConfig(0, 30),
    ],
)
def test_recovery_takes_what_keeps_two_or_goes_by_minutes(config: CheckpointConfig) -> None:
    config.check_for_recovery()


@pytest.mark.parametrize("kept", [1, 0, None])
def test_recovery_refuses_to_keep_only_one_and_names_the_reason(kept: int | None) -> None:
    with pytest.raises(
        SettingError, match=r"SETTING_RANGE: .*keep_checkpoint_max=1: must be at least 2 .*half-way"
    ):
        CheckpointConfig(keep_checkpoint_max=kept).check_for_recovery()


def test_recovery_refuses_a_configuration_without_a_time_to_save() -> None:
    with pytest.raises(
        SettingError, match=r"SETTING_RANGE: .*save_checkpoint_steps=0: .*nothing to go back to"
    ):
        CheckpointConfig(save_checkpoint_steps=0).check_for_recovery()


def test_a_configuration_cannot_be_changed_past_its_checks() -> None:
    with pytest.raises(AttributeError):
        CheckpointConfig().keep_checkpoint_max = 0  # type: ignore[misc]  # it is frozen
