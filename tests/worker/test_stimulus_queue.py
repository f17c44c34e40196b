"""What the worker's machine asks for is carried out whole before it hears of anything else, and nothing is carried on after a fault."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.core.effects import Log
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import WorkerEffect
from recovery.worker.stimulus_queue import StimulusQueue


class Recorder:
    """A machine that asks for two effects of each stimulus; carrying out the first of the first delivers another stimulus."""

    def __init__(self, fails_at: str = "") -> None:
        self.done: list[str] = []
        self.broken: list[tuple[s.WorkerStimulus, Exception]] = []
        self._fails_at = fails_at
        self.stimuli = StimulusQueue(self._handle, self._carry_out, lambda *fault: self.broken.append(fault))

    def _handle(self, stimulus: s.WorkerStimulus) -> list[WorkerEffect]:
        assert isinstance(stimulus, s.PauseNoticed)
        if self._fails_at == f"handle {stimulus.paused_ms}":
            raise ValueError(self._fails_at)
        return [Log("x", f"{stimulus.paused_ms}.{number}") for number in (1, 2)]

    def _carry_out(self, effect: Any) -> None:
        if effect.text == self._fails_at:
            raise ValueError(self._fails_at)
        if effect.text == "1.1":
            self.stimuli.deliver(s.PauseNoticed(2))
        self.done.append(effect.text)


def test_a_stimulus_that_an_effect_delivers_waits_for_the_effects_behind_it() -> None:
    recorder = Recorder()
    recorder.stimuli.deliver(s.PauseNoticed(1))
    recorder.stimuli.deliver(s.PauseNoticed(3))
    assert recorder.done == ["1.1", "1.2", "2.1", "2.2", "3.1", "3.2"]


@pytest.mark.parametrize(("fails_at", "done"), [("1.2", ["1.1"]), ("handle 2", ["1.1", "1.2"])])
def test_after_an_exception_nothing_more_is_taken(fails_at: str, done: list[str]) -> None:
    recorder = Recorder(fails_at)
    recorder.stimuli.deliver(s.PauseNoticed(1))
    recorder.stimuli.deliver(s.PauseNoticed(3))
    assert recorder.done == done
    [(stimulus, error)] = recorder.broken
    assert (stimulus, str(error)) == (s.PauseNoticed(1 if fails_at == "1.2" else 2), fails_at)
