"""Files that MindSpore's ModelCheckpoint wrote become rollback targets: digested, durable, with a manifest, and reported.

MindSpore renames its finished file into place and syncs nothing. A watch of the directory finds it there, also when it is written
behind the steps (async_save), and does the rest behind the steps as well.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
import re
import threading
from pathlib import Path
from typing import Any

from mindspore.train import Callback
from typing_extensions import override

from recovery.checkpoint import adopt, catalogue, names, retention
from recovery.checkpoint.contribution import Layout
from recovery.checkpoint.watch import DirectoryWatch
from recovery.errors import CheckpointWriteError, UsageError
from recovery.training import earlier_jobs
from recovery.training.checkpoint_config import CheckpointConfig, rule_of
from recovery.training.pending_checkpoint import PendingCheckpoint
from recovery.training.save_thread import SaveThread
from recovery.training.session import Session

_logger = logging.getLogger("recovery.mindspore")


class Published(Callback):  # type: ignore[misc]  # MindSpore ships no types
    """Last in the list of callbacks: what the others did with a step is done. Counts the steps, too."""

    def __init__(self, session: Session, savers: list[Any], batches_per_epoch: int) -> None:
        """Look at what saves.

        Raises:
            SettingError: a saver keeps too few to recover.
            UsageError: a saver names its files in a way that nobody could read back.
            CheckpointError: training begins, and a directory holds checkpoints of a job that nobody here knows.
        """
        super().__init__()
        self._session, self._batches_per_epoch = session, batches_per_epoch
        self._directories = [_SaverDirectory(session, saver) for saver in savers]
        self.ahead = 0
        """Steps that MindSpore counts more than are trained: it counts as if all epochs had been divided as this one is."""
        self._run_context: Any = None
        """Of the newest step."""
        for directory in self._directories:
            session.save_when_asked(functools.partial(self._save_out_of_turn, directory))

    def _save_out_of_turn(self, directory: _SaverDirectory) -> None:
        directory.save_out_of_turn(self._run_context.original_args())

    @override
    def on_train_begin(self, run_context: Any) -> None:
        """Begin to look."""
        for directory in self._directories:
            directory.open()

    @override
    def on_train_step_begin(self, run_context: Any) -> None:
        """A generation that is over trains no further."""
        self._session.check()

    @override
    def on_train_step_end(self, run_context: Any) -> None:
        """A step is applied, and may have been saved."""
        now = run_context.original_args()
        self._session.check()
        counted = int(now.cur_step_num)
        step = counted - self.ahead
        if step > self._session.step + 1:
            self._session.refuse_drains("MindSpore's data sink takes several steps in one")
        self._session.applied(
            step=step,
            epoch=int(now.cur_epoch_num),
            step_in_epoch=(counted - 1) % self._batches_per_epoch + 1,
        )
        for directory in self._directories:
            directory.scan()
        self._run_context = run_context
        self._session.stop_if_asked()

    @override
    def on_train_end(self, run_context: Any) -> None:
        """Complete the last file before this rank is reported done."""
        for directory in self._directories:
            directory.scan()
            directory.close()


def _given_prefix(directory: Path, prefix: str) -> str:
    """What the script gave: where files of that prefix were there, MindSpore has put a number behind it."""
    given = re.sub(r"_[0-9]+$", "", prefix)
    return given if any(directory.glob(f"{glob.escape(given)}-*")) else prefix


class _SaverDirectory:
    """One ModelCheckpoint and its directory."""

    def __init__(self, session: Session, saver: Any) -> None:
        config = saver._config  # noqa: SLF001 - MindSpore has no other way to ask
        if saver._prefix_func is not None or saver._directory_func is not None:  # noqa: SLF001 - as above
            raise UsageError(
                field="ModelCheckpoint",
                reason="a function names its files or their directory, so a relaunched process could not find them",
                next_step="Give prefix and directory as texts.",
            )
        self._config = CheckpointConfig(
            config.save_checkpoint_steps,
            config.save_checkpoint_seconds,
            config.keep_checkpoint_max,
            config.keep_checkpoint_per_n_minutes,
        )
        if session.recovery_enabled:
            self._config.check_for_recovery()
        if session.memory.every_steps:
            _logger.warning(
                "event=memory_checkpoints_off MindSpore writes its files itself: they go to the disk alone, and"
                " MS_MEMORY_CHECKPOINT_STEPS has no effect"
            )
        self._session, self._saver = session, saver
        self._layout = Layout.RANK if config.integrated_save else Layout.SHARDED
        self._directory = Path(saver._directory).absolute()  # noqa: SLF001 - as above
        earlier_jobs.check(session, self._directory, _given_prefix(self._directory, saver._prefix))  # noqa: SLF001 - as above
        self._newest = ""
        self._under_way: dict[str, PendingCheckpoint] = {}
        self._adopted: set[Path] = set()
        self._one_at_a_time = threading.Lock()
        self._retention = retention.Retention(self._found, rule_of(self._config), self._is_of_this_process)
        self._watch = DirectoryWatch(self._directory, self._adopt)

    def open(self) -> None:
        self._session.checkpoint_directory(self._directory, str(self._saver._prefix))  # noqa: SLF001 - as above
        self._watch.start()

    def scan(self) -> None:
        """Has ModelCheckpoint begun a file at this step?"""
        newest = self._saver.latest_ckpt_file_name
        if newest == self._newest:
            return
        self._newest = newest
        name = Path(newest).name
        save = self._under_way[name] = PendingCheckpoint(self._session, name, layout=self._layout)
        # The watch may have looked before this was noted.
        if (self._directory / name).exists():
            SaveThread("recovery-adopt").begin(save, self._adopt)

    def save_out_of_turn(self, now: Any) -> None:
        """Have ModelCheckpoint save this step, unless it just has. Its schedule stays that of all ranks."""
        saver = self._saver
        schedule = saver._last_triggered_step, saver._last_time  # noqa: SLF001 - MindSpore has no other way to ask
        saver._save_ckpt(now, True)  # noqa: SLF001 - as above; positional in some releases
        saver._last_triggered_step, saver._last_time = schedule  # noqa: SLF001 - as above
        self.scan()

    def close(self) -> None:
        """MindSpore has waited for its own threads: what it began is there."""
        self._watch.stop()
        self._adopt()

    def _adopt(self) -> None:
        """Complete what has appeared. Called by the watch's thread, and once at the end."""
        with self._one_at_a_time:
            for name in tuple(self._under_way):
                if (self._directory / name).exists():
                    self._complete(self._under_way.pop(name))
            self._retain()

    def _complete(self, save: PendingCheckpoint) -> None:
        path = self._directory / save.name
        try:
            manifest = adopt.adopt(path, save.manifest, self._session.still_owns_rank)
        except CheckpointWriteError as error:
            save.failed(error.fact)
            return
        except Exception as error:
            _logger.exception("event=save_broken step=%d", save.step)
            save.failed(f"{type(error).__name__}: {error}")
            return
        self._adopted.add(path)
        save.published(catalogue.held_of(manifest, path))

    def _retain(self) -> None:
        """MindSpore removes the files of this process's prefix; those of earlier incarnations (`train`, beside `train_1`) are ours to remove.

        A manifest whose file MindSpore has removed goes too.
        """
        for path in [path for path in self._adopted if not path.exists()]:
            # A manifest without its file is no checkpoint, so one that stays does no harm.
            with contextlib.suppress(OSError):
                retention.remove(path)
            self._adopted.remove(path)
        session = self._session
        self._retention.apply(
            previous_durable_step=session.previous_durable_step, pinned=session.pinned_steps
        )

    def _found(self) -> catalogue.Listing:
        session = self._session
        return catalogue.list_directory(
            self._directory, None, job=session.job, run=session.run, rank=session.rank
        )

    def _is_of_this_process(self, path: Path) -> bool:
        parsed = names.parse(path.name)
        return parsed is not None and parsed.prefix == self._saver._prefix  # noqa: SLF001 - as above
