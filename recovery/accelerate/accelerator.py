"""Accelerate's `Accelerator` that goes on at the plan's step, and whose `save_state` folders are rollback targets."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.data_loader import DataLoaderDispatcher
from typing_extensions import override

import recovery.torch as rt
from recovery.accelerate import beside_loop, joined_world, random_position  # noqa: F401 - joins the world
from recovery.accelerate.loop_progress import LoopProgress
from recovery.core.phases import Phase
from recovery.errors import UsageError
from recovery.torch import (
    devices,
    module_names,
    outside_state_dict,
    own_generators,
    payload,
    same_passes,
)
from recovery.torch.outside_folders import OutsideFolders
from recovery.torch.session_interface import SessionInterface
from recovery.torch.trainer_options import TrainerOptions, check_size, size_of
from recovery.training import changed_since
from recovery.training.changed_since import Override
from recovery.training.current import current_session
from recovery.training.outlook import check_end
from recovery.training.session import Session

_logger = logging.getLogger("recovery.accelerate")


def check_devices(session: SessionInterface, device: torch.device) -> None:
    """Refuse what Accelerate would fail at with `invalid device ordinal`, at its first barrier.

    Raises:
        UsageError: it works on a GPU, and this host shows fewer of them than it has ranks.
    """
    if device.type == "cuda" and devices.are_shared(session):
        raise UsageError(
            field="Accelerator",
            reason=f"wants a GPU for each of the {session.local_world_size} ranks of this host, which shows {torch.cuda.device_count()}",
            next_step="Start one worker for each GPU (--nproc-per-node=gpu), or give Accelerator(cpu=True).",
        )


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # not installed where types are checked
    """Accelerate's, argument for argument. Outside a function that `recovery.accelerate.run` made recoverable it is nothing more.

    `epochs` and `steps` are the two loops; `save_state` makes a checkpoint that all ranks can go back to.
    """

    def __init__(self, *arguments: Any, recovery_override: Override | None = None, **options: Any) -> None:
        """Make Accelerate's, in the world that was joined.

        Args:
            arguments: as Accelerate's.
            recovery_override: what a checkpoint does not decide where the script builds it otherwise than before: `{"optimizer": ["lr"]}`.
            options: as Accelerate's.

        Raises:
            UsageError: it was asked for what cannot be gone back to.
        """
        super().__init__(*arguments, **options)
        session = current_session()
        self._progress = None if session is None else LoopProgress(session)
        self._plain_step, self._joins = 0, False
        self._prepared: dict[int, tuple[Any, list[str]]] = {}
        """By the id of a model: it in its wrapper, and what was frozen where that was made."""
        self._override = recovery_override
        if session is None:
            return
        session.versions = {
            **payload.versions(),
            **changed_since.script(),
            "accelerate": str(accelerate.__version__),
        }
        check_devices(session, self.device)
        others = session.phases.models
        # A script may have several, one for each model that it trains.
        session.phases.models = lambda: [*others(), *map(module_names.bare, self._models)]
        session.refuse_drains("a loop of Accelerate saves where its script says, and not out of turn")
        if self.project_configuration.automatic_checkpoint_naming:
            raise UsageError(
                field="automatic_checkpoint_naming",
                reason="counts from 0 again at every entry, and refuses a folder that is there",
                next_step='Name the folder by the step: accelerator.save_state(f"ckpt/step_{step}").',
            )
        if self.use_stateful_dataloader:
            raise UsageError(
                field="use_stateful_dataloader",
                reason="such a loader skips by itself, and accelerator.steps(loader) would skip again",
                next_step="Leave it out: the position in the epoch is saved without it.",
            )

    @override
    def prepare_model(self, model: Any, *arguments: Any, **options: Any) -> Any:
        """As Accelerate's."""
        prepared = super().prepare_model(model, *arguments, **options)
        bare = module_names.bare(prepared)
        self._prepared.setdefault(id(bare), (prepared, outside_state_dict.frozen(bare)))
        return prepared

    def _outside(self) -> OutsideFolders:
        models = [self._prepared.get(id(module_names.bare(one)), (one, [])) for one in self._models]
        # A loop may prepare further ones, which no start has before it loads.
        return OutsideFolders(
            lambda: {
                "model": [*(one for one, _ in models), *self._models[len(models) :]],
                "optimizer": [one.optimizer for one in self._optimizers],
            },
            frozen=[names for _, names in models],
            beside=beside_loop.of(self),
        )

    def _options(self, session: Session) -> TrainerOptions:
        return TrainerOptions(
            {
                "optimizer": [one.optimizer for one in self._optimizers],
                "lr_scheduler": [one.scheduler for one in self._schedulers],
            },
            self._override,
            settings={
                "gradient_accumulation_steps": self.gradient_accumulation_steps,
                "mixed_precision": str(self.mixed_precision),
                "parameters": size_of(self._models),
            },
            conditions=session.versions,
            are_replicas=any(module_names.parallel(one) for one, _ in self._prepared.values()),
        )

    def epochs(self, count: int) -> Iterator[int]:
        """`range(count)`, from the epoch in which training goes on; what was saved is loaded first. Prepare everything before.

        Args:
            count: of all epochs, counted from the first start of training.

        Yields:
            The epoch, 0-based.

        Raises:
            GenerationInterrupted: the generation is over; leaves the training function, which is then entered again.
            UsageError: fewer than are done, or a schedule of an optimizer was not prepared.
        """
        progress = self._progress
        if progress is None:
            yield from range(count)
            return
        progress.epochs = count
        progress.outside = self._outside()
        progress.options = self._options(progress.session)
        folder = progress.session.resume_from
        if folder is not None:
            saved = random_position.read(folder, rank=progress.session.rank)
            outside, options = (saved or {}).get("outside", {}), (saved or {}).get("options", {})
            check_size(options, "parameters", self._models)
            progress.outside.make_room(outside)
            self.load_state(str(folder))
            progress.outside.put(outside)
            progress.options.put(options)
            progress.stand(saved)
        progress.outside.begin()
        check_end(progress.position, count, field="accelerator.epochs")
        with progress.session.loop():
            try:
                for epoch in range(progress.epoch, count):
                    progress.begin_epoch(epoch)
                    yield epoch
            except GeneratorExit:
                progress.session.loop_watch.closed()
                raise

    def steps(self, loader: Any) -> Iterator[tuple[int, Any]]:
        """The steps of an epoch, from the one at which training goes on. One loop over `steps` in each epoch.

        A step counts as applied when the loop asks for the next one, or saves.

        Args:
            loader: as `prepare` gave it.

        Yields:
            The step (1-based, over all epochs; a batch is a step, also where gradients are accumulated), and its batch.

        Raises:
            GenerationInterrupted: the generation is over.
            UsageError: called outside `epochs`, or twice in one epoch, or with a loader that has another number of batches than on another rank.
        """
        progress = self._progress
        if progress is None:
            for batch in loader:
                self._plain_step += 1
                yield self._plain_step, batch
            return
        skipped = progress.begin_steps(loader)
        own_generators.note_of(loader)
        if not skipped and not self._joins:
            same_passes.check(same_passes.length_of(loader), epoch=progress.epoch)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(progress.epoch)
        batches = progress.drawn_again(skipped) if skipped else None
        if batches is None:
            # By name, as Accelerate's own loaders do it: of a stream it is watched there.
            rest = self.skip_first_batches(loader, skipped * _read_for_one(loader)) if skipped else loader
            if skipped and progress.epoch:
                random_position.draw_no_seed(rest)
            batches = rest.__iter__()
        times = progress.session.phases.times
        while True:
            progress.before_fetch()
            times.wants()
            try:
                batch = next(batches)
            except StopIteration:
                progress.after_fetch()
                break
            times.drawn()
            progress.after_fetch()
            progress.session.check()
            yield progress.step + 1, batch
            progress.applied()
        progress.end_steps()

    @override
    @contextlib.contextmanager
    def join_uneven_inputs(self, *arguments: Any, **options: Any) -> Iterator[None]:
        """As Accelerate's: torch's Join answers for a rank whose pass has ended, so passes that begin inside may be unequal."""
        self._joins = True
        try:
            with super().join_uneven_inputs(*arguments, **options):
                yield
        finally:
            self._joins = False

    @override
    def save_state(
        self, output_dir: str | Path | None = None, *arguments: Any, keep: int | None = None, **options: Any
    ) -> Any:
        """Save as Accelerate does, and make a checkpoint of the folder. Every rank calls this, between two updates of the weights.

        Args:
            output_dir: one folder for each step.
            arguments: as Accelerate's.
            keep: how many of the directory's folders stay, at least 2; None: all.
            options: as Accelerate's.

        Raises:
            GenerationInterrupted: the generation is over.
            UsageError: no folder is named; behind a restore also that a schedule was not prepared.
        """
        progress = self._progress
        if progress is None:
            return super().save_state(output_dir, *arguments, **options)
        if output_dir is None:
            raise UsageError(
                field="save_state",
                reason="names no folder",
                next_step='Name it by the step: accelerator.save_state(f"ckpt/step_{step}").',
            )
        progress.applied()
        with progress.session.phases.during(Phase.SAVE):
            return self._save_folder(progress, output_dir, *arguments, keep=keep, **options)

    def _save_folder(
        self,
        progress: LoopProgress,
        output_dir: str | Path,
        *arguments: Any,
        keep: int | None,
        **options: Any,
    ) -> Any:
        saved = super().save_state(str(output_dir), *arguments, **options)
        if not self.gradient_state.sync_gradients:
            _logger.warning(
                "event=folder_not_adopted path=%s reason='gradients are being accumulated, and are not in it'",
                output_dir,
            )
            return saved
        progress.write(Path(output_dir))
        # Rank 0 writes files that carry no rank: all are there when all have met.
        self.wait_for_everyone()
        rt.adopt_folder(progress.session, output_dir, keep=keep)
        return saved


def _read_for_one(loader: Any) -> int:
    """How many batches a step reads: where rank 0 reads for all, one for each rank, and Accelerate leaves out as many as it is told."""
    if not isinstance(loader, DataLoaderDispatcher) or loader.split_batches:
        return 1
    return int(loader.state.num_processes)
