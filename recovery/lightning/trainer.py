"""Lightning's Trainer in the world of a session: what the script asks for, with the plan's ranks, place and checkpoints."""

from __future__ import annotations

import contextlib
import math
import signal
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch import Trainer as PlainTrainer
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import distributed
from typing_extensions import override

from recovery.core.phases import Phase
from recovery.errors import UsageError
from recovery.lightning import logger_files, written_files
from recovery.lightning.fit_state import FitState
from recovery.lightning.hook_state import HookState, epochs_of_averaging
from recovery.lightning.session_environment import SessionEnvironment
from recovery.lightning.watched_loader import WatchedLoader
from recovery.torch import devices, init_process_group, own_generators, same_passes
from recovery.training.callbacks import ModelCheckpoint
from recovery.training.changed_since import Override
from recovery.training.checkpoint_config import CheckpointConfig
from recovery.training.current import current_session
from recovery.training.session import Session

_EVERY_STEPS = 100
_KEPT = 3


class Trainer(PlainTrainer):  # type: ignore[misc]  # Lightning is not there where types are checked
    """Lightning's Trainer, argument for argument. Outside of a function that `run` has made recoverable it is nothing more.

    Inside, `fit` goes on where the plan says, to the bit: data, callbacks, logged sums, accumulated gradients, random generators. The ranks
    are the session's, so `devices` and `num_nodes` are not asked; each rank has one device. One `fit` per function.
    """

    def __init__(
        self,
        *,
        recovery_checkpoint: ModelCheckpoint | CheckpointConfig | None = None,
        recovery_override: Override | None = None,
        **arguments: Any,
    ) -> None:
        """As Lightning's.

        Args:
            recovery_checkpoint: how often the state is saved that a rollback goes back to, in training batches, and how many stay, in
                `recovery_checkpoints/rank_N` under `default_root_dir`; or where else. None: every 100 batches, three stay. Lightning's own
                ModelCheckpoint is another thing.
            recovery_override: what a checkpoint does not decide where the script builds it otherwise than before: `{"optimizer": ["lr"]}`.
            **arguments: of Lightning's Trainer.

        Raises:
            UsageError: a strategy other than data parallel training (DDP) or a single device.
        """
        self.session: Session | None = current_session()
        """Of the generation that is under way; None: Lightning's own."""
        session = self.session
        if session is None:
            super().__init__(**arguments)
            return
        self._state: FitState | None = None
        self._hooks: HookState | None = None
        self._sigterm: Any = None
        self._override = recovery_override
        self._goes_on = False
        """Within an epoch that was loaded, whose hooks are still to be made up for."""
        self._watched: list[WatchedLoader] = []
        self._steps = Steps(session)
        super().__init__(**self._of_session(session, arguments))
        self._check_strategy()
        if not isinstance(recovery_checkpoint, ModelCheckpoint):
            recovery_checkpoint = ModelCheckpoint(
                directory=Path(self.default_root_dir) / "recovery_checkpoints" / f"rank_{session.rank}",
                config=recovery_checkpoint
                or CheckpointConfig(save_checkpoint_steps=_EVERY_STEPS, keep_checkpoint_max=_KEPT),
            )
        self._recovery_checkpoint = recovery_checkpoint
        setattr(self.strategy, "process_dataloader", self._watch)  # noqa: B010 - the strategy's hook for loaders; it may be of the user's own class
        if isinstance(self.strategy, DDPStrategy) and not distributed.is_initialized():
            asked = self.strategy.process_group_backend
            if self.strategy.root_device.type == "cuda":
                asked = devices.take(session, asked)
            init_process_group(session, asked or "gloo")

    def _of_session(self, session: Session, arguments: dict[str, Any]) -> dict[str, Any]:
        plugins, callbacks = _list(arguments.get("plugins")), _list(arguments.get("callbacks"))
        return {
            **arguments,
            "devices": _device(session, arguments.get("accelerator", "auto")),
            "num_nodes": session.world_size,
            "plugins": [*plugins, SessionEnvironment(session)],
            # First: what other callbacks do at a batch's beginning is done again by whoever comes back to there.
            "callbacks": [self._steps, *callbacks],
        }

    def _check_strategy(self) -> None:
        strategy = self.strategy
        spawns = getattr(strategy, "_start_method", "popen") != "popen"
        if not isinstance(strategy, (DDPStrategy, SingleDeviceStrategy)) or spawns:
            raise UsageError(
                field=f"Trainer(strategy={type(strategy).__name__})",
                reason='is not strategy="ddp" or a single device: its ranks do not hold the whole state, or it starts them itself',
                next_step="Use strategy='ddp' or 'auto', or save folders and adopt them (docs/howto/large_models.md).",
            )

    @property
    @override
    def local_rank(self) -> int:
        """Among the ranks of this host, of whom one prepares the data."""
        return int(super().local_rank) if self.session is None else self.session.local_rank

    @override
    def fit(self, model: Any, *arguments: Any, ckpt_path: Any = None, **named: Any) -> None:
        """As Lightning's; `ckpt_path` is where the first step of the job goes on from.

        Raises:
            GenerationInterrupted: the generation is over; leaves the function, which is then entered again.
            UsageError: a second `fit` of the function, a training step that draws its batches itself, or `max_epochs` or `max_steps` that are done already.
            CheckpointStateError: the plan's checkpoint does not fit.
        """
        session = self.session
        if session is None:
            super().fit(model, *arguments, ckpt_path=ckpt_path, **named)
            return
        if session.state is not None:
            raise UsageError(
                field="Trainer.fit",
                reason="was called a second time in one function: a process that comes back could not tell which one to go on with",
                next_step="Train all epochs in one call.",
            )
        owner = logger_files.owner_of(session)
        hooks = self._hooks = HookState(self, lambda: [watched.plain for watched in self._watched])
        state = self._state = FitState(self, self._places, hooks, owner)
        self._watch_hooks(hooks)
        session.state = state
        session.training_stop.refusal = "its loop is Lightning's (trainer.should_stop, EarlyStopping)"
        session.restore(state)
        state.check_ends(session.position, epochs_of_averaging(self, model))
        self._stand_in_directories(state)
        self._watch_load(state)
        is_rollback = session.generation > 1
        logger_files.put_back(self.loggers, state.saved.get("loggers", []), owner, is_rollback=is_rollback)
        self._recovery_checkpoint.on_begin(session)
        self._sigterm = signal.getsignal(signal.SIGTERM)
        session.phases.models = lambda: [model]
        with session.loop(), warnings.catch_warnings():
            # It would be true of a loader that nobody watches.
            warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before")
            try:
                super().fit(model, *arguments, ckpt_path=state.path or ckpt_path, **named)
            except SystemExit as error:
                # Lightning turns it into a failure: being asked to stop is none.
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                raise

    def _fit_impl(self, *arguments: Any, **named: Any) -> None:
        try:
            super()._fit_impl(*arguments, **named)
        except BaseException:
            if self.session is not None and self.world_size > 1:
                written_files.save_none_on_exception(self.checkpoint_callbacks)
            raise

    def _stand_in_directories(self, state: FitState) -> None:
        """Each generation's logger has a directory of its own, where none of the best checkpoints would be known."""
        session = self.session
        assert session is not None, "fit has looked"
        for callback in self.checkpoint_callbacks:
            saved = state.checkpoint_directories.get(callback.state_key)
            if saved is not None and getattr(callback, "dirpath", "") is None:
                callback.dirpath = saved
            directory = getattr(callback, "dirpath", None)
            if directory is not None and _is_local(directory) and self.is_global_zero:
                written_files.take_back(session, Path(directory))

    @override
    def save_checkpoint(self, filepath: Any, *arguments: Any, **named: Any) -> None:
        """As Lightning's."""
        session = self.session
        if session is not None and (session.interrupted or (self.interrupted and self.world_size > 1)):
            written_files.log_not_saved(filepath, is_over=session.interrupted)
            return
        if session is not None and self.is_global_zero and _is_local(filepath):
            written_files.note(session, Path(filepath).absolute())
        with session.phases.during(Phase.SAVE) if session is not None else contextlib.nullcontext():
            super().save_checkpoint(filepath, *arguments, **named)

    # --- what `steps` asks for ------------------------------------------------------------------------------------------

    def loads(self) -> None:
        """Lightning has the optimizers, and loads their states next."""
        assert self._hooks is not None, "fit has made it"
        assert self._state is not None, "fit has made it"
        if self._state.path is not None and isinstance(self.strategy, DDPStrategy):
            # DistributedDataParallel has sent rank 0's module to all, and ranks may differ: it averages nothing of what was frozen when it was made.
            saved = self._checkpoint_connector._loaded_checkpoint  # noqa: SLF001 - nothing public tells
            self.strategy.load_model_state_dict(saved, strict=self.lightning_module.strict_loading)
        self._hooks.prepared()
        self._state.note_options(self._override)

    def loaded(self) -> None:
        """Lightning has loaded its part, and stands before the first batch."""
        # Lightning's handler answers SIGTERM with a collective that nobody else is in.
        if self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)
        if isinstance(self.fit_loop._data_fetcher, _DataLoaderIterDataFetcher):  # noqa: SLF001 - nothing public tells
            raise UsageError(
                field="training_step(dataloader_iter)",
                reason="draws its batches itself, so that nobody knows where in the data it is",
                next_step="Take a batch: training_step(batch, batch_idx).",
            )
        state, loop = self._state, self.fit_loop.epoch_loop
        assert state is not None, "fit has made it"
        if not state.saved:
            return
        # Lightning takes a batch that had begun for one that was interrupted, counts it again, and a step with it.
        progress = loop.batch_progress
        progress.total.ready, progress.current.ready = progress.total.completed, progress.current.completed
        progress.is_last_batch = False
        state.put_back()
        self._goes_on = True

    def _watch_load(self, state: FitState) -> None:
        """Torch's own error would name neither field nor next step, and each restart would end with it again."""
        plain = self.strategy.load_model_state_dict

        def load(checkpoint: Any, *arguments: Any, **named: Any) -> None:
            # Only now the hooks that may build the module are done.
            state.check_size(self.lightning_module)
            plain(checkpoint, *arguments, **named)

        setattr(self.strategy, "load_model_state_dict", load)  # noqa: B010 - a method of the user's class, of one object

    def _watch_hooks(self, hooks: HookState) -> None:
        """Lightning calls those of an epoch's begin and end in these two methods of its loop."""
        loop = self.fit_loop

        def begin_epoch() -> None:
            hooks.begin_epoch(plain_begin)
            if not self._goes_on:
                return
            self._goes_on = False
            assert self._state is not None, "fit has made it"
            self._state.put_options()
            # Else it would not tell the schedules that wait for a metric of this epoch's end: its own checkpoints hold no metrics.
            loop._restarting = False  # noqa: SLF001 - nothing public tells
            # The condition on which Lightning will count the batch, by the accumulation that is in force again.
            if not loop.epoch_loop._should_accumulate():  # noqa: SLF001 - as above
                loop.epoch_loop._batches_that_stepped -= 1  # noqa: SLF001 - as above

        def end_run() -> None:
            assert self.session is not None, "fit has looked"
            self.session.phases.end()
            plain_run_end()

        plain_begin, plain_end, plain_run_end = (
            loop.on_advance_start,
            loop.on_advance_end,
            loop.on_run_end,
        )
        setattr(loop, "on_advance_start", begin_epoch)  # noqa: B010 - one of the loop's hooks, of one object
        setattr(loop, "on_advance_end", lambda: hooks.watch(plain_end))  # noqa: B010 - as above
        setattr(loop, "on_run_end", end_run)  # noqa: B010 - as above

    def save_if_due(self, session: Session) -> None:
        """Called at the beginning of a batch, when the one before it counts."""
        with session.phases.during(Phase.SAVE):
            self._recovery_checkpoint.on_step_end(session)
        session.stop_if_asked()

    def _places(self) -> list[dict[str, Any]]:
        """Where each loader of the training is. The batch that has begun was asked for, and is to be asked for again."""
        ahead = 1 + len(getattr(self.fit_loop._data_fetcher, "batches", ()))  # noqa: SLF001 - nothing public tells
        return [watched.place(ahead) for watched in self._watched]

    def _watch(self, loader: Any) -> Any:
        """Lightning hands every loader to the strategy when it has prepared it; those of the training are watched."""
        loader = type(self.strategy).process_dataloader(self.strategy, loader)
        if not self.training or self._state is None:
            return loader
        own_generators.note_of(loader)
        places = self._state.saved.get("loaders", [])
        loaders = self.fit_loop._combined_loader  # noqa: SLF001 - nothing public tells
        if loaders is not None and len(self._watched) == len(loaders.flattened):
            # reload_dataloaders_every_n_epochs: these take the place of the last ones.
            self._watched.clear()
        number = len(self._watched)
        watched = WatchedLoader(loader, places[number] if number < len(places) else None)
        self._watched.append(watched)
        return watched


def _device(session: Session, accelerator: Any) -> int | list[int]:
    """One for each rank: of a host with several GPUs the one that has its local rank's number."""
    count = torch.cuda.device_count() if accelerator in ("auto", "gpu", "cuda") else 0
    return [devices.number_of(session.local_rank, count)] if count > 1 else 1


def _is_local(path: Any) -> bool:
    return "://" not in str(path)


def _list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


class Steps(Callback):  # type: ignore[misc]  # Lightning is not there where types are checked
    """One batch is one step. It is saved at the next one's beginning, when validation, callbacks and loggers of this one are done."""

    def __init__(self, session: Session) -> None:
        """Of one entry."""
        super().__init__()
        self._session, self._is_new = session, False

    @override
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.loads()

    @override
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.loaded()
        self._session.total_steps = _batches_in_all(trainer)

    @override
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        length = trainer.num_training_batches
        # Lightning skips this hook where a pass goes on.
        same_passes.check(None if math.isinf(length) else int(length), epoch=trainer.current_epoch)

    @override
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._session.check()
        if self._is_new:
            # What was just loaded is not saved again.
            self._is_new = False
            trainer.save_if_due(self._session)

    @override
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._session.check()
        step = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self._session.applied(step=step, epoch=trainer.current_epoch + 1, step_in_epoch=batch_idx + 1)
        self._is_new = True

    @override
    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._session.check()


def _batches_in_all(trainer: Any) -> int:
    """With how many batches training is over; 0: nobody knows."""
    epochs, batches = trainer.max_epochs or -1, trainer.num_training_batches
    by_epochs = math.inf if epochs < 0 else epochs * batches
    by_steps = math.inf if trainer.max_steps < 0 else trainer.max_steps * trainer.accumulate_grad_batches
    least = min(by_epochs, by_steps)
    return 0 if math.isinf(least) else int(least)
