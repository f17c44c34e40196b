"""What the program has built, as a checkpoint's manifest says it, and what of it is otherwise than in the program that saved: said by name.

A learning rate and its like are Parameters: MindSpore saves and loads them with the weights, so that a checkpoint's is in force behind a load,
whatever the program has built, unless an override takes that of now. What is no Parameter (a weight decay, a schedule) no checkpoint has.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mindspore import Parameter, Tensor, nn

from recovery.errors import CheckpointStateError
from recovery.mindspore.division import Division
from recovery.training import changed_since
from recovery.training.changed_since import Override

_logger = logging.getLogger("recovery.mindspore")

_OPTIMIZER, _NETWORK, _DATASET = "optimizer", "train_network", "dataset"
_COUNT = "network.parameters"
_SIZE = "batch_size"
_RATE = "learning_rate"
_NUMBERS_MAX = 64
"""Of a value that is no Parameter: more are data of the user's."""
_COUNTERS = frozenset({"global_step", "beta1_power", "beta2_power", "afactor_step"})
"""Parameters that say where training stands."""
_DERIVED = frozenset(
    {"init_learning_rate", "reciprocal_scale", "param_length", "global_step_increase_tensor"}
)
"""Follow from what is said by another name, or from the weights."""


class Built:
    """Noted before anything is loaded."""

    def __init__(
        self,
        network: Any,
        optimizer: Any,
        division: Division,
        override: Override | None,
        *,
        around: Any = None,
    ) -> None:
        """Look at what there is.

        Args:
            network: whose parameters are counted.
            optimizer: of its parameters; None: there is none.
            division: of the data set.
            override: names of what is to be as the program builds it, where a checkpoint says otherwise.
            around: a cell that has both, and more perhaps.

        Raises:
            UsageError: the override names what there is not.
        """
        self._division, self._override = division, override or {}
        own = {id(one) for one in _of(optimizer)} - {id(one) for one in _trained(optimizer)}
        options = {f"{_OPTIMIZER}.{one.name}": one for one in _options(optimizer)}
        others = [] if around is None else [one for one in _others(around, optimizer) if id(one) not in own]
        own |= {id(one) for one in others}
        self._count = sum(int(one.size) for one in network.get_parameters() if id(one) not in own)
        self._parameters = {**options, **{f"{_NETWORK}.{one.name}": one for one in others}}
        self._kept = {where: _numbers(one) for where, one in self._parameters.items()}
        """Parameters: a checkpoint has them."""
        self._plain = dict(_attributes(optimizer)) if optimizer is not None else {}
        """A checkpoint has them not."""
        self._in_force = dict(self._kept)
        self.overridden: frozenset[str] = frozenset()
        """Names of Parameters that are not to be loaded."""
        self._check()

    def said(self) -> dict[str, str]:
        """For the manifest: what is in force. What a start is only told of stays as the checkpoint has it, so that a later one may override it."""
        division = {f"{_DATASET}.{name}": value for name, value in self._division.now.items()}
        return {_COUNT: str(self._count), **self._plain, **self._in_force, **division}

    def compare(self, saved: Mapping[str, str]) -> None:
        """Before a load: say what the checkpoint's program had built otherwise. What it does not say (an earlier release) is not compared.

        Raises:
            CheckpointStateError: it cannot be loaded into what is built here.
        """
        inside = f"{_DATASET}."
        self._division.saved = {
            name.removeprefix(inside): value for name, value in saved.items() if name.startswith(inside)
        }
        if saved.get(_COUNT, str(self._count)) != str(self._count):
            raise CheckpointStateError(
                field="network",
                reason=f"has {self._count} parameters, and had {saved[_COUNT]} where it was saved",
                next_step="Build the network that it was saved from, or choose another MS_RECOVERY_PATH.",
            )
        overridden = set()
        for where, now in self._kept.items():
            if not self._is_other(where, saved):
                continue
            if self._is_overridden(where):
                changed_since.say_taken(_logger, where, saved[where], now)
                overridden.add(str(self._parameters[where].name))
                continue
            if _how_many(saved[where]) != _how_many(now):
                raise _of_another_length(where, saved[where], now)
            self._in_force[where] = saved[where]
            changed_since.say_kept(_logger, where, saved[where], now, name=_name(where))
        self.overridden = frozenset(overridden)
        self._say_options_without_parameter(saved)

    def _say_options_without_parameter(self, saved: Mapping[str, str]) -> None:
        """What no checkpoint has is that of now. A rate that was a Parameter may be a schedule now, and the other way round is refused at the load."""
        for where in sorted(saved.keys() - self._kept.keys() - self._plain.keys()):
            if where.startswith(f"{_OPTIMIZER}.{_RATE}"):
                changed_since.say_gone_on_with(_logger, where, saved[where], "not there")
        for where, now in self._plain.items():
            if self._is_other(where, saved):
                say = (
                    changed_since.say_taken if self._is_overridden(where) else changed_since.say_gone_on_with
                )
                say(_logger, where, saved[where], now)

    def _is_other(self, where: str, saved: Mapping[str, str]) -> bool:
        now = self._kept.get(where) or self._plain[where]
        return saved.get(where, now) != now

    def _is_overridden(self, where: str) -> bool:
        part, key = _name(where)
        return not {key, where.partition(".")[2]}.isdisjoint(self._override.get(part, ()))

    def _check(self) -> None:
        known: dict[str, set[str]] = {_OPTIMIZER: set(), _DATASET: {_SIZE}}
        for where in (*self._kept, *self._plain):
            part, key = _name(where)
            known.setdefault(part, set()).update((key, where.partition(".")[2]))
        for part, keys in self._override.items():
            if part not in known:
                reason = f"names the part {part!r}, and the parts are {sorted(known)}"
            elif isinstance(keys, str) or not known[part].issuperset(keys):
                reason = f"names {keys!r} of {part!r}, and what may be named there, in a list, is {sorted(known[part])}"
            else:
                continue
            raise changed_since.refused(reason, example=_RATE)
        self._division.redivides = _SIZE in self._override.get(_DATASET, ())


def _name(where: str) -> tuple[str, str]:
    """Part and name by which an override takes it: those of all groups of weights have one."""
    part, _, name = where.partition(".")
    return part, re.sub(r"_group_[0-9]+$", "", name)


def optimizer_in(cell: Any) -> Any:
    """Of a cell that trains; None: it has none of MindSpore's."""
    return next((one for _, one in cell.cells_and_names() if isinstance(one, nn.Optimizer)), None)


def _of(cell: Any) -> list[Parameter]:
    return [] if cell is None else list(cell.get_parameters())


def _trained(optimizer: Any) -> list[Parameter]:
    return list(getattr(optimizer, "parameters", ()))


def _others(around: Any, optimizer: Any) -> list[Parameter]:
    """What a cell that trains has for itself, as a loss scale."""
    trained = {id(one) for one in _trained(optimizer)}
    return [one for one in around.get_parameters(expand=False) if id(one) not in trained and one.size == 1]


def _options(optimizer: Any) -> Iterator[Parameter]:
    """Parameters that are neither weights, nor kept for one, nor count something."""
    weights = {id(one) for one in _trained(optimizer)}
    ends = tuple(f"{mark}{one.name}" for one in _trained(optimizer) for mark in "._")
    for one in _of(optimizer):
        is_rate = re.fullmatch(rf"{_RATE}(_group_[0-9]+)?", one.name)
        if id(one) in weights or one.name in _COUNTERS or one.ndim > 1:
            continue
        if is_rate or not one.name.endswith(ends):
            yield one


def _attributes(optimizer: Any) -> Iterator[tuple[str, str]]:
    """Plain values of the optimizer, of its groups of weights (mindspore.mint) and of its schedules."""
    saved = {id(one) for one in _of(optimizer)}
    for number, group in enumerate(getattr(optimizer, "param_groups", ())):
        for key, value in group.items():
            said = _numbers(value) if isinstance(value, Parameter) else _plain(value)
            if said is not None and id(value) not in saved:
                yield f"{_OPTIMIZER}.{key}" + (f"_group_{number}" if number else ""), said
    of_any_cell = vars(nn.Cell())
    for name, cell in optimizer.cells_and_names():
        for key, value in vars(cell).items():
            if key in of_any_cell or key in _DERIVED or key.startswith("_") or _is_flag(key):
                continue
            said = _plain(value)
            if said is not None:
                yield ".".join(filter(None, (_OPTIMIZER, name, key))), said


def _is_flag(key: str) -> bool:
    """What the optimizer has found out of what it was given."""
    return key.startswith(("is_group", "dynamic_", "exec_", "use_parallel", "decay_flags", "optim_filter"))


def _plain(value: Any) -> str | None:
    """In words; None: it is nothing of the kind."""
    if isinstance(value, Parameter):
        return None
    if isinstance(value, Tensor):
        return _numbers(value) if value.size <= _NUMBERS_MAX else None
    if isinstance(value, (list, tuple)) and len(value) <= _NUMBERS_MAX:
        parts = [_plain(one) for one in value]
        return None if None in parts else f"[{', '.join(str(one) for one in parts)}]"[:1000]
    return str(value)[:1000] if isinstance(value, (bool, int, float, str)) else None


def _numbers(tensor: Any) -> str:
    """Of one its value; of many how many, the first, the last, and a digest of all."""
    values = tensor.asnumpy()
    if values.ndim == 0:
        return str(values[()])
    flat = values.reshape(-1)
    ends = f"{flat[0]!s} to {flat[-1]!s}, " if flat.size else ""
    return f"{flat.size} values ({ends}sha256 {hashlib.sha256(flat.tobytes()).hexdigest()[:8]})"


def _how_many(said: str) -> str:
    found = re.match(r"([0-9]+) values \(", said)
    return found[1] if found else ""


def _of_another_length(where: str, was: str, now: str) -> CheckpointStateError:
    part, key = _name(where)
    return CheckpointStateError(
        field=where,
        reason=f"was built as {was} and is {now} now, into which the checkpoint's does not fit",
        next_step=f'Build as many as before, or take those of now: override={{"{part}": ["{key}"]}}.',
    )
