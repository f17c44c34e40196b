"""Notices that checkpoint files of a directory changed, also those that a framework or a person put there.

The kernel's events are only a hint: they stop when the directory is removed and made again, overflow in a storm, and are not
there on network file systems. What is true is a look at the directory, at least every few seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from recovery.checkpoint import names
from recovery.checkpoint.durable_files import reason_of

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

_logger = logging.getLogger("recovery.checkpoint")

_SETTLE_S = 0.05
"""Pause after a look, so that a storm of events costs 20 looks a second. Twice of it would show as delay, half costs twice."""

_STOP_S = 5.0
"""How long `stop` waits for the threads. They are daemons: a hanging network file system does not keep the process."""

_SUFFIXES = (*names.SUFFIXES, names.MANIFEST_SUFFIX)

_Look = tuple[int, frozenset[tuple[str, int, int, int]]]
"""Inode of the directory (0: absent) and name, inode, size, time of change (ns) of each file."""

_ABSENT: _Look = (0, frozenset())


class DirectoryWatch:
    """Calls back from a thread of its own, once per change that a look finds. A daemon: it never delays the process's end."""

    def __init__(self, directory: Path, on_change: Callable[[], None], *, rescan_s: float = 5.0) -> None:
        """Prepare; nothing runs before `start`. The directory may be absent, may vanish and come back.

        `on_change` is called never twice at once; what it raises is logged and the watch goes on. Two looks are `rescan_s` seconds apart when no event
        comes.
        """
        self._directory = directory.absolute()
        self._on_change = on_change
        self._rescan_s = rescan_s
        self._hint = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._observer: BaseObserver | None = None
        self._observed = 0
        self._trouble = ""

    def start(self) -> None:
        """Begin. Everything that changes after this returns is noticed."""
        assert self._thread is None, "a watch is started once"
        before = self._look()
        self._thread = threading.Thread(
            target=self._run, args=(before,), name="recovery-checkpoint-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End; no call comes after this returns, unless one hangs for longer than 5 s or this is called from within it."""
        self._stopping.set()
        self._hint.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)

    def _run(self, before: _Look) -> None:
        # Before the next look, so that nothing falls between a look and the hints.
        self._observe(before[0])
        while not self._stopping.is_set():
            now = self._look()
            self._observe(now[0])
            if now != before:
                before = now
                self._call()
            self._stopping.wait(_SETTLE_S)
            self._hint.wait(self._rescan_s)
            self._hint.clear()
        self._unobserve()

    def _call(self) -> None:
        try:
            self._on_change()
        except Exception:
            _logger.exception("event=checkpoint_watch_failed path=%s", self._directory)

    def _look(self) -> _Look:
        try:
            files = set()
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if _is_of_interest(entry.name):
                        # It may be gone since it was listed.
                        with contextlib.suppress(FileNotFoundError):
                            state = entry.stat(follow_symlinks=False)
                            files.add((entry.name, state.st_ino, state.st_size, state.st_mtime_ns))
            inode = self._directory.stat().st_ino
        except FileNotFoundError:
            self._log("")
            return _ABSENT
        except OSError as error:
            self._log(reason_of(error))
            return _ABSENT
        self._log("")
        return inode, frozenset(files)

    def _log(self, trouble: str) -> None:
        """Log a condition when it begins, not at every look."""
        if trouble and trouble != self._trouble:
            _logger.warning('event=checkpoint_watch_blind path=%s reason="%s"', self._directory, trouble)
        self._trouble = trouble

    def _observe(self, inode: int) -> None:
        """Ask the kernel for events of the directory as it is now. Without them the looks still come."""
        if inode == self._observed and self._is_hearing():
            return
        self._unobserve()
        if not inode:
            return
        from watchdog import events  # noqa: PLC0415 - not paid for by `import recovery`
        from watchdog.observers import Observer  # noqa: PLC0415 - as above

        # A file that is written gives one event, when it is closed: an event per block would cost training the interpreter. Opening
        # and reading give none: our own look would cause the next.
        wanted: list[type[FileSystemEvent]] = [
            events.FileClosedEvent,
            events.FileMovedEvent,
            events.FileDeletedEvent,
            events.DirMovedEvent,
            events.DirDeletedEvent,
        ]
        handler = events.FileSystemEventHandler()
        handler.on_any_event = self._on_event  # type: ignore[method-assign]  # a subclass would hold this one line
        try:
            observer = Observer()
            observer.schedule(handler, str(self._directory), event_filter=wanted)
            observer.start()
        except (OSError, RuntimeError) as error:
            # The directory is gone again, this user's inotify watches are used up, or no thread can be started.
            _logger.info(
                'event=checkpoint_watch_without_events path=%s reason="%s"',
                self._directory,
                reason_of(error) if isinstance(error, OSError) else error,
            )
        else:
            self._observer = observer
            # What came before the events did is found by one more look.
            self._hint.set()
        self._observed = inode

    def _is_hearing(self) -> bool:
        """False once the directory was removed, also when it was made again with the same inode."""
        return self._observer is None or all(emitter.is_alive() for emitter in self._observer.emitters)

    def _unobserve(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(_STOP_S)
        self._observer, self._observed = None, 0

    def _on_event(self, event: FileSystemEvent) -> None:
        paths = (os.fsdecode(event.src_path), os.fsdecode(event.dest_path))
        if event.is_directory or any(_is_of_interest(Path(path).name) for path in paths):
            self._hint.set()


def _is_of_interest(name: str) -> bool:
    """Checkpoint files and manifests; temporary names begin with a dot and change with every written block."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")
