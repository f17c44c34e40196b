"""Random generators of the program's own making, as parts of a training state: torch's, NumPy's and Python's."""

from __future__ import annotations

import json
import random  # noqa: TID251 - its class, and the state of a generator that was given
import sys
from typing import Any

import torch

from recovery.errors import CheckpointStateError


def kinds() -> tuple[type, ...]:
    """Their classes, as far as they are loaded."""
    numpy = sys.modules.get("numpy.random")
    of_numpy = () if numpy is None else (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    return (random.Random, torch.Generator, *of_numpy)


def is_generator(value: Any) -> bool:
    """Is it one of these? A class of the user's that has a state of its own is taken as it is."""
    return isinstance(value, kinds()) and not hasattr(value, "state_dict")


def name_of(generator: Any) -> str:
    """Its kind, and of NumPy's what it draws from: `numpy.random._generator.Generator of PCG64`."""
    kind = f"{type(generator).__module__}.{type(generator).__qualname__}"
    inner = getattr(generator, "bit_generator", None)
    return kind if inner is None else f"{kind} of {type(inner).__name__}"


class KeptGenerator:
    """Gives a generator `state_dict` and `load_state_dict`, of tensors and text only, so that it loads with weights_only=True."""

    def __init__(self, generator: Any) -> None:
        """Keep this one: what draws from it goes on drawing from it."""
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        """What decides its next numbers; nothing is drawn."""
        generator = self.generator
        if isinstance(generator, torch.Generator):
            state: Any = generator.get_state()
        elif isinstance(generator, random.Random):
            state = _as_text(generator.getstate())
        elif hasattr(generator, "get_state"):
            state = _as_text(generator.get_state(legacy=False))
        else:
            state = _as_text(getattr(generator, "bit_generator", generator).state)
        return {"kind": name_of(generator), "state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put it where it was.

        Raises:
            CheckpointStateError: it is of another kind.
        """
        generator, saved = self.generator, state["state"]
        if state["kind"] != name_of(generator):
            raise CheckpointStateError(
                field="generator",
                reason=f"it was a {state['kind']} and is a {name_of(generator)}",
                next_step="Build the same generator as the program that saved.",
            )
        if isinstance(generator, torch.Generator):
            generator.set_state(saved)
        elif isinstance(generator, random.Random):
            version, numbers, gauss = json.loads(saved)
            generator.setstate((version, tuple(numbers), gauss))
        elif hasattr(generator, "set_state"):
            generator.set_state(_from_text(saved))
        else:
            getattr(generator, "bit_generator", generator).state = _from_text(saved)


_ARRAY = "numpy"


def _as_text(state: Any) -> str:
    """PCG64 has numbers of 128 bits, Philox and the Mersenne twister have arrays."""

    def of_array(value: Any) -> Any:
        return {_ARRAY: str(value.dtype), "values": value.tolist()}

    return json.dumps(state, default=of_array)


def _from_text(text: str) -> Any:
    def as_array(value: dict[str, Any]) -> Any:
        if _ARRAY not in value:
            return value
        import numpy  # noqa: PLC0415 - a generator of its is loaded

        return numpy.array(value["values"], dtype=value[_ARRAY])

    return json.loads(text, object_hook=as_array)
