"""Sends committed checkpoints of one rank to object storage, in a thread of low priority: one at a time, of those that wait only the newest.

Whatever fails is one line of the log; it is tried again until a newer step takes its place. Training never waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from recovery import clock
from recovery.checkpoint.contribution import Layout, Manifest
from recovery.checkpoint.verify import check
from recovery.errors import CheckpointError, CheckpointWriteError
from recovery.objects import commits
from recovery.objects.store import ObjectStore
from recovery.objects.upload_order import UploadOrder

_logger = logging.getLogger("recovery.objects")
_AGAIN_S = 2.0
_NEXT_STEP = "Check MS_CHECKPOINT_STORE, the driver's credentials and endpoint, and the way there."
_NICENESS = 5
"""Training goes first. At 10 the sending hardly moved beside busy processes, and it did not end in time when training was over."""
_KNOWN_MAX = 64
"""Own checkpoints whose place is remembered; older ones are gone from the disk by then."""
_SENT_AS_ONE = (Layout.RANK, Layout.SHARDED)
"""Contributions that are loaded without files of other ranks beside them."""


class Uploads:
    """One per process; its thread begins with the first checkpoint."""

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        *,
        pin: Callable[[tuple[int, ...]], None] = lambda steps: None,
        failed: Callable[[int, str], None] = lambda step, reason: None,
        leads_here: Callable[[int, commits.At], bool] = lambda run, at: True,
        again_s: float = _AGAIN_S,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            store: makes the way to the storage, in the thread. May raise a CheckpointError.
            pin: takes the steps that stay on this rank's disk: the newest that the storage is known to have committed, and the one whose
                turn it is. A rank that has lost its disk comes back with the former, and the others must hold it then.
            failed: takes the step of an upload that failed, and why: once a step, however often it is tried. From any thread.
            leads_here: does a step of a run in the storage lead to where training is now? What was rolled back is of no use to anybody.
            again_s: how soon it looks again where another rank is behind, or the storage has failed.
        """
        self._pin, self._failed, self._leads_here = pin, failed, leads_here
        self._make_store, self._again_s = store, again_s
        self._store: ObjectStore | None = None
        self._changed = threading.Condition()
        self._newest: Path | None = None
        """What is to be sent; None: nothing is left."""
        self._known: dict[int, Path] = {}
        """Where this rank's checkpoints lie, by step, the newest last: another rank may say which one is sent."""
        self._waiting: list[int] = []
        """Committed steps that have had no turn yet, oldest first; at most twice as many as `_known`."""
        self._thread: threading.Thread | None = None
        self._turns: tuple[tuple[str, int, int], UploadOrder] | None = None
        self._listed: tuple[int, Sequence[commits.At], commits.At | None] = (0, (), None)
        """As `note_listed` was told last."""
        self._stopped = False
        self._failures = 0
        """Attempts that the storage did not let through."""
        self._trouble = ""
        """What failed, as it was logged: logged again when it changes."""
        self._failed_since = ""
        """What failed since the turn began."""
        self._sending = self._told = 0
        """The step that is being sent, and the one of which it was told that it failed; 0: of none."""

    def know(self, step: int, path: Path) -> None:
        """This rank holds a checkpoint, committed or not."""
        with self._changed:
            self._known.pop(step, None)
            self._known[step] = path
            while len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]

    def note_listed(self, run: int, listed: Sequence[commits.At], turn: commits.At | None = None) -> None:
        """The storage was seen to have committed these steps of a run, newest first; `turn`: what is sent now."""
        self._listed = run, listed, turn
        self.pin_again()

    def pin_again(self) -> None:
        """Which steps lead to where training is may have changed: let the newest of them that the storage has stay on this disk."""
        run, listed, turn = self._listed
        newest = next((at for at in listed if self._leads_here(run, at)), None)
        self._pin(tuple(at.step for at in (newest, turn) if at is not None))

    def committed(self, step: int) -> None:
        """All ranks hold this step: send it, if this one is known to hold it."""
        with self._changed:
            path = self._known.get(step)
            if path is None:
                return
            self._newest = path
            # What was rolled back comes again under the same number.
            self._waiting = [*(waiting for waiting in self._waiting if waiting < step), step]
            if len(self._waiting) > 2 * _KNOWN_MAX:
                # Their places are not known any more: no turn can bring them back.
                self._say_skipped(self._waiting[:_KNOWN_MAX], step)
                del self._waiting[:_KNOWN_MAX]
            if self._thread is None and not self._start():
                return
            self._changed.notify_all()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name="recovery-uploads", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _logger.warning(
                "event=upload_failed no thread can be started now; the next commit tries again: %s", error
            )
            self._failed(self._waiting[-1], str(error))
            return False
        self._thread = thread
        return True

    @property
    def unsent(self) -> tuple[int, Path] | None:
        """What is still to be sent: its step and where this rank's part lies; None: nothing."""
        with self._changed:
            found = ((step, path) for step, path in self._known.items() if path == self._newest)
            return next(found, None)

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
            return self._newest is None or self._failures >= given_up

        while self._thread is None and not is_over() and clock.monotonic_ms() < give_up_ms:
            self._take_turn()
        with self._changed:
            self._changed.wait_for(is_over, max(0.0, give_up_ms - clock.monotonic_ms()) / 1000)
            return self._newest is None

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
                self._changed.wait_for(lambda: self._newest is not None or self._stopped)
            if self._stopped:
                return
            self._take_turn()

    def _take_turn(self) -> None:
        """One attempt, and the pause behind one that has left something to do."""
        newest = self._newest
        assert newest is not None, "it was waited for"
        done = self._try(newest)
        with self._changed:
            if done and self._newest == newest:
                self._newest = None
                self._changed.notify_all()
            elif not done:
                self._changed.wait_for(partial(self._is_overtaken, newest), self._again_s)

    def _is_overtaken(self, newest: Path) -> bool:
        return self._newest != newest or self._stopped

    def _try(self, newest: Path) -> bool:
        """Do what can be done now; whether nothing is left to do for this checkpoint."""
        with self._changed:
            self._sending = next(
                (step for step, path in self._known.items() if path == newest), self._sending
            )
        try:
            done = self._advance(newest)
        except CheckpointError as error:
            # Its own next step is one for a disk.
            self._say(error.fact, f"{error.fact} {_NEXT_STEP}")
            return False
        except Exception as error:
            # A driver's mistake must not end the thread: the next step is tried again.
            _logger.exception("event=upload_failed path=%s", newest)
            reason = f"{type(error).__name__}: {error}"
            self._say(reason, reason)
            return False
        self._trouble, self._told = "", 0
        return done

    def _advance(self, newest: Path) -> bool:
        manifest = self._intact(newest)
        if manifest is None:
            return True
        if manifest.layout not in _SENT_AS_ONE:
            _logger.warning(
                "event=upload_left_out path=%s layout=%s it cannot be loaded without other ranks' files",
                newest,
                manifest.layout.value,
            )
            self._failed(
                manifest.step, f"layout {manifest.layout.value} cannot be loaded without other ranks' files"
            )
            return True
        store = self._store = self._store or self._checked(self._make_store())
        turns = self._turns_of(store, manifest)
        while True:
            at = turns.current(manifest.step)
            # Asked behind the turn: what is committed meanwhile is of this turn.
            self.note_listed(manifest.run, commits.steps(store, manifest.job, manifest.run), at)
            if at is None:
                return True
            self._tell_skipped(at.step)
            if not self._send(store, turns, at):
                return False

    def _checked(self, store: ObjectStore) -> ObjectStore:
        """The storage, if a step can be committed there."""
        if not store.creates_once():
            reason = "the storage lets an object be written over that was to be created once: it needs conditional writes (If-None-Match: *)"
            raise CheckpointWriteError(path=store.url, reason=reason)
        return store

    def _tell_skipped(self, step: int) -> None:
        """The turn of a step has come: those before it that waited are not sent any more."""
        with self._changed:
            skipped = [waiting for waiting in self._waiting if waiting < step]
            begins = bool(skipped) or step in self._waiting
            self._waiting = [waiting for waiting in self._waiting if waiting > step]
        if skipped:
            self._say_skipped(skipped, step)
        if begins:
            self._failed_since = ""

    def _say_skipped(self, steps: Sequence[int], instead: int) -> None:
        _logger.warning(
            "event=uploads_skipped steps=%s instead=%d reason=%r",
            ",".join(str(step) for step in steps),
            instead,
            self._failed_since or "the storage was not done with the step before",
        )

    def _send(self, store: ObjectStore, turns: UploadOrder, at: commits.At) -> bool:
        """Send this rank's part of a step; whether the turn is over."""
        self._sending = at.step
        with self._changed:
            path = self._known.get(at.step)
        manifest = self._intact(path) if path is not None else None
        if path is None or manifest is None or manifest.generation != at.generation:
            _logger.warning("event=upload_passed step=%d this rank does not hold it any more", at.step)
            turns.pass_on()
            return True
        commit = commits.send(store, path, manifest)
        _logger.info(
            "event=checkpoint_uploaded step=%d path=%s committed=%s", at.step, path, commit is not None
        )
        if commit is None:
            return False
        self._tidy(store, turns, manifest)
        return True

    def _tidy(self, store: ObjectStore, turns: UploadOrder, manifest: Manifest) -> None:
        try:
            removed = commits.retain(
                store, manifest.job, manifest.run, partial(self._leads_here, manifest.run)
            )
            turns.forget()
        except CheckpointError as error:
            _logger.warning("event=uploads_not_retained %s", error.fact)
        else:
            if removed:
                _logger.info("event=uploads_retained removed=%s", ",".join(str(at.step) for at in removed))

    def _turns_of(self, store: ObjectStore, manifest: Manifest) -> UploadOrder:
        key = (manifest.job, manifest.run, manifest.generation)
        if self._turns is None or self._turns[0] != key:
            self._turns = (key, UploadOrder(store, *key))
        return self._turns[1]

    def _intact(self, path: Path) -> Manifest | None:
        """Verify what is to be sent; None: it is not what was saved, or gone."""
        try:
            return check(path)
        except (CheckpointError, OSError) as error:
            reason = error.fact if isinstance(error, CheckpointError) else str(error)
            _logger.warning("event=upload_left_out path=%s reason=%r", path, reason)
            self._failed(self._sending, reason)
            return None

    def _say(self, reason: str, advice: str) -> None:
        self._failed_since = reason
        if reason != self._trouble:
            self._trouble = reason
            _logger.warning("event=upload_failed training goes on, and it is tried again: %s", advice)
        if self._sending != self._told:
            self._told = self._sending
            self._failed(self._sending, advice)
        # A caller that waits for it finds the reason in the log.
        with self._changed:
            self._failures += 1
            self._changed.notify_all()
