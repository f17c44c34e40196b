"""Folders that a framework wrote by itself become checkpoints: digested, durable, with a manifest, and reported."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from recovery.checkpoint import adopt, catalogue, framework_folders
from recovery.checkpoint.contribution import Layout
from recovery.checkpoint.durable_files import reason_of
from recovery.checkpoint.retention import Retention, Rule, remove
from recovery.errors import CheckpointWriteError, SettingError, UsageError
from recovery.training import earlier_jobs
from recovery.training.pending_checkpoint import AppliedStep, PendingCheckpoint, applied_step
from recovery.training.save_thread import SaveThread
from recovery.training.session import Callback, Session
from recovery.training.shared_directory_probe import note_in

_logger = logging.getLogger("recovery.training")

_STEP = "{step}"
_APPLIED_MAX = 10_000
"""Steps of which the place in training is remembered, for folders that are finished behind the steps. A save takes far fewer."""

_Mark = tuple[str, int, int, int]
"""Name, inode, size and time of change (ns) of what is written last."""


def adopt_folder(
    session: Session,
    path: str | Path,
    *,
    shared: bool = True,
    keep: int | None = None,
    is_pinned: Callable[[Path], bool] = lambda folder: False,
) -> None:
    """Make a checkpoint of a folder that was just written, at the step where training stands. Returns when it is durable and reported.

    Every rank calls this after the same step, when all of it that this rank writes is there. A folder that cannot be taken costs
    nothing but itself: a log line says why, and training goes on.

    Args:
        session: of this entry. A loop that is not `steps` calls `applied` first.
        path: of the folder.
        shared: all ranks write this one folder, as torch.distributed.checkpoint does; each then digests the files whose names carry its
            number, and rank 0 all others. False: it is this rank's own, and it digests all of it.
        keep: how many of the directory's folders stay, at least 2; older ones are removed. None: all of them; the framework that wrote them removes them.
        is_pinned: says of a folder that would go whether it stays all the same, as the one with the best model.

    Raises:
        UsageError: no step was taken yet.
        SettingError: `keep` is too small.
        CheckpointError: `shared`, and the ranks do not see one directory.
        GenerationInterrupted: the generation ended while other ranks were waited for.
    """
    folder = Path(path).absolute()
    if not session.step:
        raise UsageError(
            field="adopt_folder",
            reason="training stands before its first step, so nobody could go back to this folder",
            next_step="Call it after a step; a loop that is not session.steps tells its steps by session.applied(...).",
        )
    if session not in _adopters:
        _adopters.clear()
    of_session = _adopters.setdefault(session, {})
    if folder.parent not in of_session:
        of_session[folder.parent] = _Adopter(
            session, folder.parent, shared=shared, keep=keep, is_pinned=is_pinned
        )
    adopter = of_session[folder.parent]
    adopter.await_others()
    adopter.adopt(folder, adopter.pending(folder, applied_step(session)))


class AdoptFolders(Callback):
    """Makes checkpoints of the finished folders of a directory, as they appear, behind the steps.

    A folder is finished when `.metadata` (torch.distributed.checkpoint) or `trainer_state.json` (the Trainer of transformers) is in it. Of others
    the program knows when they are: it calls `adopt_folder`.
    """

    changes_state = False
    saves_state = True

    def __init__(
        self, directory: str | Path, pattern: str = "checkpoint-{step}", *, shared: bool = True, keep: int = 5
    ) -> None:
        """Choose the place.

        Args:
            directory: that holds the folders.
            pattern: of their names, with `{step}` where the number of steps taken stands; otherwise as in a shell (`*`, `?`).
            shared: as for `adopt_folder`.
            keep: how many stay, at least 2; older ones are removed.

        Raises:
            SettingError: there is no `{step}` in the pattern, or `keep` is too small.
        """
        if pattern.count(_STEP) != 1 or "/" in pattern:
            raise SettingError(
                "SETTING_RANGE",
                field="pattern",
                value=pattern,
                rule="must be a name with {step} in it once: nothing else says of which step a folder is",
                next_step='Use for example pattern="checkpoint-{step}", or call adopt_folder after the save.',
            )
        _check_keep(keep)
        before, after = (
            fnmatch.translate(part).removesuffix(r"\Z").removesuffix(r"\z") for part in pattern.split(_STEP)
        )
        self._name = re.compile(f"{before}(?P<step>[1-9][0-9]{{0,15}}){after}")
        self._directory, self._shared, self._keep = Path(directory).absolute(), shared, keep
        self._adopter: _Adopter | None = None
        self._marks: dict[str, _Mark] = {}
        """By folder: how what is written last looked when it was looked at."""
        self._applied: dict[int, AppliedStep] = {}
        self._thread = SaveThread("recovery-adopt")

    @override
    def on_begin(self, session: Session) -> None:
        """Look at what is there already: its step was taken before, so nothing is made of it.

        Raises:
            CheckpointError: as for ModelCheckpoint.
            OSError: the directory cannot be made or listed.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        earlier_jobs.check(session, self._directory, catalogue.FOLDERS)
        self._adopter = _Adopter(session, self._directory, shared=self._shared, keep=self._keep)
        self._marks, self._applied = self._finished(), {}
        session.before_done(self._join)
        session.on_generation_end(self._join)

    @override
    def on_step_end(self, session: Session) -> None:
        """Take what was finished since the last step."""
        self._applied[session.step] = applied_step(session)
        if len(self._applied) > _APPLIED_MAX:
            del self._applied[next(iter(self._applied))]
        self._look()

    @override
    def on_end(self, session: Session) -> None:
        """Take what is left, and wait for it."""
        self._look()
        self._join()

    def _look(self) -> None:
        assert self._adopter is not None, "on_begin comes first"
        for name, mark in sorted(self._finished().items(), key=lambda found: self._step_of(found[0])):
            if self._marks.get(name) == mark:
                continue
            self._marks[name] = mark
            of = self._applied.get(self._step_of(name))
            if of is None:
                _logger.warning(
                    "event=folder_not_adopted path=%s reason='its step was not taken in this generation'",
                    self._directory / name,
                )
                continue
            self._adopter.await_others()
            # One at a time: a disk that cannot keep up slows training instead of falling ever further behind.
            save = self._adopter.pending(self._directory / name, of)
            self._thread.begin(save, functools.partial(self._adopter.adopt, self._directory / name, save))

    def _finished(self) -> dict[str, _Mark]:
        found: dict[str, _Mark] = {}
        for entry in self._directory.iterdir():
            mark = _mark(entry) if self._name.fullmatch(entry.name) else None
            if mark is not None:
                found[entry.name] = mark
        return found

    def _step_of(self, name: str) -> int:
        match = self._name.fullmatch(name)
        assert match is not None, "only names that fit are looked at"
        return int(match["step"])

    def _join(self) -> None:
        self._thread.join()


class _Adopter:
    """The folders of one directory, in one generation."""

    def __init__(
        self,
        session: Session,
        directory: Path,
        *,
        shared: bool,
        keep: int | None,
        is_pinned: Callable[[Path], bool] = lambda folder: False,
    ) -> None:
        if keep is not None:
            _check_keep(keep)
        self._session, self._directory = session, directory
        self._shared_by = session.world_size if shared else 1
        self._adopted: set[Path] = set()
        self._others = note_in(directory, "folders", session) if self._shared_by > 1 else None
        session.checkpoint_directory(directory, catalogue.FOLDERS)
        self._retention: Retention | None = None
        if keep is not None:
            rule = Rule(keep_checkpoint_max=keep, keep_checkpoint_per_n_minutes=0)
            self._retention = Retention(
                lambda: catalogue.list_directory(
                    directory, catalogue.FOLDERS, job=session.job, run=session.run, rank=session.rank
                ),
                rule,
                is_pinned=is_pinned,
                rank=session.rank,
            )

    def await_others(self) -> None:
        """Once: see that all ranks see one directory.

        Raises:
            CheckpointError: they do not.
            GenerationInterrupted: the generation is over.
        """
        if self._others is not None:
            self._others.await_others(self._session.check)
            self._others = None

    def pending(self, folder: Path, of: AppliedStep) -> PendingCheckpoint:
        """What a finished folder is to be."""
        return PendingCheckpoint(self._session, folder.name, layout=Layout.FOREIGN, of=of)

    def adopt(self, folder: Path, save: PendingCheckpoint) -> None:
        """Complete a finished folder. From any thread, one at a time."""
        session = self._session
        try:
            manifest = adopt.adopt_folder(
                folder, save.manifest, session.still_owns_rank, rank=session.rank, shared_by=self._shared_by
            )
        except CheckpointWriteError as error:
            save.failed(error.fact)
            return
        save.published(catalogue.held_of(manifest, folder))
        self._adopted.add(folder)
        self._forget_gone()
        if self._retention is not None:
            self._retention.apply(
                previous_durable_step=session.previous_durable_step, pinned=session.pinned_steps
            )

    def _forget_gone(self) -> None:
        """A framework may remove its folders itself: the manifest of one that is gone goes too."""
        for folder in [adopted for adopted in self._adopted if not adopted.exists()]:
            # A manifest without its folder is no checkpoint, so one that stays does no harm.
            with contextlib.suppress(OSError):
                remove(folder, rank=self._session.rank)
            self._adopted.remove(folder)


_adopters: dict[Session, dict[Path, _Adopter]] = {}
"""Of `adopt_folder`, which has nowhere else to remember them, and of the newest session: each generation has one, and no other comes back."""


def _mark(folder: Path) -> _Mark | None:
    """How what is written last looks; None: it is not there."""
    for name in framework_folders.FINISHED:
        try:
            facts = (folder / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _logger.warning("event=folder_not_adopted path=%s reason=%r", folder, reason_of(error))
            return None
        return name, facts.st_ino, facts.st_size, facts.st_mtime_ns
    return None


def _check_keep(keep: int) -> None:
    if keep < 2:  # noqa: PLR2004 - the rule says why
        raise SettingError(
            "SETTING_RANGE",
            field="keep",
            value=keep,
            rule="must be at least 2: ranks can be one save apart, so the one before must still be there",
            next_step="Set keep=2 or more.",
        )
