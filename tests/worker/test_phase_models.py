"""What the clock of phases is told of models and optimizers: an evaluation is no step, and a step whose parts are not told is a whole one."""

from __future__ import annotations

import pdb  # noqa: T100 - what a person would use
from typing import Any

import pytest
from typing_extensions import override

from recovery.core.phases import Phase, PhaseReport
from recovery.worker import phase_clock
from recovery.worker.phase_clock import PhaseClock
from tests.worker.conftest import Time
from tests.worker.test_phase_clock import in_a_generation, in_a_loop


class Model:
    def __init__(self, *, training: bool) -> None:
        self.training = training


@pytest.mark.parametrize("phase", [Phase.OWN_CODE, Phase.COMPUTE, Phase.STEP])
def test_what_is_done_with_a_model_in_evaluation_mode_is_an_evaluation(time: Time, phase: Phase) -> None:
    phases, model = PhaseClock().begin(loads=False), Model(training=True)
    phases.models = lambda: [model]
    phases.enter_loop()
    phases.stepped()
    model.training = False
    phases.enter(phase)
    time.now_ms += 20_000

    assert phases.report().phase is Phase.EVALUATION
    phases.enter(Phase.DATA)
    longest = phases.report().longest_ms
    assert (phases.report().phase, longest[Phase.EVALUATION]) == (Phase.DATA, 20_000)
    assert longest.get(phase, 0) == 0
    # What an entry's model does is nothing of the next one's.
    assert not [*in_a_generation(phases).models()]


def test_a_model_that_was_never_in_training_mode_shows_no_evaluation(time: Time) -> None:
    phases, model, teacher = (
        PhaseClock().begin(loads=False),
        Model(training=True),
        Model(training=False),
    )
    phases.models = lambda: [teacher, model]
    phases.enter_loop()
    phases.stepped()
    time.now_ms += 20_000
    assert phases.report().phase is Phase.STEP
    model.training = False
    assert phases.report().phase is Phase.EVALUATION


def test_an_evaluation_is_one_until_the_main_thread_goes_on_and_no_part_of_the_step_behind_it(
    time: Time,
) -> None:
    phases, model = in_a_generation(PhaseClock()), Model(training=True)
    phases.models = lambda: [model]
    phases.stepped()
    assert phases.report().phase is Phase.STEP
    model.training = False
    time.now_ms += 300_000
    assert phases.report().phase is Phase.EVALUATION

    model.training = True
    time.now_ms += 1_000
    report = phases.report()
    assert (report.phase, report.lasting_ms) == (Phase.EVALUATION, 301_000), "it trains again"
    phases.stepped()
    longest_ms = phases.report().longest_ms
    assert (longest_ms[Phase.EVALUATION], longest_ms[Phase.STEP]) == (301_000, 0)


def test_a_model_that_cannot_be_looked_at_is_not_evaluated(time: Time) -> None:
    phases = in_a_generation(PhaseClock())
    phases.models = lambda: [None.model]  # type: ignore[attr-defined]  # as of an integration whose objects are gone
    assert phases.report().phase is Phase.STEP
    phases.forget()
    assert not [*phases.models()]


def test_where_nobody_says_when_an_optimizer_s_step_ends_a_step_is_told_as_a_whole(time: Time) -> None:
    phases = PhaseClock().begin(loads=False)
    phases.enter_loop()
    phases.stepped()
    phases.enter(Phase.COMPUTE)
    time.now_ms += 90_000
    assert phases.report().phase is Phase.STEP
    phases.enter(Phase.SAVE)
    longest_ms = phases.report().longest_ms
    assert (longest_ms[Phase.STEP], Phase.COMPUTE in longest_ms) == (90_000, False)

    phases.enter(Phase.COMPUTE)
    time.now_ms += 10
    phases.computed()
    longest_ms = phases.report().longest_ms
    assert (phases.phase, longest_ms[Phase.COMPUTE]) == (Phase.OWN_CODE, 10)


def test_a_step_without_an_optimizers_step_makes_all_later_ones_whole_ones(time: Time) -> None:
    """Of gradient accumulation, of a scaler that skips one: what is behind the optimizer's step is in the place of what computes there."""
    phases = in_a_loop(loads=False)
    phases.stepped()
    for computes in (True, False, True):
        phases.enter(Phase.COMPUTE)
        if computes:
            phases.computed()
        phases.enter(Phase.OWN_CODE)
        phases.stepped()
    phases.enter(Phase.COMPUTE)
    assert phases.report().phase is Phase.STEP


def test_a_person_with_a_debugger_takes_as_long_as_that_takes() -> None:
    phases, seen = in_a_generation(PhaseClock()), list[PhaseReport]()

    class Looks(pdb.Pdb):
        @override
        def interaction(self, frame: Any, tb_or_exc: Any = None) -> None:
            seen.append(phases.report())
            self.set_continue()

    looks = Looks(nosigint=True, readrc=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phase_clock, "_STACK_FROM_MS", 0)
        looks.set_trace()
        assert phases.phase is Phase.STEP
    assert [one.phase for one in seen] == [Phase.END]
