"""Where a rank stands in its epoch, its random generators included: saved beside what the framework saves, so that a resumed epoch draws alike.

Three facts of Accelerate 1.15 and transformers 5.24 shape this file.

1. What begins an epoch draws: the seed of a DataLoader's workers, and the order of a sampler that has no seed of its own. A framework
   restores the generators as they stood at the save, so a resumed epoch would begin with others than it did the first time.
2. A prepared loader fetches one batch ahead. At a save the next batch is there already, and after a resume it is fetched again: so the
   generators are set behind the first fetch of a resumed epoch. What a data set or a collator draws itself, in this process, cannot be
   repeated that way: `DrawWatch` sees and names it.
3. A shuffled loader that was prepared draws its order from a generator of its own, which goes on from epoch to epoch and is in no folder.
"""

from __future__ import annotations

import itertools
import logging
import random  # noqa: TID251 - its state is looked at, nothing is drawn
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import WeightedRandomSampler

from recovery.accelerate.stream_watch import StreamWatch
from recovery.torch.attribute_values import is_users, root
from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.sampler_counters import SamplerCounters, samplers_of

_logger = logging.getLogger("recovery.accelerate")

_said: set[str] = set()
"""Classes of samplers."""

Saved = dict[str, Any]
"""Only numbers, text, lists, dicts and tensors, so that it loads with weights_only=True."""


class Generators:
    """The random generators that decide an epoch: the process's, and those of the loader that it is drawn by (fact 3)."""

    def __init__(self, loader: Any, field: str = "loader") -> None:
        """Look at the prepared loader that the epochs are taken from, before the first one; `field` is where the user has given its data."""
        self.loader, self._counters = loader, SamplerCounters(loader)
        self._stream = StreamWatch(loader, field)
        _note_order(loader)

    def state(self) -> Saved:
        """Say where they stand."""
        own = {place: generator.get_state() for place, generator in self._of_loader().items()}
        counted, stream = self._counters.state(), self._stream.place()
        return {"process": capture_random_state(), "loader": own, "counted": counted, "stream": stream}

    def drawn_again(self, position: Saved, skipped: int) -> Iterator[Any] | None:
        """Of a stream, in which nothing can be left out unread: the batches behind so many; it is compared with what was drawn in that `position`.

        None: it is none.
        """
        if not self._stream.is_stream:
            return None
        self._stream.expect(position.get("stream", {"count": skipped, "digest": ""}))
        return itertools.islice(self.loader.__iter__(), skipped, None)

    def restore(self, state: Saved, *, with_process: bool = True) -> None:
        """Put back what `state` gave, those of the process too if asked. One that is not made yet takes its seed from the epoch's number."""
        if with_process:
            restore_random_state(state["process"])
        own = self._of_loader()
        for place in own.keys() & state["loader"].keys():
            own[place].set_state(state["loader"][place])
        # Earlier releases have saved none.
        self._counters.restore(state.get("counted", {}))

    def keep_workers(self) -> None:
        """Have the worker processes that stay from pass to pass: torch draws a seed where it starts them, and in no later pass."""
        inner = getattr(self.loader, "base_dataloader", self.loader)
        if getattr(inner, "persistent_workers", False):
            before = self.state()
            iter(inner)
            self.restore(before)

    def _of_loader(self) -> dict[str, torch.Generator]:
        """By where they hang: a loader's, and those of what it takes its indexes from."""
        found: dict[str, torch.Generator] = {}
        for place, part in (("loader", self.loader), *samplers_of(self.loader)):
            for name in ("generator", "synchronized_generator"):
                if isinstance(generator := getattr(part, name, None), torch.Generator):
                    found[f"{place}.{name}"] = generator
        return found


def draw_no_seed(loader: Any) -> None:
    """Have a loader that stands for the rest of a further pass start its worker processes by a seed from elsewhere."""
    inner = getattr(loader, "base_dataloader", loader)
    if getattr(inner, "persistent_workers", False):
        inner.generator = torch.Generator()


def _note_order(loader: Any) -> None:
    """Say once in a process which samplers could give another order where an epoch goes on."""
    names = {
        type(part).__name__
        for _, part in samplers_of(loader)
        if type(part) is WeightedRandomSampler
        or (is_users(part) and root(type(part)) not in ("accelerate", "transformers"))
    }
    if new := sorted(names - _said):
        _said.update(new)
        _logger.info(
            "event=order_not_compared samplers=%s nobody looks whether the order of an epoch is drawn again as it was: it has to follow from torch's, "
            "numpy's or Python's own generators, from set_epoch or from numbers that the sampler counts, and not from weights that change in the epoch "
            "or a generator of its own; else samples come twice, and others never",
            ",".join(new),
        )


def write(
    folder: Path, *, rank: int, epoch: int, batches: int, begun: Saved, now: Saved, **more: Any
) -> None:
    """Write a rank's file into a folder that all ranks write together; its number in the name makes it its own.

    It says which epoch (0-based) goes on or begins, how many batches of it are behind training, where the generators stood when it began and
    where they stand now, and what more a rank needs.
    """
    saved = {"epoch": epoch, "batches": batches, "begun": begun, "now": now, **more}
    torch.save(saved, folder / _name(rank))


def read(folder: Path, *, rank: int) -> Saved | None:
    """Read it; None: the folder has none, so another program wrote it.

    Raises:
        OSError: it cannot be read.
    """
    path = folder / _name(rank)
    if not path.exists():
        return None
    saved: Saved = torch.load(path, map_location="cpu", weights_only=True)
    return saved


def _name(rank: int) -> str:
    """Accelerate's own ends in .pkl, the Trainer's begins with rng_state."""
    return f"random_states_{rank}.pth"


class DrawWatch:
    """Looks whether fetching a batch moves this process's generators, in the first steps of an entry."""

    def __init__(self, steps: int = 3) -> None:
        """Nothing is seen yet. So many fetches are looked at; the first of an epoch draws anyway (fact 1), and does not count."""
        self._left = steps
        self._before: tuple[Any, ...] = ()

    def before_fetch(self, *, is_first: bool) -> None:
        """A batch is about to be fetched, the first of its epoch or a later one."""
        self._before = _standing() if self._left and not is_first else ()

    def after_fetch(self) -> None:
        """It was."""
        if not self._before:
            return
        self._left -= 1
        if self._before != _standing():
            self._left = 0
            _logger.warning(
                "event=data_draws_random the data set or its collator draws from this process's random generators: "
                "what it draws behind a rollback into an epoch is not the same. Give it a generator seeded by the sample"
            )


def _standing() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    keys, position = numpy.random.get_state()[1:3] if numpy is not None else (b"", 0)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), bytes(keys), position
