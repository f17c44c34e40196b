"""The scripts of the soak over scripts: by face, what each may do that is hard to go on with, and which of it is drawn."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.trainers.lightning_cluster import LIGHTNING
from tests.warm.process import PLAIN, TORCH

_TRAINERS = Path(__file__).parents[1] / "trainers"
_MOST_FEATURES = 3
_LIST, _ARGUMENTS = ("JOB_CALLBACKS", "JOB_FEATURES"), "JOB_ARGUMENTS"
"""Variables that several features share: words, and a dictionary."""

Variables = Mapping[str, str]


class Face(NamedTuple):
    """One way to write a script."""

    script: Path
    package: str
    """What must be installed."""
    imports: tuple[str, ...]
    base: Variables
    data: Mapping[str, Variables]
    """One of them is drawn."""
    features: Mapping[str, Variables]
    """Up to three of them are."""
    apart: tuple[frozenset[str], ...] = ()
    """No two of each set are in one script: its framework, or what they are, forbids it."""


class Form(NamedTuple):
    """One script of a face."""

    face: str
    chosen: tuple[str, ...]
    workers: int

    @property
    def name(self) -> str:
        """For a directory."""
        return "-".join([self.face, str(self.workers), *self.chosen])

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the script."""
        face = FACES[self.face]
        return _joined(
            [face.base, face.data[self.chosen[0]], *(face.features[name] for name in self.chosen[1:])]
        )


def drawn(face: str, draw: random.Random) -> Form:
    """A script of a face."""
    of = FACES[face]
    chosen = [draw.choice([*of.data])]
    for name in draw.sample([*of.features], draw.randint(1, _MOST_FEATURES)):
        if all(name not in some or not some.intersection(chosen) for some in of.apart):
            chosen.append(name)
    return Form(face, (chosen[0], *sorted(chosen[1:])), workers=draw.choice((2, 2, 2, 3)))


def _joined(parts: Iterable[Variables]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in (pair for part in parts for pair in part.items()):
        if name in _LIST:
            found[name] = f"{found.get(name, '')} {value}".strip()
        elif name == _ARGUMENTS:
            found[name] = json.dumps(
                {**json.loads(found.get(name, "{}")), **json.loads(value)}, sort_keys=True
            )
        else:
            found[name] = value
    return found


def _arguments(**chosen: object) -> Variables:
    return {_ARGUMENTS: json.dumps(chosen)}


_EVALUATED = {"eval_strategy": "steps", "eval_steps": 4}
_BEST = {**_EVALUATED, "metric_for_best_model": "loss", "load_best_model_at_end": True}

FACES: dict[str, Face] = {
    "lightning": Face(
        _TRAINERS / "lightning_job.py",
        "lightning",
        LIGHTNING,
        {"JOB_EPOCHS": "6"},
        {
            "rows": {},
            "workers": {"JOB_LOADER_WORKERS": "1"},
            "two_loaders": {"JOB_LOADERS": "two"},
            "stream": {"JOB_LOADERS": "stream"},
        },
        {
            **{
                name: {"JOB_CALLBACKS": name}
                for name in ("accumulation", "averaging", "backbone", "pruning", "hooks")
            },
            "accumulates": {"JOB_ACCUMULATE": "2"},
            "validates_twice": {"JOB_VAL_EVERY": "0.5"},
        },
        (
            frozenset({"accumulation", "accumulates"}),
            frozenset({"averaging", "pruning"}),
            frozenset({"stream", "validates_twice"}),
            frozenset({"stream", "averaging"}),
        ),
    ),
    "transformers": Face(
        _TRAINERS / "transformers_job.py",
        "transformers",
        (*TORCH, "accelerate", "transformers.trainer", "transformers.training_args", "safetensors.torch"),
        _arguments(num_train_epochs=4),
        {
            "rows": {},
            "workers": _arguments(dataloader_num_workers=1),
            "balanced": {**_arguments(train_sampling_strategy="batch_rebalance"), "JOB_LENGTHS": "1"},
            "set_epoch": {"JOB_PASSES": "1"},
            "stream": {**_arguments(max_steps=64), "JOB_STREAM": "144"},
        },
        {
            "best": _arguments(**_BEST, save_strategy="best"),
            "best_of_all": _arguments(**_BEST, save_steps=4),
            "asks": {**_arguments(**_EVALUATED), "JOB_ASKS": "1"},
            "unfreezes": {**_arguments(ddp_find_unused_parameters=True), "JOB_UNFREEZES": "1"},
            "adds": {"JOB_ADDS": "1"},
            "accumulates": _arguments(gradient_accumulation_steps=2),
            "plateau": _arguments(**_EVALUATED, lr_scheduler_type="reduce_lr_on_plateau"),
        },
        (
            frozenset({"best", "best_of_all"}),
            frozenset({"unfreezes", "adds"}),
            frozenset({"adds", "plateau"}),
        ),
    ),
    "accelerate": Face(
        _TRAINERS / "accelerate_job.py",
        "accelerate",
        (*TORCH, "accelerate"),
        {"JOB_EPOCHS": "4", "JOB_SAVE_STEPS": "4"},
        {"rows": {}, "workers": {"JOB_NUM_WORKERS": "1"}, "stream": {"JOB_STREAM": "144"}},
        {
            "accumulates": {"JOB_ACCUMULATION": "2"},
            "adds": {"JOB_ADDS": "1"},
            "unfreezes": {"JOB_UNFREEZES": "1"},
            "saves_at_ends": {"JOB_SAVE_STEPS": "0"},
        },
        (frozenset({"adds", "unfreezes"}),),
    ),
    "plain": Face(
        Path(__file__).with_name("plain_job.py"),
        "recovery",
        PLAIN,
        {},
        {"run": {}, "init": {"JOB_FEATURES": "init"}},
        {name: {"JOB_FEATURES": name} for name in ("often", "async", "evaluates")},
    ),
    "three_lines": Face(
        Path(__file__).with_name("three_lines_job.py"),
        "torch",
        TORCH,
        {},
        {
            name: {"JOB_DATA": name}
            for name in ("plain", "workers", "stream", "weights", "function", "iterator")
        },
        {name: {"JOB_FEATURES": name} for name in ("freezes", "hook", "group", "generator", "accumulates")},
        (frozenset({"freezes", "hook"}),),
    ),
}
