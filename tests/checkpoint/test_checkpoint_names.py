"""Names are MindSpore's, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.checkpoint import names
from recovery.checkpoint.names import CheckpointName
from recovery.errors import UsageError

_PREFIXES = st.text(min_size=1, max_size=40).filter(
    lambda text: (
        text.isprintable() and "/" not in text and not text.startswith(".") and len(text.encode()) <= 128
    )
)
_NUMBERS = st.integers(min_value=1, max_value=10**16 - 1)


@given(_PREFIXES, _NUMBERS, _NUMBERS)
def test_every_name_made_is_read_back(prefix: str, epoch: int, step_in_epoch: int) -> None:
    name = names.file_name(prefix, epoch=epoch, step_in_epoch=step_in_epoch)

    assert names.parse(name) == CheckpointName(prefix=prefix, epoch=epoch, step_in_epoch=step_in_epoch)
    assert len(f".{name}.{2**22}-{'0' * 16}.tmp".encode()) <= 255


@given(st.text())
def test_a_name_that_is_read_is_one_that_is_made(name: str) -> None:
    parsed = names.parse(name + ".ckpt")

    if parsed is not None:
        made = names.file_name(parsed.prefix, epoch=parsed.epoch, step_in_epoch=parsed.step_in_epoch)
        assert made == name + ".ckpt"


def test_the_form_is_that_of_mindspore() -> None:
    assert names.file_name("train", epoch=2, step_in_epoch=400) == "train-2_400.ckpt"
    assert names.manifest_path(Path("/there/train-2_400.ckpt")) == Path("/there/train-2_400.json")


def test_the_last_dash_divides_prefix_from_place() -> None:
    assert names.parse("my-net-1_2-3_4.ckpt") == CheckpointName(prefix="my-net-1_2", epoch=3, step_in_epoch=4)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "train-2_400.json",
        "train-2_400.ckpt.tmp",
        ".train-2_400.ckpt.4711-0123456789abcdef.tmp",
        ".train-2_400.ckpt",
        "train-0_1.ckpt",
        "train-1_0.ckpt",
        "train-01_1.ckpt",
        "train-1_1.CKPT",
        "train_1-1.ckpt",
        "train-1.ckpt",
        "-1_1.ckpt",
        "train-\u0661_1.ckpt",
        "train-1_1.ckpt\n",
        "a\nb-1_1.ckpt",
        "../train-1_1.ckpt",
        "a/b-1_1.ckpt",
        "train-1_99999999999999999.ckpt",
        "train\udcff-1_1.ckpt",
        "p" * 129 + "-1_1.ckpt",
        "train_breakpoint.ckpt",
    ],
)
def test_anything_else_is_no_checkpoint(name: str) -> None:
    assert names.parse(name) is None


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("", "empty"),
        ("a/b", "slash"),
        ("..", "dot"),
        (".hidden", "dot"),
        ("a\nb", "printed"),
        ("a\0b", "printed"),
        ("p" * 129, "longer than 128 bytes"),
        ("\u00e4" * 65, "longer than 128 bytes"),
    ],
)
def test_a_prefix_that_leads_astray_is_refused_with_the_reason(prefix: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        names.file_name(prefix, epoch=1, step_in_epoch=1)


@pytest.mark.parametrize(("epoch", "step"), [(0, 1), (1, 0)])
def test_places_count_from_one(epoch: int, step: int) -> None:
    with pytest.raises(AssertionError, match="count from 1"):
        names.file_name("train", epoch=epoch, step_in_epoch=step)
