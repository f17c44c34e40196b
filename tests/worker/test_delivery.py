"""What the worker's machine asks for is carried out whole before it hears of anything else, and nothing is carried on after a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recovery.core.effects import Log
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import WorkerEffect
from recovery.errors import WorkerBrokenError
from recovery.worker.delivery import Delivery
from tests.pace import HANG_S


class Recorder:
    """A machine that asks for two effects of each stimulus; carrying out the first of the first delivers another stimulus."""

    def __init__(self, fails_at: str = "") -> None:
        self.done: list[str] = []
        self.broken: list[tuple[s.WorkerStimulus, Exception]] = []
        self._fails_at = fails_at
        self.delivery = Delivery(self._handle, self._carry_out, lambda *fault: self.broken.append(fault))

    def _handle(self, stimulus: s.WorkerStimulus) -> list[WorkerEffect]:
        assert isinstance(stimulus, s.PauseNoticed)
        if self._fails_at == f"handle {stimulus.paused_ms}":
            raise ValueError(self._fails_at)
        return [Log("x", f"{stimulus.paused_ms}.{number}") for number in (1, 2)]

    def _carry_out(self, effect: Any) -> None:
        if effect.text == self._fails_at:
            raise ValueError(self._fails_at)
        if effect.text == "1.1":
            self.delivery.deliver(s.PauseNoticed(2))
        self.done.append(effect.text)


def test_a_stimulus_that_an_effect_delivers_waits_for_the_effects_behind_it() -> None:
    recorder = Recorder()
    recorder.delivery.deliver(s.PauseNoticed(1))
    recorder.delivery.deliver(s.PauseNoticed(3))
    assert recorder.done == ["1.1", "1.2", "2.1", "2.2", "3.1", "3.2"]


@pytest.mark.parametrize(("fails_at", "done"), [("1.2", ["1.1"]), ("handle 2", ["1.1", "1.2"])])
def test_after_an_exception_nothing_more_is_taken(fails_at: str, done: list[str]) -> None:
    recorder = Recorder(fails_at)
    recorder.delivery.deliver(s.PauseNoticed(1))
    recorder.delivery.deliver(s.PauseNoticed(3))
    assert recorder.done == done
    [(stimulus, error)] = recorder.broken
    assert (stimulus, str(error)) == (s.PauseNoticed(1 if fails_at == "1.2" else 2), fails_at)


def test_a_worker_whose_machine_breaks_ends_its_process_and_says_so(tmp_path: Path) -> None:
    """Its next process begins with what is durable; this one is trusted no more."""
    environment = {
        **os.environ,
        "MS_ROLE": "MS_WORKER",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "1024",
        "MS_WORKER_NUM": "1",
        "MS_NODE_ID": "worker_0",
        "MS_ENABLE_RECOVERY": "1",
        "MS_RECOVERY_PATH": str(tmp_path),
    }
    child = [sys.executable, "-m", "tests.worker.broken_child"]
    ended = subprocess.run(
        child, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert ended.returncode == WorkerBrokenError.exit_code, ended.stderr
    assert "event=worker_broken" in ended.stderr
    assert "WORKER_BROKEN: str: AssertionError" in ended.stderr
