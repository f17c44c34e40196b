"""A state is captured by one copy and written by another process, or it writes itself and a line says why."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from typing_extensions import override

from recovery import clock
from recovery.training import capture
from recovery.training.capture import StagedState, StagingBuffer
from recovery.training.state import CannotLayOutError
from tests.house.files import ROOT
from tests.warm.process import run

SIZE = 100_000


class Bytes:
    """A state of bytes that is its own layout; each way in which one can be wrong is a switch."""

    def __init__(self, value: int = 0) -> None:
        self.value, self.size = value, SIZE
        self.refusal: Exception | None = None
        self.copies_wrongly = self.reads_wrongly = False
        self.copied: Callable[[], None] = lambda: None

    def lay_out(self) -> Bytes:
        if self.refusal is not None:
            raise self.refusal
        return self

    def copy_to(self, memory: memoryview) -> None:
        self.copied()
        memory[: self.size] = self.content()

    def content(self) -> bytes:
        return bytes([self.value]) * self.size

    def let_go(self) -> None:
        pass

    def differs_from(self, memory: memoryview) -> bool:
        return self.copies_wrongly or memory[: self.size] != self.content()

    def is_read_from(self, path: Path, memory: memoryview) -> bool:
        return not self.reads_wrongly and path.read_bytes() == memory[: self.size]


@pytest.fixture
def captures() -> Iterator[StagingBuffer]:
    one = StagingBuffer()
    yield one
    one.close()


def write(captured: StagedState | None, path: Path) -> bytes:
    assert captured is not None
    try:
        with path.open("wb") as file:
            captured.write(file.fileno())
    finally:
        captured.close()
    return path.read_bytes()


def test_what_is_written_is_the_state_as_it_was(captures: StagingBuffer, tmp_path: Path) -> None:
    state = Bytes(1)
    captured = captures.capture(state)
    state.value = 2

    assert write(captured, tmp_path / "file") == bytes([1]) * SIZE
    assert write(captures.capture(state), tmp_path / "file") == bytes([2]) * SIZE


def save_a_thousand_times(path: Path) -> None:
    """In a process of its own. Prints what it held before and behind it, and by how many bytes it has grown."""
    captures, state, this = StagingBuffer(), Bytes(), psutil.Process()

    def used() -> tuple[int, int, int]:
        return this.num_fds(), this.num_threads(), captures.writer_pid or 0

    write(captures.capture(state), path)
    before, memory = used(), this.memory_info().rss
    for value in range(1_000):
        state.value = value % 256
        write(captures.capture(state), path)
    print(json.dumps([before, used(), this.memory_info().rss - memory]))
    captures.close()


def test_a_thousand_saves_take_no_more_memory_than_one(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from {__name__} import save_a_thousand_times as save; save(Path({str(tmp_path / 'file')!r}))"
    done = run([sys.executable, "-c", code], cwd=ROOT, timeout=600)
    before, behind, grown_bytes = json.loads(done.stdout)

    assert before == behind
    # A leak of one state in ten would be 10 MB.
    assert grown_bytes < 5_000_000


def test_the_next_capture_waits_until_the_one_before_is_written(
    captures: StagingBuffer, tmp_path: Path
) -> None:
    first = captures.capture(Bytes(1))
    second: list[StagedState | None] = []
    waiting = threading.Thread(target=lambda: second.append(captures.capture(Bytes(2))), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert not second

    assert write(first, tmp_path / "file") == bytes([1]) * SIZE
    waiting.join(60)
    assert write(second[0], tmp_path / "file") == bytes([2]) * SIZE


class Waits(threading.Event):
    """Notes how long it was waited for at most, and whether it had come by then."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[float | None, bool]] = []

    @override
    def wait(self, timeout: float | None = None) -> bool:
        came = super().wait(timeout)
        self.noted.append((timeout, came))
        return came


def test_what_follows_a_capture_gives_way_to_other_ranks_until_somebody_waits_for_it(
    captures: StagingBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, now_ms = Waits(), [1_000]
    captures._is_waited_for = waits
    captures.skip_delay()
    state = Bytes()
    write(captures.capture(state), tmp_path / "file")
    monkeypatch.setattr(clock, "monotonic_ms", lambda: now_ms[0])
    state.copied = lambda: now_ms.append(now_ms.pop() + 100)
    captured = captures.capture(state)
    assert captured is not None

    captured.delay_write()
    assert waits.noted == [(0.2, False)], "that somebody waited for an earlier capture is forgotten"

    captures.skip_delay()
    captured.delay_write()
    assert waits.noted[1:] == [(0.2, True)]
    captured.close()


@pytest.mark.parametrize(("took_ms", "head_start_s"), [(0, 0.0), (10, 0.02), (499, 0.998), (60_000, 1.0)])
def test_a_head_start_is_twice_a_capture_and_at_most_a_second(took_ms: int, head_start_s: float) -> None:
    assert capture.head_start_s(took_ms) == head_start_s


def test_a_writer_that_ended_costs_at_most_the_save_that_it_was_in(
    captures: StagingBuffer, tmp_path: Path
) -> None:
    write(captures.capture(Bytes(1)), tmp_path / "file")
    first = captures.writer_pid
    assert first is not None

    captured = captures.capture(Bytes(2))
    os.kill(first, signal.SIGKILL)
    with pytest.raises(OSError, match=r"has ended|Broken pipe"):
        write(captured, tmp_path / "file")

    assert write(captures.capture(Bytes(3)), tmp_path / "file") == bytes([3]) * SIZE
    assert captures.writer_pid not in (None, first)


@pytest.mark.parametrize(
    "refusal", [CannotLayOutError("of its kind"), MemoryError("too much"), OSError("no more processes")]
)
def test_why_a_state_writes_itself_is_said_once(
    captures: StagingBuffer, caplog: pytest.LogCaptureFixture, tmp_path: Path, refusal: Exception
) -> None:
    state = Bytes()
    state.refusal = refusal

    assert captures.capture(state) is None
    assert captures.capture(state) is None
    assert caplog.text.count("event=not_captured") == 1
    assert str(refusal) in caplog.text

    state.refusal = None
    assert write(captures.capture(state), tmp_path / "file") == state.content()


def test_a_state_that_lays_nothing_out_writes_itself(
    captures: StagingBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    assert captures.capture(object()) is None
    assert not caplog.text
    assert captures.writer_pid is None


def test_what_a_state_raises_of_its_own_passes_through_and_blocks_nobody(
    captures: StagingBuffer, tmp_path: Path
) -> None:
    state = Bytes()
    state.refusal = KeyError("of the user")
    with pytest.raises(KeyError, match="of the user"):
        captures.capture(state)
    assert not captures._in_use.locked()

    assert write(captures.capture(Bytes(1)), tmp_path / "file")


def test_a_copy_that_differs_from_the_state_is_never_written(
    captures: StagingBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    state = Bytes()
    state.copies_wrongly = True

    assert captures.capture(state) is None
    assert "event=capture_given_up" in caplog.text
    assert captures.capture(Bytes()) is None


def test_a_first_file_that_is_not_read_back_is_no_checkpoint_and_later_states_write_themselves(
    captures: StagingBuffer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    state = Bytes()
    state.reads_wrongly = True

    with pytest.raises(OSError, match="not what was copied"):
        write(captures.capture(state), tmp_path / "file")
    assert "event=capture_given_up" in caplog.text
    assert captures.capture(Bytes()) is None
