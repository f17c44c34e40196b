"""A script that was written for torchrun, with three lines changed: `join` where it forms its world, `steps` where its two loops were.

A survivor of a failure runs the script again in its own process (`recovery.training.own_main`), or starts its program again (`recovery.init`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from recovery.errors import UsageError
from recovery.torch import devices, order_seed, parts_of_state
from recovery.torch.loader import ResumableLoader
from recovery.torch.passes import Passes
from recovery.torch.plain_batches import Batches, FunctionBatches, PlainValues
from recovery.torch.process_group import init_process_group
from recovery.torch.session_interface import SessionInterface
from recovery.torch.state import TrainState
from recovery.torch.stateful_loader import StatefulLoader
from recovery.training.callbacks import ModelCheckpoint
from recovery.training.checkpoint_config import CheckpointConfig
from recovery.training.current import current_session
from recovery.training.init import init
from recovery.training.rank_variables import rank_variables
from recovery.training.session import Callback, Session

_logger = logging.getLogger("recovery.torch")


def join(backend: str | None = None) -> Session:
    """Join the job and form its world: in the place of `torch.distributed.init_process_group`.

    Args:
        backend: as torch's; None: gloo, and nccl for what lies on a GPU where each rank of the host has one (`recovery.torch.devices`).

    Returns:
        The session of this entry, with `rank`, `local_rank` and `world_size`, which stand in the variables that torchrun sets, too.

    Raises:
        SystemExit: as `recovery.init`.
        GenerationInterrupted: as `recovery.torch.init_process_group`; the script starts again.
    """
    session = init()
    os.environ.update(rank_variables(session))  # noqa: TID251 - for the script, as torchrun
    init_process_group(session, devices.take(session, backend))
    return session


def steps(  # noqa: PLR0913 - one keyword for each thing that a script may want
    loader: Any,
    model: Any,
    optimizer: Any,
    *,
    epochs: int | None = None,
    max_steps: int | None = None,
    save_every: int = 100,
    directory: str | Path = "checkpoints",
    callbacks: Iterable[Callback] = (),
    override: Mapping[str, Sequence[str]] | None = None,
    **further: Any,
) -> Iterator[Any]:
    """Give every batch of every epoch, or of so many steps, from where the job goes on: in the place of the loops over epochs and over the loader.

    The state is saved every so many steps, restored behind a failure, and the data goes on at the very next batch. The order of a pass follows
    from a seed and the number of the pass: `sampler.set_epoch` is not needed. The seed is a DistributedSampler's, else that of the loader's
    generator, else torch's (`torch.manual_seed`), as rank 0 has it, and stays in the checkpoints.

    Args:
        loader: torch's own, whose data set is shared among the ranks here, with or without a DistributedSampler; a loader with a position of
            its own (`state_dict`); an iterable, an `IterableDataset` or an iterator whose items are batches, each rank's own; or a function that is
            given the step (1-based, as `session.step` counts it once the step is done) and gives its batch.
        model: in DistributedDataParallel or not.
        optimizer: one or a list.
        epochs: passes over the data in all, at least 1; None: `max_steps` alone ends training.
        max_steps: steps in all, at least 1; None: the passes alone do.
        save_every: steps between two checkpoints, at least 1; the newest five stay.
        directory: below which each rank saves in a directory of its own.
        callbacks: what is called before each save, as `recovery.Tracker`.
        override: what a checkpoint does not decide where the script builds it otherwise than before, as of `TrainState`:
            `{"optimizer": ["lr"], "loader": ["batch_size"]}`.
        **further: other parts of the state by name, as of `TrainState`: lr_scheduler, scaler, ...; a dictionary of plain values, as
            `extra={"best": 1e9}`, is saved as it is then, and is what it was where the job goes on.

    Yields:
        The batch of step `session.step + 1`: `session.step` counts the steps that are done.

    Raises:
        UsageError: `join` was not called, neither epochs nor max_steps is given, the batches or the order that the loader's sampler gives could not
            be had again, or a schedule is not named; else as `Session.steps`.
        CheckpointError, GenerationInterrupted: as `Session.steps`.
    """
    session = current_session()
    if session is None:
        raise UsageError(
            field="recovery.torch.steps",
            reason="was called before recovery.torch.join()",
            next_step="Call join() where the script called torch.distributed.init_process_group.",
        )
    plain = {
        name: PlainValues(part)
        for name, part in further.items()
        if isinstance(part, dict) and not parts_of_state.are_generators(part)
    }
    parts = {"lr_scheduler": None, "override": override, **further, **plain}
    state = TrainState(model=model, optimizer=optimizer, loader=passes_of(loader, session), **parts)
    config = CheckpointConfig(save_checkpoint_steps=save_every, keep_checkpoint_max=5)
    saver = ModelCheckpoint("train", Path(directory) / str(session.rank), config)
    for _, batch in session.steps(state, epochs=epochs, max_steps=max_steps, callbacks=[*callbacks, saver]):
        yield batch


def passes_of(batches: Any, session: SessionInterface) -> Passes:
    """What counts the passes and the batches of what a script has.

    Raises:
        UsageError: it gives no batches, or they could not be had again.
    """
    if isinstance(batches, Passes):
        return batches
    if isinstance(batches, DataLoader):
        return resumable(batches, session)
    if isinstance(batches, IterableDataset):
        return ResumableLoader(batches, None, session=session, collate_fn=_as_it_is)
    if hasattr(batches, "__iter__"):
        if hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict"):
            return StatefulLoader(batches)
        return ResumableLoader(Batches(batches), None, session=session, collate_fn=_as_it_is)
    if callable(batches):
        return FunctionBatches(batches)
    raise UsageError(
        field="recovery.torch.steps",
        reason=f"was given {type(batches).__name__}, which gives no batches",
        next_step="Give a DataLoader, an iterable of batches, or a function that gives the batch of a step.",
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def resumable(loader: DataLoader[Any], session: SessionInterface) -> ResumableLoader:
    """Make a loader that knows its position of torch's own, over a map-style or iterable data set. On all ranks: they agree on the order's seed.

    Raises:
        UsageError: it gives no batches, iterates in a way of its own, or its order is one that nobody could restore.
    """
    order_seed.refuse_own_iteration(loader)
    sampler, stream = loader.sampler, isinstance(loader.dataset, IterableDataset)
    if loader.batch_size is None and loader.batch_sampler is None and not stream:
        raise UsageError(
            field="recovery.torch.steps",
            reason="the loader has a batch_size of None: what it gives are no batches",
            next_step="Give it a batch_size or a batch_sampler.",
        )
    order: dict[str, Any] = {"batch_size": loader.batch_size}
    if loader.batch_size is None and not stream:
        order = {"batch_sampler": loader.batch_sampler}
    elif not (stream or _is_plain(loader)):
        order["sampler"] = sampler
    shared = sampler if isinstance(sampler, DistributedSampler) else None
    options = {
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "timeout": loader.timeout,
        "persistent_workers": loader.persistent_workers and not stream,
    }
    if loader.persistent_workers and stream:
        _logger.info(
            "event=workers_not_kept the loader's worker processes end with each pass: of a stream, what they drew would follow from all passes before"
        )
    kind = ResumableLoader if order_seed.is_given(loader) else order_seed.KeepsSeed
    return kind(
        loader.dataset,
        session=session,
        shuffle=shared.shuffle if shared is not None else hasattr(sampler, "replacement"),
        seed=order_seed.of(loader),
        drop_last=loader.drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        **order,
        **options,
    )


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Does its sampler give each sample once, as torch's and torchdata's do for shuffle=True or False, or a share of that?"""
    sampler: Any = loader.sampler
    of = getattr(sampler, "data_source", getattr(sampler, "dataset", None))
    # A class of the user's that is made of one of these has an order of its own.
    if (
        type(sampler).__module__.split(".")[0] not in ("torch", "torchdata")
        or of is None
        or len(of) != len(loader.dataset)  # type: ignore[arg-type]  # Dataset has no __len__, map-style ones do
    ):
        return False
    if isinstance(sampler, DistributedSampler):
        # A ResumableLoader has one word for both: ragged shares and a ragged last batch.
        return sampler.drop_last == loader.drop_last
    return getattr(sampler, "num_samples", len(of)) == len(of) and not getattr(sampler, "replacement", False)
