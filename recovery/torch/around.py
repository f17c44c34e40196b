"""What whoever drives a loop has around a training state, and what a script is to do about what no checkpoint has: a state by parts, or a framework's trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from recovery.torch.attribute_values import is_users
from recovery.torch.sampled_order import generators_of
from recovery.torch.sampler_counters import samplers_of


class Held:
    """Some of an object's attributes, as attributes."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        """Hold these."""
        vars(self).update(held)


class Around(NamedTuple):
    """Of a framework's trainer, besides modules, optimizers and schedules; of a state by parts there is none.

    Attributes:
        called: what its loop calls (callbacks, a data module), by the name that people know it by. Their attributes are kept or named elsewhere.
        keeping: objects that have what they hold saved by hooks of their own.
        loaders: of the training; they are put back where they stood.
        own: the framework's objects, which hold all of the others.
    """

    called: Mapping[str, Any] = {}
    keeping: Sequence[Any] = ()
    loaders: Sequence[Any] = ()
    own: Sequence[Any] = ()

    def attributes_kept(self) -> Iterator[dict[str, Any]]:
        """Of those that keep what they hold."""
        yield from (dict(getattr(one, "__dict__", {})) for one in self.keeping)

    def of_loaders(self) -> Iterator[Any]:
        """They, their data sets, samplers and generators: of the data sets it is said where a pass begins (`own_generators.note_of`)."""
        for loader in self.loaders:
            samplers = [sampler for _, sampler in samplers_of(loader)]
            yield from (loader, *samplers, getattr(loader, "generator", None))
            yield from generators_of(loader, *samplers)
            dataset = getattr(loader, "dataset", None)
            # A Subset, or a framework's share of a rank, wraps another one.
            for _ in range(3):
                yield dataset
                dataset = getattr(dataset, "__dict__", {}).get("dataset")
            if is_users(collate_fn := getattr(loader, "collate_fn", None)):
                yield collate_fn


class Advice(NamedTuple):
    """The next step, by what was found.

    Attributes:
        field: where schedules are given.
        schedule: of one that nobody has given.
        others: of objects that count, as a second optimizer.
        copies: of weights that the steps change.
        generator: of a random generator.
    """

    field: str
    schedule: str
    others: str
    copies: str
    generator: str


OF_STATE = Advice(
    field="TrainState",
    schedule="Give it: TrainState(..., lr_scheduler=scheduler), or steps(..., lr_scheduler=scheduler); several as a list.",
    others="give them state_dict and load_state_dict, and name them: TrainState(..., scaler=scaler), or steps(..., scaler=scaler); optimizers as a list",
    copies='name them: TrainState(..., average=average), or steps(..., average=average); tensors in a dictionary by steps(..., extra={"average": average})',
    generator="Give it as a part, TrainState(..., noise=generator), or draw from torch's, numpy's or Python's own generators",
)
