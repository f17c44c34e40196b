"""What a process notes of its end reaches its launcher, whatever the disk takes, and nothing else is taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import recovery
from recovery.end_note import VARIABLE, EndNote, EndNotes, note_exit, note_finished

_WHERE_FILES_TAKE_NOTHING = """
import resource, signal, sys
from pathlib import Path
from recovery.end_note import note_exit
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    Path(sys.argv[1]).write_text("a")
except OSError:
    note_exit(22)
"""
_NOTES_ALL = """
import os
from pathlib import Path
from recovery.end_note import note_exit, note_finished
note_finished(Path(os.environ["MS_FINISHED_FILE"]))
note_exit(63)
note_exit(64)
"""
NOTHING = EndNote(finished=False, exit_code=None)


def _run(program: str, notes: EndNotes, *words: str) -> str:
    """Run a program under these notes. Gives what it has written to stderr."""
    environment = {**os.environ, **notes.variables(), "PYTHONPATH": str(Path(recovery.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, check=True, capture_output=True, text=True
    )
    return done.stderr


def test_a_process_that_can_write_no_file_notes_its_exit_code(tmp_path: Path) -> None:
    """On a full disk the note was an empty file, which said that the job had finished."""
    notes = EndNotes()
    assert _run(_WHERE_FILES_TAKE_NOTHING, notes, str(tmp_path / "file")) == ""
    assert notes.take() == EndNote(finished=False, exit_code=22)


def test_both_notes_of_one_process_are_taken_once() -> None:
    notes = EndNotes()
    _run(_NOTES_ALL, notes)
    assert notes.take() == EndNote(finished=True, exit_code=64)
    assert notes.take() == NOTHING


def test_a_process_that_has_only_opened_its_pipe_has_noted_nothing() -> None:
    notes = EndNotes()
    _run("import os; open(os.environ['MS_FINISHED_FILE'], 'w').close()", notes)
    assert notes.take() == NOTHING


def test_who_was_never_started_has_noted_nothing() -> None:
    assert EndNotes().take() == NOTHING


def test_the_note_of_an_earlier_process_says_nothing_of_the_next() -> None:
    notes = EndNotes()
    path = notes.variables()[VARIABLE]
    note_finished(Path(path))
    assert notes.variables()[VARIABLE] == path
    assert notes.take() == NOTHING


def test_an_exit_code_that_cannot_be_noted_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its launcher is gone, or is another process there: no file of anyone else's is written."""
    other = tmp_path / "other"
    with other.open("w") as file:
        monkeypatch.setenv(VARIABLE, f"/proc/{os.getpid()}/fd/{file.fileno()}")
        note_exit(23)
    assert other.read_text() == ""
    assert (
        "event=not_noted exit 23 (it is no pipe): its launcher takes the code for the script's own"
        in capfd.readouterr().err
    )


def _note_without_end(path: Path) -> None:
    while True:
        note_finished(path)


def test_nobody_waits_for_a_launcher_that_does_not_read() -> None:
    notes = EndNotes()
    path = Path(notes.variables()[VARIABLE])
    with pytest.raises(BlockingIOError):
        _note_without_end(path)
    assert notes.take().finished
