"""Sends what the scheduler orders of one rank's checkpoints to object storage, in a thread of low priority; behind training the last one.

Whatever fails is one line of the log; it is tried again until another step is ordered. Training never waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from recovery import clock
from recovery.checkpoint.contribution import Layout, Manifest
from recovery.checkpoint.verify import check
from recovery.core.held import HeldCheckpoint
from recovery.core.records import CheckpointRecord
from recovery.errors import CheckpointError, CheckpointWriteError
from recovery.objects import commits
from recovery.objects.store import ObjectStore

_logger = logging.getLogger("recovery.objects")
_AGAIN_S = 2.0
_NEXT_STEP = "Check MS_CHECKPOINT_STORE, the driver's credentials and endpoint, and the way there."
_NICENESS = 5
"""Training goes first. At 10 the sending hardly moved beside busy processes, and it did not end in time when training was over."""
_KNOWN_MAX = 64
"""Own checkpoints whose place is remembered; older ones are gone from the disk by then."""
_SENT_AS_ONE = (Layout.RANK, Layout.SHARDED)
"""Contributions that are loaded without files of other ranks beside them."""


class Part(NamedTuple):
    """This rank's contribution to a step."""

    step: int
    path: Path
    digest: str
    """What was rolled back comes again under the same number and name."""

    @classmethod
    def of(cls, checkpoint: HeldCheckpoint | CheckpointRecord) -> Part:
        """As a rank has reported it."""
        return cls(checkpoint.step, Path(checkpoint.path), checkpoint.digest)


class _NotAsSavedError(Exception):
    """This rank's part of a step is not what was saved, or gone."""


class Uploads:
    """One per process; its thread begins with the first order."""

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        *,
        pin: Callable[[tuple[int, ...]], None] = lambda steps: None,
        failed: Callable[[int, str], None] = lambda step, reason: None,
        over: Callable[[Part, bool], None] = lambda part, is_there: None,
        leads_here: Callable[[int, commits.At], bool] = lambda run, at: True,
        again_s: float = _AGAIN_S,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            store: makes the way to the storage, in the thread. May raise a CheckpointError.
            pin: takes the steps that stay on this rank's disk: the newest that the storage is known to have committed, and the one that is
                sent. A rank that has lost its disk comes back with the former, and the others must hold it then.
            failed: takes the step of an upload that failed, and why: once a step, however often it is tried. From any thread.
            over: takes what was ordered once it is there, or (False) never will be. From any thread.
            leads_here: does a step of a run in the storage lead to where training is now? What was rolled back is of no use to anybody.
            again_s: how soon it looks again where another rank is behind, or the storage has failed.
        """
        self._pin, self._failed, self._over, self._leads_here = pin, failed, over, leads_here
        self._make_store, self._again_s = store, again_s
        self._store: ObjectStore | None = None
        self._changed = threading.Condition()
        self._ordered: Part | None = None
        """What the scheduler has ordered, until all ranks have sent it."""
        self._is_told = False
        """Does the scheduler know what became of this rank's part of it?"""
        self._unsent: Part | None = None
        """Of the newest committed step, while the storage is not known to have it whole."""
        self._whole: Part | None = None
        """The newest that the storage is known to have whole."""
        self._training_is_over = False
        self._known: dict[int, Part] = {}
        """This rank's checkpoints by step, the newest last."""
        self._thread: threading.Thread | None = None
        self._sent: tuple[Part, Manifest] | None = None
        """This rank's part that is there, as it was verified."""
        self._listed: tuple[int, Sequence[commits.At]] = (0, ())
        """As `note_listed` was told last."""
        self._sending: tuple[int, ...] = ()
        """The step that was ordered last, and behind it one before it that the storage may have since it was listed."""
        self._stopped = False
        self._failures = 0
        """Attempts that the storage did not let through."""
        self._trouble = ""
        """What failed, as it was logged: logged again when it changes."""
        self._told_failed = 0
        """The step of which it was told that it failed; 0: of none."""

    def know(self, part: Part) -> None:
        """This rank holds a checkpoint, committed or not."""
        with self._changed:
            self._known.pop(part.step, None)
            self._known[part.step] = part
            while len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]

    def note_listed(self, run: int, listed: Sequence[commits.At]) -> None:
        """The storage was seen to have committed these steps of a run, newest first."""
        with self._changed:
            self._listed, self._sending = (run, listed), self._sending[:1]
            self.pin_again()

    def pin_again(self) -> None:
        """Which steps lead to where training is may have changed: let the newest of them that the storage has stay on this disk."""
        with self._changed:
            run, listed = self._listed
            newest = next(((at.step,) for at in listed if self._leads_here(run, at)), ())
            self._pin((*newest, *self._sending))

    def committed(self, step: int) -> None:
        """All ranks hold this step: it is still to be sent, if this one is known to hold it."""
        with self._changed:
            part = self._known.get(step)
            if part is not None:
                self._note_committed(part)
            if self._ordered is not None:
                self._begin()

    def _note_committed(self, part: Part) -> None:
        if part != self._whole:
            self._unsent = part
            self._changed.notify_all()

    def order(self, part: Part) -> None:
        """All ranks send this step now."""
        with self._changed:
            self._ordered, self._is_told = part, False
            self._sending = (part.step, *self._sending[:1])
            # Before a newer commit lets its file go.
            self.pin_again()
            if self._unsent is None or self._unsent.step <= part.step:
                self._note_committed(part)
            self._begin()

    def end_training(self) -> None:
        """The job has finished and nobody orders any more: all ranks send the newest committed step."""
        with self._changed:
            self._training_is_over = True
            if self._unsent is not None:
                self._begin()

    def _begin(self) -> None:
        self._changed.notify_all()
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="recovery-uploads", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _logger.warning(
                "event=upload_failed no thread can be started now; the next commit tries again: %s", error
            )
            assert self._next is not None, "it begins with something"
            self._failed(self._next.step, str(error))
        else:
            self._thread = thread

    @property
    def _next(self) -> Part | None:
        """What is to be sent now. Asked with the lock held."""
        return self._unsent if self._training_is_over else self._ordered

    @property
    def unsent(self) -> Part | None:
        """The newest committed step, while it is still to be sent; None: nothing is."""
        with self._changed:
            return self._unsent

    @property
    def trouble(self) -> str:
        """Why the attempt before this failed; empty: it did not."""
        return self._trouble

    def finish(self, within_s: float) -> bool:
        """Wait until nothing is left to be sent; False: there is, and the time is over or the storage still fails.

        Where no thread could be started, it is sent here: Python 3.12 starts none behind the script's end, where the first commit may come.
        """
        give_up_ms, given_up = clock.monotonic_ms() + within_s * 1000, self._failures + 1

        def is_over() -> bool:
            return self._unsent is None or self._failures >= given_up

        with self._changed:
            self._training_is_over = True
            self._changed.notify_all()
        while self._thread is None and not is_over() and clock.monotonic_ms() < give_up_ms:
            self._take_turn()
        with self._changed:
            self._changed.wait_for(is_over, max(0.0, give_up_ms - clock.monotonic_ms()) / 1000)
            return self._unsent is None

    def stop(self) -> None:
        """Give up what is not sent: the thread ends with the attempt that is under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    # --- its thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._stopped)
            if self._stopped:
                return
            self._take_turn()

    def _take_turn(self) -> None:
        """One attempt, and the pause behind one that has left something to do."""
        with self._changed:
            part = self._next
        # None: training has ended meanwhile, and all is sent.
        if part is not None and not self._try(part):
            with self._changed:
                self._changed.wait_for(lambda: self._next != part or self._stopped, self._again_s)

    def _try(self, part: Part) -> bool:
        """Do what can be done now; whether nothing is left to do for this step."""
        try:
            done = self._advance(part)
        except _NotAsSavedError as error:
            # Behind training it is looked at once more; before, the next step is ordered.
            self._note_over(part, is_there=False, is_whole=False)
            self._say(
                part, str(error), str(error), f"event=upload_left_out path={part.path} reason={str(error)!r}"
            )
            return False
        except CheckpointError as error:
            # Its own next step is one for a disk.
            self._say(part, error.fact, f"{error.fact} {_NEXT_STEP}")
            return False
        except Exception as error:
            # A driver's mistake must not end the thread: the next step is tried again.
            _logger.exception("event=upload_failed path=%s", part.path)
            reason = f"{type(error).__name__}: {error}"
            self._say(part, reason, reason)
            return False
        self._trouble, self._told_failed = "", 0
        return done

    def _advance(self, part: Part) -> bool:
        sent_before = self._sent is not None and self._sent[0] == part
        manifest = self._sent[1] if self._sent is not None and sent_before else self._sendable(part)
        if manifest is None:
            self._note_over(part, is_there=False, is_whole=True)
            return True
        store = self._store = self._store or self._checked(self._make_store())
        if not sent_before:
            self.note_listed(manifest.run, commits.steps(store, manifest.job, manifest.run))
        commit = commits.send(store, part.path, manifest)
        if not sent_before:
            self._sent = part, manifest
            _logger.info(
                "event=checkpoint_uploaded step=%d path=%s committed=%s",
                part.step,
                part.path,
                commit is not None,
            )
        if commit is not None:
            self._tidy(store, manifest)
        self._note_over(part, is_there=True, is_whole=commit is not None)
        return commit is not None

    def _note_over(self, part: Part, *, is_there: bool, is_whole: bool) -> None:
        """This rank has done what it can for a part; `is_whole`: nothing is left to do for its step."""
        with self._changed:
            is_new = self._ordered == part and not self._is_told
            self._is_told = self._is_told or is_new
            if is_whole:
                self._whole = part
                self._unsent = None if self._unsent == part else self._unsent
                self._changed.notify_all()
            if is_whole or not is_there:
                self._ordered = None if self._ordered == part else self._ordered
        if is_new:
            self._over(part, is_there)

    def _checked(self, store: ObjectStore) -> ObjectStore:
        """The storage, if a step can be committed there."""
        if not store.creates_once():
            reason = "the storage lets an object be written over that was to be created once: it needs conditional writes (If-None-Match: *)"
            raise CheckpointWriteError(path=store.url, reason=reason)
        return store

    def _tidy(self, store: ObjectStore, manifest: Manifest) -> None:
        try:
            removed = commits.retain(
                store, manifest.job, manifest.run, partial(self._leads_here, manifest.run)
            )
        except CheckpointError as error:
            _logger.warning("event=uploads_not_retained %s", error.fact)
        else:
            if removed:
                _logger.info("event=uploads_retained removed=%s", ",".join(str(at.step) for at in removed))

    def _sendable(self, part: Part) -> Manifest | None:
        """Verify what is to be sent; None: its layout is never sent.

        Raises:
            _NotAsSavedError: it is not what was saved, or gone.
        """
        try:
            manifest = check(part.path)
        except (CheckpointError, OSError) as error:
            raise _NotAsSavedError(
                error.fact if isinstance(error, CheckpointError) else str(error)
            ) from error
        if manifest.digest != part.digest:
            reason = "another checkpoint lies there now"
            raise _NotAsSavedError(reason)
        if manifest.layout in _SENT_AS_ONE:
            return manifest
        reason = f"layout {manifest.layout.value} cannot be loaded without other ranks' files"
        _logger.warning("event=upload_left_out path=%s reason=%r", part.path, reason)
        self._failed(part.step, reason)
        return None

    def _say(self, part: Part, reason: str, advice: str, line: str = "") -> None:
        if reason != self._trouble:
            self._trouble = reason
            again = f"event=upload_failed training goes on, and it is tried again: {advice}"
            _logger.warning("%s", line or again)
        if part.step != self._told_failed:
            self._told_failed = part.step
            self._failed(part.step, advice)
        # A caller that waits for the last step finds the reason in the log.
        with self._changed:
            self._failures += part == self._unsent
            self._changed.notify_all()
