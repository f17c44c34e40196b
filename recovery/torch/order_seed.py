"""The seed of the order in which `steps` gives a script its data: the script's own, the same on every rank and to the end of the job."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch.live_transfer import wire_device
from recovery.torch.loader import ResumableLoader
from recovery.torch.sampled_order import generators_of

_logger = logging.getLogger("recovery.torch")

_SEEDS = 2**43
"""So many are told apart: a loader multiplies its seed by a million."""


def is_given(loader: DataLoader[Any]) -> bool:
    """Does the sampler say the seed by itself, as torch's DistributedSampler? Then another one is another order, and no seed is kept."""
    return isinstance(loader.sampler, DistributedSampler)


def of(loader: DataLoader[Any]) -> int:
    """What the loader's order follows from: its sampler's seed, that of its generator, else torch's. A collective where it is not the sampler's.

    Rank 0's is taken on every rank: ranks that were seeded each by its own number would divide different orders among them.
    """
    if isinstance(loader.sampler, DistributedSampler):
        return loader.sampler.seed
    drawing = (loader, loader.sampler, loader.batch_sampler)
    generators = generators_of(*(one for one in drawing if one is not None))
    own = (generators[0].initial_seed() if generators else torch.initial_seed()) % _SEEDS
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return own
    agreed = torch.tensor([own], device=wire_device())
    distributed.broadcast(agreed, 0)
    return int(agreed)


class KeepsSeed(ResumableLoader):
    """Goes on with the seed of its checkpoint, whatever the program was seeded with this time. Earlier releases had 0 there."""

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = state.get("of", {}).get("seed", 0)
        if saved != self._seed:
            _logger.info(
                "event=order_seed_kept the order of the data follows from seed %d, as the job has begun, and not from %d",
                saved,
                self._seed,
            )
            self._seed = saved
            if self._sampled is not None:
                self._sampled.seed_with(saved)
        super().load_state_dict(state)


def refuse_own_iteration(loader: DataLoader[Any]) -> None:
    """Refuse a loader of the user's class that makes something of the batches: they are drawn by another loader, which knows its position.

    Raises:
        UsageError: names the class and the method.
    """
    for name in ("__iter__", "_get_iterator"):
        method = getattr(type(loader), name)
        if str(method.__module__).partition(".")[0] not in ("torch", "torchdata"):
            raise UsageError(
                field="recovery.torch.steps",
                reason=f"{type(loader).__qualname__} has an {name} of its own, and what it does would be left out",
                next_step="Do it in the data set, in collate_fn or in the loop; or give it a position (state_dict, load_state_dict) and train by"
                " session.steps(TrainState(loader=...)).",
            )
