"""The order of a pass as a sampler of the user's gives it: any process that asks for a pass is given the same, so that a position says it all.

While it is asked, all that is known to be drawn from is seeded from (seed, pass), on every rank alike: Python's, NumPy's and PyTorch's
generators, and each `torch.Generator` of the sampler. Behind it they are as they were. Who draws from elsewhere is found out: it is asked twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import keyed, told_epoch
from recovery.torch.random_streams import Streams

_logger = logging.getLogger("recovery.torch")

_INSIDE = frozenset({"sampler", "batch_sampler"})
"""How a sampler names the one that it draws from, where that is no `Sampler`."""
_LOOKED_AT = 100_000
"""Indices by which a sampler is judged that is not asked for the order of a whole pass."""
_SAFE = (type(None), bool, int, float, str, bytes)
_NUMBER = -1
"""Of its random streams, among those of loaders (0, 1, ...)."""


class SampledOrder:
    """Of one sampler or batch sampler."""

    def __init__(self, sampler: Any, *, seed: int, rank: int, world_size: int) -> None:
        """Look whether an order of it can be had: it gives indices, or lists of them, and has a length. The seed is of what it draws.

        Raises:
            UsageError: its passes may have no end, or it gives the share of another rank.
        """
        self._sampler, self._seed, self._world_size = sampler, seed, world_size
        if not hasattr(sampler, "__len__"):
            raise self._without_length()
        self._parts = list(parts_of(sampler))
        shares = [
            (part.rank, part.num_replicas)
            for part in self._parts
            if hasattr(part, "rank") and hasattr(part, "num_replicas")
        ]
        self.is_share = bool(shares)
        """It gives what this rank takes, and not what all ranks take together."""
        self.sharing = (0, 1) if self.is_share else (rank, world_size)
        """Which part of what it gives is this rank's, of how many."""
        for of_rank, of_world in shares:
            if (of_rank, of_world) != (rank, world_size):
                raise self._refused(
                    reason=f"gives the share of rank {of_rank} of {of_world}, and this is rank {rank} of {world_size}",
                    next_step="Make it with rank=session.rank and num_replicas=session.world_size.",
                )
        self._epoch = -1
        self._order: list[Any] = []
        self._kept: Any = None
        self._digest = ""

    @property
    def kind(self) -> str:
        """Its class, for people."""
        return type(self._sampler).__name__

    def seed_with(self, seed: int) -> None:
        """Let what it draws follow from this seed."""
        self._seed, self._epoch = seed, -1

    def of(self, epoch: int) -> list[Any]:
        """The order of a pass; drawn once.

        Raises:
            UsageError: there is no telling what it is.
        """
        if epoch != self._epoch:
            order = self._drawn(epoch)
            if self._epoch < 0 and self._drawn(epoch) != order:
                raise self._refused(
                    reason="gives another order each time that it is asked for the same pass: it draws from, or counts, what nobody could restore",
                    next_step="Let it draw from a torch.Generator that it has as an attribute, from the program's generators, or from what"
                    " set_epoch says.",
                )
            if self._epoch < 0 and self._world_size > 1 and not self.is_share:
                _logger.info(
                    "event=order_shared %s: this rank takes every %d. of its %d",
                    self.kind,
                    self._world_size,
                    len(order),
                )
            self._epoch, self._order, self._kept = epoch, order, None
            self._digest = _digest(order)
        return self._order

    def digest_of(self, epoch: int) -> str:
        """SHA-256 (hex) of the order of a pass."""
        self.of(epoch)
        return self._digest

    def kept(self, epoch: int) -> Any:
        """The order of a pass as a checkpoint can have it; None: an index in it is of a class that no safe load gives back."""
        order = self.of(epoch)
        if self._kept is None:
            self._kept = _kept(order)
        return self._kept

    def go_on(self, epoch: int, batch: int, saved: str, kept: Any) -> None:
        """Go on in the order that a pass has begun in. Asked when all that the sampler may draw from is loaded.

        Args:
            epoch: passes that are finished.
            batch: how many were received of this one.
            saved: digest of its order; empty: it is not known.
            kept: the order itself; None: it was not kept.

        Raises:
            CheckpointStateError: the sampler gives another one now, and it was not kept.
        """
        if saved not in ("", self.digest_of(epoch)):
            if kept is None:
                raise CheckpointStateError(
                    field="ResumableLoader",
                    reason=f"its {self.kind} gives another order, so batch {batch} of epoch {epoch + 1}, where the checkpoint stands, is another place",
                    next_step="Give it what it was made of then, or go back to a checkpoint between two epochs.",
                )
            self._order, self._digest, self._kept = _unkept(kept), saved, kept
            _logger.warning(
                "event=order_kept epoch=%d batch=%d %s gives another order now than when this pass began: the pass goes on in the order that the checkpoint has, "
                "and the next one is drawn as it is now",
                epoch + 1,
                batch,
                self.kind,
            )

    def forget(self) -> None:
        """Ask it again, since what it draws from may be loaded now."""
        self._epoch = -1

    def _drawn(self, epoch: int) -> list[Any]:
        for part in self._parts:
            told_epoch.tell(part, epoch)
        with _seeded(self._parts, self._seed, epoch):
            # Some make a pass to say how long it is.
            try:
                most = len(self._sampler)
            except (TypeError, NotImplementedError) as error:
                # As torch's BatchSampler of one that has none.
                raise self._without_length() from error
        order = _drawn(self._sampler, self._parts, self._seed, epoch, most + 1)
        if len(order) > most:
            raise self._refused(
                reason=f"gives more than the {most} that its len() says, and may have no end",
                next_step="Let its __len__ say at most how much a pass has.",
            )
        return order

    def _without_length(self) -> UsageError:
        return self._refused(
            reason="has no length, so its passes may have no end",
            next_step="Give it a __len__, which says at most how much a pass has; a batch sampler needs one of the sampler inside it.",
        )

    def _refused(self, *, reason: str, next_step: str) -> UsageError:
        return UsageError(field="ResumableLoader", reason=f"its {self.kind} {reason}", next_step=next_step)


def is_fixed(sampler: Any) -> bool:
    """Does it give the same order whenever it is asked, as far as its first indices tell, whatever the generators are?"""
    return start_of(sampler) == start_of(sampler, seed=1)


def start_of(sampler: Any, seed: int = 0) -> str:
    """SHA-256 (hex) of its first indices, as it gives them where the generators are seeded so."""
    return _digest(_drawn(sampler, list(parts_of(sampler)), seed, 0, _LOOKED_AT))


def generators_of(*objects: Any) -> list[torch.Generator]:
    """Which they have, and the samplers inside them, each once."""
    inside = [vars(part).values() for one in objects for part in parts_of(one) if hasattr(part, "__dict__")]
    found = {id(value): value for values in inside for value in values if isinstance(value, torch.Generator)}
    return list(found.values())


def parts_of(sampler: Any) -> Iterator[Any]:
    """It, and the samplers inside it, each once."""
    left, seen = [sampler], set[int]()
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        inside = getattr(part, "__dict__", {})
        left += [value for name, value in inside.items() if isinstance(value, Sampler) or name in _INSIDE]


def _digest(order: list[Any]) -> str:
    return hashlib.sha256(repr(order).encode()).hexdigest()


def _drawn(sampler: Any, parts: list[Any], seed: int, epoch: int, most: int) -> list[Any]:
    with _seeded(parts, seed, epoch):
        return [_plain(given) for given in itertools.islice(sampler, most)]


@contextlib.contextmanager
def _seeded(parts: list[Any], seed: int, epoch: int) -> Iterator[None]:
    generators = generators_of(*parts)
    with Streams.keyed(seed, _NUMBER, epoch):
        before = [generator.get_state() for generator in generators]
        for number, generator in enumerate(generators):
            digest = keyed.digest_of("sampler", seed, number, epoch)
            generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)


def _plain(given: Any) -> Any:
    """An index or a list of them as plain numbers, since its text is compared with that of another process."""
    if isinstance(given, list):
        return [_plain(one) for one in given]
    return given.tolist() if hasattr(given, "tolist") else given


def _kept(order: list[Any]) -> Any:
    """8 bytes an index where they are numbers, as those of a data set are."""
    sizes = [len(given) for given in order] if all(type(given) is list for given in order) else None
    flat = order if sizes is None else list(itertools.chain.from_iterable(order))
    if set(map(type, flat)) <= {int}:
        flat = torch.tensor(flat, dtype=torch.int64)  # type: ignore[assignment]  # the small form of the same
    elif not _is_safe(flat):
        return None
    return {"order": flat, "sizes": None if sizes is None else torch.tensor(sizes, dtype=torch.int64)}


def _unkept(kept: dict[str, Any]) -> list[Any]:
    flat, sizes = _plain_list(kept["order"]), kept["sizes"]
    if sizes is None:
        return flat
    rest = iter(flat)
    return [list(itertools.islice(rest, size)) for size in sizes.tolist()]


def _plain_list(kept: Any) -> list[Any]:
    return kept.tolist() if isinstance(kept, torch.Tensor) else list(kept)


def _is_safe(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_safe, value))
    return type(value) in _SAFE
