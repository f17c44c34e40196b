"""`mindspore.Model` that begins at the plan's step, and whose ModelCheckpoint files are rollback targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import msgspec
from mindspore.train import Callback, LossMonitor, ModelCheckpoint
from mindspore.train import Model as PlainModel
from typing_extensions import override

from recovery import clock
from recovery.checkpoint.position import Position
from recovery.core.phases import Phase
from recovery.errors import UsageError
from recovery.mindspore.built import Built, optimizer_in
from recovery.mindspore.checkpoint_files import Published
from recovery.mindspore.division import Division
from recovery.mindspore.state import load_parameters, stand_behind, versions
from recovery.training.changed_since import Override
from recovery.training.current import current_session
from recovery.training.outlook import check_end
from recovery.training.session import Session


class Model(PlainModel):  # type: ignore[misc]  # MindSpore ships no types
    """MindSpore's Model, argument for argument. Without `recovery.mindspore.init()` it is nothing more.

    `train` and `fit` roll back to the plan's checkpoint and go on at its step: mid-epoch, with the rest of that epoch's data.
    One of them may be called, once: a script that runs again from its first line could not distinguish two. A second call raises UsageError.
    MindSpore's ModelCheckpoint among the callbacks must name its files by texts and keep at least two: else UsageError, SettingError.
    """

    _trained = False

    def __init__(self, *arguments: Any, recovery_override: Override | None = None, **options: Any) -> None:
        """As MindSpore's.

        Args:
            *arguments: as MindSpore's Model has them.
            recovery_override: what a checkpoint does not decide where the script builds it otherwise than before:
                `{"optimizer": ["learning_rate"], "dataset": ["batch_size"]}`.
            **options: as MindSpore's Model has them.
        """
        super().__init__(*arguments, **options)
        self._override = recovery_override

    @override
    def _train(self, epoch: int, train_dataset: Any, *arguments: Any, **options: Any) -> None:
        """What `train` and `fit` end in, after MindSpore has checked their arguments."""
        session = current_session()
        if session is None:
            super()._train(epoch, train_dataset, *arguments, **options)
            return
        if self._trained:
            raise UsageError(
                field="Model.train",
                reason="was called a second time in this process",
                next_step="Train all epochs in one call.",
            )
        self._trained = True
        if options.get("dataset_sink_mode") and mindspore.get_context("device_target") == "CPU":
            # It does the same there, but counts its steps another way.
            options["dataset_sink_mode"] = False
        sink_size = int(options.get("sink_size", -1)) if options.get("dataset_sink_mode") else -1
        batches_per_epoch = sink_size if sink_size > 0 else int(train_dataset.get_dataset_size())
        # The script's own: epochs that an earlier job trained.
        first_epoch = int(options.pop("initial_epoch", 0))
        callbacks = _list(options.pop("callbacks", None))
        savers = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
        published = Published(session, savers, batches_per_epoch)
        division = Division(train_dataset, batches_per_epoch, sink_size=max(0, sink_size))
        session.restore(_Loaded(self._train_network, savers, self._built(division)))
        at = division.place(_without_earlier(session.position, first_epoch))
        batches, passes = division.steps_to(at), epoch - first_epoch
        stand_behind(train_dataset, batches)
        published.ahead = batches - session.step
        session.total_steps = passes * batches_per_epoch - published.ahead
        check_end(at, passes, field="epoch")
        if at.is_over(passes):
            return
        for callback in callbacks:
            _count_from(callback, batches, session.disk_commits.since_ms)
        session.training_stop.refusal = "its loop is MindSpore's (run_context.request_stop())"
        session.phases.models = lambda: [self._network]
        with session.loop():
            super()._train(
                epoch,
                train_dataset,
                *arguments,
                **{
                    **options,
                    "callbacks": [*_with_saves(session, callbacks), published],
                    "initial_epoch": first_epoch + at.epoch,
                    "initial_step": batches,
                },
            )

    def _built(self, division: Division) -> Built:
        """Of a train network that the script has made by itself MindSpore knows no optimizer."""
        around, optimizer = self._train_network, self._optimizer
        if optimizer is None:
            optimizer = optimizer_in(around)
        return Built(self._network, optimizer, division, self._override, around=around)


class _Loaded:
    """The train network as something that can be restored."""

    def __init__(self, network: Any, savers: list[Any], built: Built) -> None:
        self._network, self._savers, self._built = network, savers, built

    def begin(self) -> None:
        """Keep the network as it was built."""

    def read(self, path: Path) -> None:
        """Load MindSpore's file; a saver's key and mode open an encrypted one."""
        key, mode = None, "AES-GCM"
        for saver in self._savers:
            key, mode = saver._config.enc_key, saver._config.enc_mode  # noqa: SLF001 - MindSpore has no other way to ask
        load_parameters(path, self._network, leave=self._built.overridden, key=key, mode=mode)

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return versions()

    def built(self) -> dict[str, str]:
        """For the manifest: rates and other options, the division of the data, the number of parameters."""
        return self._built.said()

    def compare(self, saved: Mapping[str, str]) -> None:
        """Say what was built otherwise."""
        self._built.compare(saved)


def _without_earlier(at: Position, first_epoch: int) -> Position:
    """MindSpore counts epochs that an earlier job trained, and no steps of them."""
    return msgspec.structs.replace(at, epoch=max(0, at.epoch - first_epoch))


def _list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


class _Enters(Callback):  # type: ignore[misc]  # as above
    """Behind each step the main thread goes on with this."""

    def __init__(self, session: Session, phase: Phase) -> None:
        super().__init__()
        self._session, self._phase = session, phase

    @override
    def on_train_step_end(self, run_context: Any) -> None:
        self._session.phases.enter(self._phase)


class _Ends(Callback):  # type: ignore[misc]  # as above
    """What other callbacks do behind the last step is none."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    @override
    def on_train_end(self, run_context: Any) -> None:
        self._session.phases.end()


def _with_saves(session: Session, callbacks: Sequence[Any]) -> Iterator[Any]:
    """MindSpore calls them in this order: what saves is no part of a step."""
    yield _Ends(session)
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint):
            yield from (_Enters(session, Phase.SAVE), callback, _Enters(session, Phase.STEP))
        else:
            yield callback


def _count_from(callback: Any, step: int, since_commit_ms: int | None) -> None:
    """Let MindSpore's own callbacks save and print at the same steps, and after the same time, wherever a generation begins."""
    if isinstance(callback, ModelCheckpoint):
        config = callback._config  # noqa: SLF001 - it has no other way in
        every, seconds = config.save_checkpoint_steps, config.save_checkpoint_seconds
        callback._last_triggered_step = step // every * every if every else step  # noqa: SLF001 - as above
        since_s = (seconds or 0) if since_commit_ms is None else since_commit_ms / 1000
        callback._last_time = clock.wall_ms() / 1000 - since_s  # noqa: SLF001 - as above; MindSpore reads the wall clock
    if isinstance(callback, LossMonitor):
        every = callback._per_print_times  # noqa: SLF001 - as above
        callback._last_print_time = step // every * every if every else 0  # noqa: SLF001 - as above
