"""A signal that arrives where Python drops exceptions still stops the training."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import pytest

from recovery.training.stop_signals import (
    ScriptStopSignals,
    StopSignalReceived,
    StopSignals,
    signal_number,
)


class _Finalized:
    """Python is in its finalizer when the signal arrives."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


def _unexpected() -> None:
    raise AssertionError("nobody sent us a SIGTERM")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, StopSignalReceived), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_that_a_finalizer_drops_is_sent_again(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    finalized = _Finalized(number)
    signals = StopSignals(lambda: StopSignals.let_through(signals))
    with signals, pytest.raises(raised) as caught:  # noqa: PT012 - it may come in either line
        # Python prints and drops what its finalizer raises.
        del finalized
        threading.Event().wait(60)

    assert signal_number(caught.value) == number


def test_other_exceptions_that_python_drops_are_shown_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError("dropped")

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(str(unraisable.exc_value)))
    before = sys.unraisablehook
    with StopSignals(_unexpected):
        failing = Fails()
        del failing

    assert shown == ["dropped"]
    assert sys.unraisablehook is before


def test_a_handler_of_the_users_own_is_left_in_place() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with StopSignals(_unexpected):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert received == [signal.SIGTERM] * 2


def test_a_first_sigterm_is_held_back_until_it_is_let_through() -> None:
    """Training goes on meanwhile: whoever hands a rank over needs its main thread."""
    held = threading.Event()
    signals = StopSignals(held.set)
    with signals:
        signals.let_through()
        signal.raise_signal(signal.SIGTERM)
        assert held.is_set(), "it is known, and nothing was raised"
        # The signal may come while the timer's own start is waited for.
        with pytest.raises(StopSignalReceived):  # noqa: PT012 - either line raises
            threading.Timer(0.01, signals.let_through).start()
            threading.Event().wait(60)


def test_a_second_sigterm_is_not_held_back() -> None:
    held: list[str] = []
    with StopSignals(lambda: held.append("asked")):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopSignalReceived):
            signal.raise_signal(signal.SIGTERM)

    assert held == ["asked"]


@pytest.mark.parametrize("kind", ["run", "script"])
def test_what_the_training_function_forks_ends_by_sigterm_as_ever(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`Pool` and `Process.terminate()` end their workers so."""
    forking = multiprocessing.get_context("fork")
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as behind:
        behind.callback(signal.signal, signal.SIGTERM, before)
        if kind == "run":
            behind.enter_context(StopSignals(_unexpected))
        else:
            ScriptStopSignals(_unexpected, lambda: False).open()
        with forking.Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
        pool.join()
        process = forking.Process(target=threading.Event().wait)
        process.start()
        process.terminate()
        process.join()
        assert signal.getsignal(signal.SIGTERM) is not before, "here it is held back as before"
    assert process.exitcode == -signal.SIGTERM
    assert "Traceback" not in capfd.readouterr().err


def test_a_handler_of_the_users_own_is_inherited_by_what_it_forks() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    try:
        with StopSignals(_unexpected):
            process = multiprocessing.get_context("fork").Process(
                target=signal.raise_signal, args=(signal.SIGTERM,)
            )
            process.start()
            process.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert process.exitcode == 7


def test_a_sigterm_that_nobody_answered_before_the_end_of_the_job_stays_known() -> None:
    asked: list[str] = []
    job_is_over = False
    signals = ScriptStopSignals(lambda: asked.append("asked"), lambda: job_is_over)
    before = signal.getsignal(signal.SIGTERM)
    try:
        signals.open()
        signal.raise_signal(signal.SIGTERM)
        job_is_over = True
        # Too late: the wait for the last upload finds it, and ends.
        signals.let_through()
        assert (asked, signals.has_held_back) == (["asked"], True)
    finally:
        signal.signal(signal.SIGTERM, before)


_BEHIND_THE_JOB = """
import signal
from recovery.training.stop_signals import ScriptStopSignals

signals = ScriptStopSignals(lambda: print("asked"), lambda: True)
signals.open()
for _ in range({times}):
    signal.raise_signal(signal.SIGTERM)
print("held back", signals.has_held_back)
"""


@pytest.mark.parametrize(
    ("times", "code", "said"),
    [(0, 0, "held back False\n"), (1, 0, "held back True\n"), (2, -signal.SIGTERM, "")],
)
def test_behind_the_job_one_sigterm_is_held_back_and_asks_nobody(times: int, code: int, said: str) -> None:
    program = _BEHIND_THE_JOB.format(times=times)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr
