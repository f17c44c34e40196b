"""How many workers a host has where that is not typed: as many as it was asked for GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from recovery.errors import SettingError

_ON_A_HOST = re.compile(r"(?:[^:=,]+:)?([0-9]{1,4})")
"""Of `--gpus-per-node`: 4, or a100:4."""
_IN_GRES = re.compile(r"(?:gres[:/])?gpu(?:[:/][^:=,]+)?[:=]([0-9]{1,4})")
"""Of `--gres`: gpu:4, or gpu:a100:4."""
_OF_A_GPU = re.compile(r"(?:gres[:/])?gpu(?![^:=/])")
_ELSEWHERE = ("gpus", "gpus-per-task", "gpus-per-socket")
"""Options that say of GPUs, and not how many of them a host has."""


class Workers(NamedTuple):
    """Of each host."""

    number: int
    """0: nothing says how many."""
    note: str
    """For who submits the job."""


def read(sbatch: Sequence[str]) -> Workers:
    """Read sbatch's options, of which the last one of a name holds.

    Raises:
        SettingError: they ask for GPUs, and leave open how many of them a host has.
    """
    # Slurm's short form has its value behind it: -G8.
    words = [re.sub(r"^-G=?", "--gpus=", word) for word in sbatch]
    given = {word.lstrip("-").partition("=")[0]: word for word in words}
    found: dict[int, str] = {}
    for name, word in given.items():
        value = word.partition("=")[2]
        counts = _counts(name, value)
        if len(counts) > 1 or None in counts:
            raise _refuse(name, value)
        found |= {count: word for count in counts if count}
    if len(found) > 1:
        raise _refuse(*next(iter(found.values())).lstrip("-").split("=", 1))
    if not found:
        return Workers(0, "each host has one worker: give --nproc-per-node=N behind -- for more")
    [(count, word)] = found.items()
    return Workers(count, f"each host has --nproc-per-node={count} workers, by {word}")


def _counts(name: str, value: str) -> list[int | None]:
    """GPUs of a host by one option, one number for each kind; None: it leaves that open."""
    if name == "gpus-per-node":
        return [_number(_ON_A_HOST, part) for part in value.split(",")]
    if name == "gres":
        return [_number(_IN_GRES, part) for part in value.split(",") if _OF_A_GPU.match(part)]
    return [None] if name in _ELSEWHERE else []


def _number(form: re.Pattern[str], text: str) -> int | None:
    found = form.fullmatch(text)
    return int(found[1]) if found else None


def _refuse(name: str, value: str) -> SettingError:
    return SettingError(
        "SETTING_RANGE",
        field=f"--{name}",
        value=value,
        rule="leaves open how many workers a host has",
        next_step="Say it behind --, for example: -- --nproc-per-node=4 train.py.",
    )
