"""Changes are noticed by an event at once, and without events by the next look."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import recovery
from recovery.checkpoint.watch import DirectoryWatch
from tests.pace import wait_for

_SEEN_S = 60.0
"""Bound of every wait for a change: far more than a busy machine needs."""

_EVENTS_S = 1.0
"""How long nothing must come to be sure: watchdog hands an event on after half a second."""

_NEVER_S = 600.0
"""Seconds between looks when only an event can be what was noticed."""


@contextmanager
def _watching(
    directory: Path, rescan_s: float, then: Callable[[], None] = lambda: None
) -> Iterator[queue.Queue[None]]:
    seen: queue.Queue[None] = queue.Queue()

    def on_change() -> None:
        seen.put(None)
        then()

    watch = DirectoryWatch(directory, on_change, rescan_s=rescan_s)
    watch.start()
    try:
        yield seen
    finally:
        watch.stop()


def _without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network file system, or when the user's inotify watches are used up."""
    from watchdog.observers import Observer

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(Observer, "schedule", refuse)


def test_a_new_file_is_noticed_by_its_event(tmp_path: Path) -> None:
    with _watching(tmp_path, _NEVER_S) as seen:
        (tmp_path / "train-1_1.ckpt").write_bytes(b"state")
        seen.get(timeout=_SEEN_S)


def test_a_change_and_a_removal_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "train-1_1.ckpt"
    file.write_bytes(b"state")
    with _watching(tmp_path, _NEVER_S) as seen:
        file.write_bytes(b"changed")
        seen.get(timeout=_SEEN_S)
        # Truncating and writing may be two changes.
        with contextlib.suppress(queue.Empty):
            while True:
                seen.get(timeout=_EVENTS_S)
        file.unlink()
        seen.get(timeout=_SEEN_S)


def test_without_events_the_next_look_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_events(monkeypatch)
    with _watching(tmp_path, 0.2) as seen:
        (tmp_path / "train-1_1.json").write_bytes(b"{}")
        seen.get(timeout=_SEEN_S)


def test_a_directory_that_comes_later_is_noticed(tmp_path: Path) -> None:
    with _watching(tmp_path / "later", 0.2) as seen:
        (tmp_path / "later").mkdir()
        seen.get(timeout=_SEEN_S)


def test_a_directory_removed_and_made_again_is_still_watched(tmp_path: Path) -> None:
    directory = tmp_path / "ckpt"
    directory.mkdir()
    (directory / "train-1_1.ckpt").write_bytes(b"state")
    with _watching(directory, 0.2) as seen:
        shutil.rmtree(directory)
        seen.get(timeout=_SEEN_S)

        directory.mkdir()
        (directory / "train-1_2.ckpt").write_bytes(b"state")
        seen.get(timeout=_SEEN_S)
        while not seen.empty():
            seen.get()
        (directory / "train-1_3.ckpt").write_bytes(b"state")
        seen.get(timeout=_SEEN_S)


def test_a_directory_exchanged_under_its_name_is_noticed(tmp_path: Path) -> None:
    for name in ("ckpt", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "train-1_1.ckpt").write_bytes(b"state")
    with _watching(tmp_path / "ckpt", 0.2) as seen:
        (tmp_path / "ckpt").rename(tmp_path / "away")
        (tmp_path / "other").rename(tmp_path / "ckpt")
        seen.get(timeout=_SEEN_S)


def test_temporary_and_foreign_files_call_nobody(tmp_path: Path) -> None:
    with _watching(tmp_path, 0.05) as seen:
        (tmp_path / ".train-1_1.ckpt.1-0.tmp").write_bytes(b"half")
        (tmp_path / "notes.txt").write_bytes(b"")
        (tmp_path / ".hidden.json").write_bytes(b"")
        with pytest.raises(queue.Empty):
            seen.get(timeout=_EVENTS_S)


def test_a_file_that_is_renamed_into_place_calls_once(tmp_path: Path) -> None:
    with _watching(tmp_path, _NEVER_S) as seen:
        (tmp_path / "notes.txt").write_bytes(b"")
        (tmp_path / ".train-1_1.ckpt.1-0.tmp").write_bytes(b"state")
        (tmp_path / ".train-1_1.ckpt.1-0.tmp").rename(tmp_path / "train-1_1.ckpt")
        seen.get(timeout=_SEEN_S)
        with pytest.raises(queue.Empty):
            seen.get(timeout=_EVENTS_S)


def test_reading_the_files_is_no_change(tmp_path: Path) -> None:
    file = tmp_path / "train-1_1.ckpt"

    def read() -> None:
        file.read_bytes()
        list(tmp_path.iterdir())

    with _watching(tmp_path, _NEVER_S, then=read) as seen:
        file.write_bytes(b"")
        seen.get(timeout=_SEEN_S)
        read()
        with pytest.raises(queue.Empty):
            seen.get(timeout=_EVENTS_S)


def test_what_the_callback_raises_is_logged_and_the_watch_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("planted")

    with _watching(tmp_path, 0.2, then=fail) as seen:
        for number in (1, 2):
            (tmp_path / f"train-1_{number}.ckpt").write_bytes(b"state")
            seen.get(timeout=_SEEN_S)
    assert "event=checkpoint_watch_failed" in caplog.text
    assert "planted" in caplog.text


def test_a_directory_that_cannot_be_looked_at_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ckpt").write_bytes(b"a file where a directory belongs")
    with caplog.at_level(logging.WARNING), _watching(tmp_path / "ckpt", 0.05) as seen:
        wait_for(lambda: "event=checkpoint_watch_blind" in caplog.text, "the first look")
        with pytest.raises(queue.Empty):
            # Several more looks.
            seen.get(timeout=0.4)
        (tmp_path / "ckpt").unlink()
        (tmp_path / "ckpt").mkdir()
        seen.get(timeout=_SEEN_S)
    assert caplog.text.count("event=checkpoint_watch_blind") == 1
    assert "Not a directory" in caplog.text


def test_a_watch_can_be_stopped_from_its_own_callback(tmp_path: Path) -> None:
    stopped = threading.Event()

    def stop() -> None:
        watch.stop()
        stopped.set()

    watch = DirectoryWatch(tmp_path, stop)
    watch.start()
    (tmp_path / "train-1_1.ckpt").write_bytes(b"state")

    assert stopped.wait(_SEEN_S)
    watch.stop()


def test_a_watch_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    DirectoryWatch(tmp_path, lambda: None).stop()


def test_no_thread_is_left_after_stop(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with _watching(tmp_path, 0.2):
        pass
    assert set(threading.enumerate()) <= before


_EXITS = """
import sys
from pathlib import Path
from recovery.checkpoint.watch import DirectoryWatch
assert "watchdog" not in sys.modules, "an import must not cost"
DirectoryWatch(Path(sys.argv[1]), lambda: None).start()
print("ended")
"""


def test_a_running_watch_does_not_keep_the_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(recovery.__file__).parents[1])}

    done = subprocess.run(
        [sys.executable, "-c", _EXITS, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_only_changes_of_checkpoint_files_and_of_the_directory_ask_for_a_look(tmp_path: Path) -> None:
    from watchdog.events import DirDeletedEvent, FileCreatedEvent, FileMovedEvent

    file, temporary = str(tmp_path / "train-1_1.ckpt"), str(tmp_path / ".train-1_1.ckpt.1-0.tmp")
    asks = {
        FileCreatedEvent(file): True,
        FileMovedEvent(temporary, file): True,
        FileMovedEvent(file, str(tmp_path / "away")): True,
        DirDeletedEvent(str(tmp_path)): True,
        FileCreatedEvent(temporary): False,
        FileCreatedEvent(str(tmp_path / "notes.txt")): False,
    }
    for event, expected in asks.items():
        watch = DirectoryWatch(tmp_path, lambda: None)
        watch._on_event(event)
        assert watch._hint.is_set() == expected, event
