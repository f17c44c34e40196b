"""A loader that brings its own position, as torchdata's StatefulDataLoader does: passes and batches are counted around it.

Of it is asked: `iter()` gives one pass, and behind `load_state_dict` the rest of the pass that `state_dict` was taken in, which may be nothing.
`len()` may be missing. Order, shares and random streams are its own, and so are its generators: they are put back behind what making an iterator
draws. torchdata draws an order again where the sampler has no state, so one that would be another is refused.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch import (
    fingerprint,
    loader_options,
    loader_workers,
    own_generators,
    restored,
    same_passes,
    told_epoch,
    torchdata_state,
)
from recovery.torch.compiled_code import compiled_code
from recovery.torch.passes import Passes
from recovery.torch.sampled_order import generators_of, is_fixed, start_of
from recovery.training.current import current_session

_logger = logging.getLogger("recovery.torch")

_OF_LOADER = ("batch_size", "drop_last", "num_workers")
_OF_SAMPLER = ("num_replicas", "rank", "seed", "shuffle")
"""As torch's own loaders and samplers name what decides which samples a batch has."""


class StatefulLoader(Passes):
    """Iterate this, and not the loader inside: what it does not give is not counted."""

    def __init__(self, loader: Any) -> None:
        """Stand before its first batch.

        Args:
            loader: iterable, with `state_dict` and `load_state_dict`.

        Raises:
            UsageError: it is not, or its order could not be had again.
        """
        super().__init__(0)
        lacks = [name for name in ("__iter__", "state_dict", "load_state_dict") if not hasattr(loader, name)]
        if lacks:
            raise UsageError(
                field="loader",
                reason=f"{type(loader).__name__} has no {' and no '.join(lacks)}",
                next_step="Give a ResumableLoader, a StatefulDataLoader, or an object that is iterable and has both.",
            )
        self._generators: list[torch.Generator] = []
        self._fixed: Any = None
        """A sampler that torchdata asks again, since it gives the same order each time."""
        self._order = ""
        """Digest of that, of the pass under way."""
        if isinstance(loader, DataLoader):
            loader_workers.keep(type(loader))
            self._fixed = _checked_order(loader)
            self._generators = generators_of(loader)
            own_generators.note_of(loader, keeps_state=True)
            _note_lost_buffer(loader)
        self._loader = loader
        self._saved_generators: list[torch.Tensor] | None = None
        self._goes_on = False
        """The iteration under way began where it was put."""
        self._stood_at: dict[str, str] = {}
        """What the loader says of the place where it was put, until it has given a batch; empty: it was put nowhere."""
        self._again = 0
        """Batches that were received behind the state that was loaded, where that is saved again."""
        if (session := current_session()) is not None:
            session.on_generation_end(self.close)
            session.on_generation_end(compiled_code.end_generation)

    @override
    def __len__(self) -> int:
        """As it says.

        Raises:
            TypeError: it has no length.
        """
        return len(self._loader)

    @override
    def _is_used_up(self) -> bool:
        return self._received > 0 and self._received == self.length

    @property
    @override
    def length(self) -> int | None:
        """None also where torch guesses it, as that of an iterable data set."""
        return same_passes.length_of(self._loader)

    # --- the position --------------------------------------------------------------------------------------------------

    @override
    def state_dict(self) -> dict[str, Any]:
        if self._received and self._is_other_order():
            raise UsageError(
                field="loader",
                reason=f"the {type(self._fixed).__name__} of the {self._kind} gives another order now than when this pass began: behind a failure it would go on"
                " in that one",
                next_step="Let it change between two passes, or give ResumableLoader(..., sampler=) or (..., batch_sampler=), which keeps the order of a pass.",
            )
        inner = self._state_inside()
        of_generators = [generator.get_state() for generator in self._generators]
        return {
            **self.position,
            "of": self.division(),
            "inner": inner,
            "again": self._again,
            "generators": of_generators,
            "order": self._order,
        }

    def _state_inside(self) -> Any:
        """None before its first batch of all: asking a StatefulDataLoader for its state there makes an iterator, which draws."""
        if self._inner_state is not None:
            return self._inner_state
        if not (self._epoch or self._received):
            return None
        state = self._loader.state_dict()
        return None if not self._received and torchdata_state.is_drawn_again(state) else state

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position. The loader inside is given its own by `prime` or by the next iteration.

        Raises:
            CheckpointStateError: another loader's, or in the middle of a pass, and what this one says of its division is otherwise.
        """
        if not {"epoch", "received", "of", "inner", "again"} <= state.keys():
            raise restored.unfit("loader", f"the checkpoint is of another kind of loader than {self._kind}")
        self.close()
        self._is_iterated = False
        self._epoch, self._received = state["epoch"], state["received"]
        self._inner_state, self._again = state["inner"], state["again"]
        self._saved_generators, self._order = state.get("generators"), state.get("order", "")
        at = f"batch {self._received} of epoch {self._epoch + 1}"
        if said := ", ".join(self._changes(state["of"]).values()):
            if self._received:
                raise restored.unfit(
                    "loader", f"{said}, so {at}, where the checkpoint stands, is another place"
                )
            _logger.warning("event=division_changed epoch=%d %s: from this pass on", self._epoch + 1, said)
        if unsaid := [name for name in ("batch_size", "rank") if name not in state["of"]]:
            _logger.info(
                "event=division_not_checked %s does not say its %s", self._kind, " and ".join(unsaid)
            )
        if self._received and getattr(self._loader, "num_workers", 0):
            _logger.info(
                "event=worker_draws_not_restored at %s: what %s draws at random in its worker processes is as it likes",
                at,
                self._kind,
            )

    @override
    def division(self) -> dict[str, Any]:
        """As far as the loader says it."""
        loader = self._loader
        sampler = getattr(loader, "sampler", None)
        said = {name: getattr(loader, name, None) for name in _OF_LOADER}
        said |= {name: getattr(sampler, name, None) for name in _OF_SAMPLER}
        said["len(loader)"] = self.length
        return {name: value for name, value in said.items() if isinstance(value, (bool, int))}

    @override
    def prime(self) -> None:
        super().prime()
        if not self._received and self._inner_state is not None:
            self._put_inside(self._inner_state)
            restored.taken(self._kind, self._end_pass_inside)
        self._put_generators()

    def _end_pass_inside(self) -> None:
        """The state is of a pass that is over: leave it, so that the next `iter()` begins one."""
        if isinstance(self._inner_state, dict) and self._inner_state.get("_iterator_finished"):
            # A StatefulDataLoader knows: it makes an iterator, which draws, and makes another where the next pass begins.
            self._loader.state_dict()
            return
        batches = iter(self._loader)
        for batch in batches:
            # It has begun the next by itself.
            self._open = batches
            self._primed = self._given(itertools.chain([batch], batches))
            return

    @override
    def _begin(self) -> Iterator[Any]:
        self._tell_epoch()
        self._goes_on, self._stood_at = self._received > 0, {}
        if self._goes_on:
            # Also an iteration that was left in the middle goes on here.
            if self._is_other_order():
                raise restored.unfit(
                    "loader",
                    f"the {type(self._fixed).__name__} of the {self._kind} gives another order than in the checkpoint's pass",
                )
            if self._saved_generators is None:
                self._saved_generators = [generator.get_state() for generator in self._generators]
            self._put_inside(self._state_inside())
            # Only in iter() a StatefulDataLoader looks at what it was given.
            batches = restored.taken(self._kind, self._restored_iterator)
            self._put_generators()
        else:
            self._order = "" if self._fixed is None else start_of(self._fixed)
            batches = iter(self._loader)
        self._open = batches
        return self._given(batches)

    def _restored_iterator(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self._loader)
        if torchdata_state.is_drawn_again(self._inner_state):
            _logger.info(
                "event=stream_not_compared %s has drawn again what was used, and nobody sees whether it was the same: ResumableLoader compares it",
                self._kind,
            )
            for _ in range(self._again):
                next(batches)
        else:
            restored.check({"loader": [self._loader]}, {"loader": [self._inner_state]})
            self._stood_at = self._place()
        return batches

    def _is_other_order(self) -> bool:
        return self._fixed is not None and self._order not in ("", start_of(self._fixed))

    def _put_generators(self) -> None:
        saved, self._saved_generators = self._saved_generators, None
        for generator, state in zip(self._generators, saved or (), strict=False):
            generator.set_state(state)

    def _put_inside(self, at: Any) -> None:
        self.close()
        self._inner_state = torchdata_state.not_ended(at)
        restored.taken(self._kind, lambda: self._loader.load_state_dict(self._inner_state))

    def _given(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if self._goes_on and self._is_used_up():
                reason = f"{self._kind} has given more than its {self._received} batches behind load_state_dict: its state_dict counts a batch too late, or it has begun another pass"
                raise restored.unfit("loader", reason)
            self._check_counts()
            if self._inner_state is not None and torchdata_state.is_drawn_again(self._inner_state):
                self._again += 1
            else:
                self._inner_state = None
            yield batch

    def _check_counts(self) -> None:
        """Behind the first batch of a restored iteration: a place that is still the one before it would give it once more."""
        stood_at, self._stood_at = self._stood_at, {}
        if stood_at and stood_at == self._place():
            _logger.warning(
                "event=batch_not_counted %s has given a batch, and its state_dict is what it was before: where it counts a batch only when the next "
                "one is asked for, this one (%d of epoch %d) was used before the restart already",
                self._kind,
                self._received + 1,
                self._epoch + 1,
            )

    def _place(self) -> dict[str, str]:
        """What it says of where it is, to be compared: it may go on changing the very object that it has given."""
        return fingerprint.of_parts({"loader": self._loader.state_dict()})

    @override
    def _next_epoch(self) -> None:
        super()._next_epoch()
        self._again = 0

    def _tell_epoch(self) -> None:
        """As torch's DistributedSampler wants to be told: without it every pass would have the same order."""
        loader = self._loader
        batch_sampler = getattr(loader, "batch_sampler", None)
        inside = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
        for part in (loader, *inside, getattr(loader, "dataset", None)):
            told_epoch.tell(part, self._epoch)

    @property
    def _kind(self) -> str:
        return type(self._loader).__name__

    # --- live rollback -------------------------------------------------------------------------------------------------

    @property
    @override
    def why_not_derivable(self) -> str:
        return f"{self._kind} has a state_dict of its own, which only this rank knows"

    @override
    def follow_keys(self, seed: int, number: int) -> None:
        """It draws what it likes."""

    @override
    def load_position(self, state: Mapping[str, Any]) -> None:
        raise AssertionError(self.why_not_derivable)


def _note_lost_buffer(loader: DataLoader[Any]) -> None:
    if loader_options.forgets_buffer(loader.dataset):
        _logger.warning(
            "event=shuffle_buffer_not_kept the state of the %s has not what its shuffle buffer holds: where a job goes on in the middle of a pass, those samples "
            "are never used. ResumableLoader draws such a stream again instead, which is exact",
            type(loader.dataset).__name__,
        )


def _check_staying(loader: DataLoader[Any]) -> None:
    """Worker processes that stay from pass to pass hear of no later one."""
    if not (loader.num_workers and loader.persistent_workers):
        return
    if listeners := told_epoch.listeners(loader.dataset):
        raise UsageError(
            field="loader",
            reason=f"the {type(loader).__name__} has persistent_workers=True, whose processes keep their copy of the data set, so that set_epoch of the"
            f" {type(listeners[0]).__name__} reaches them in their first pass only: behind a failure that is another one",
            next_step="Leave persistent_workers out, or give ResumableLoader(..., persistent_workers=True), which tells them.",
        )
    _logger.info(
        "event=session_not_followed worker processes of the %s stay from pass to pass: session.epoch is there, in all passes, that of the first. "
        "ResumableLoader tells them",
        type(loader).__name__,
    )


def _checked_order(loader: DataLoader[Any]) -> Any:
    """A sampler whose order is believed to stay as it is; None: the loader has its order again otherwise."""
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise UsageError(
            field="loader",
            reason=f"the {type(loader).__name__} has in_order=False, so which batch is the next is a race between its worker processes",
            next_step="Leave in_order out.",
        )
    _check_staying(loader)
    order: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while torchdata_state.is_torchdatas(order) and hasattr(order, "sampler"):
        order = order.sampler
    # What has a state is put back by it.
    if (
        isinstance(loader.dataset, IterableDataset)
        or type(order) in (SequentialSampler, DistributedSampler)
        or torchdata_state.is_torchdatas(order)
        or hasattr(order, "state_dict")
        or hasattr(iter(order), "state_dict")
    ):
        return None
    if is_fixed(order):
        return order
    raise UsageError(
        field="loader",
        reason=f"the {type(order).__name__} of the {type(loader).__name__} has no state, and gives another order each time: behind a failure a"
        " pass would go on in another one",
        next_step="Give ResumableLoader(..., sampler=) or (..., batch_sampler=), which keeps it, or leave the order to shuffle=True.",
    )
