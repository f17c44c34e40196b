"""The clock of phases: what the main thread does is measured without what the generation before left unfinished and without pauses of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from recovery.core.phases import Phase
from recovery.core.policy import hang_limits
from recovery.worker import processor_wait
from recovery.worker.phase_clock import PhaseClock
from tests.needs import lacks
from tests.pace import HANG_S
from tests.worker.conftest import Time


def in_a_loop(*, loads: bool) -> PhaseClock:
    phases = PhaseClock().begin(loads=loads)
    phases.enter_loop()
    return phases


def in_a_generation(phases: PhaseClock) -> PhaseClock:
    phases.begin(loads=False)
    phases.enter_loop()
    phases.stepped()
    phases.enter(Phase.COMPUTE)
    phases.computed()
    phases.enter(Phase.STEP)
    return phases


def test_the_start_lasts_until_the_first_step_is_done(time: Time) -> None:
    phases = in_a_loop(loads=True)
    time.now_ms += 3_000
    assert phases.enter(Phase.DATA) is Phase.START

    report = phases.report()
    assert (report.phase, report.lasting_ms, report.longest_ms) == (Phase.START, 3_000, {})

    phases.stepped()
    assert phases.report().longest_ms == {Phase.START: 3_000}


def test_the_longest_of_each_phase_is_kept_over_generations_but_for_what_was_left_unfinished(
    time: Time,
) -> None:
    phases = in_a_generation(PhaseClock())
    for lasting_ms in (5, 20, 10):
        phases.enter(Phase.DATA)
        time.now_ms += lasting_ms
        phases.enter(Phase.COMPUTE)
    time.now_ms += 90_000
    in_a_generation(phases)

    assert phases.report().longest_ms[Phase.DATA] == 20
    assert phases.report().longest_ms[Phase.COMPUTE] == 0


def test_batches_are_data_until_they_are_there(time: Time) -> None:
    phases = in_a_generation(PhaseClock())
    seen: list[Phase] = []

    def drawn() -> list[int]:
        return [1, 2]

    for _ in phases.batches(drawn()):
        seen.append(phases.phase)
        phases.enter(Phase.SAVE)

    assert seen == [Phase.COMPUTE, Phase.COMPUTE]
    assert phases.phase is Phase.DATA


def test_a_start_that_loads_nothing_is_no_measure_of_one_that_loads(time: Time) -> None:
    phases = in_a_loop(loads=False)
    time.now_ms += 2_000
    phases.stepped()
    assert phases.report().longest_ms == {}

    phases.begin(loads=True).enter_loop()
    time.now_ms += 3_000
    phases.stepped()
    assert phases.report().longest_ms == {Phase.START: 3_000}


def test_a_start_that_filled_caches_is_told_by_itself(time: Time) -> None:
    phases = in_a_loop(loads=False)
    time.now_ms += 600_000
    phases.stepped()
    phases.begin(loads=True).enter_loop()
    time.now_ms += 3_000
    phases.stepped()
    report = phases.report()
    assert (report.longest_ms, report.fresh_start_ms) == ({Phase.START: 3_000}, 600_000)


def test_what_a_save_ends_is_a_part_of_a_step_and_no_measure_of_a_whole_one(time: Time) -> None:
    phases = in_a_loop(loads=False)
    phases.stepped()
    with phases.during(Phase.SAVE):
        time.now_ms += 200
    assert Phase.STEP not in phases.report().longest_ms
    time.now_ms += 30
    phases.stepped()
    assert phases.report().longest_ms[Phase.STEP] == 30


def test_a_loop_of_an_earlier_generation_that_is_left_late_ends_nothing(time: Time) -> None:
    phases = in_a_loop(loads=False)
    late = phases.loop()
    late.__enter__()
    in_a_generation(phases)
    late.__exit__(None, None, None)
    assert phases.report().phase is Phase.STEP


def test_the_first_batch_of_a_pass_has_a_limit_of_its_own_also_in_the_start(time: Time) -> None:
    phases = in_a_loop(loads=False)

    def drawn(first_ms: int) -> Iterator[int]:
        for lasting_ms in (first_ms, 10):
            time.now_ms += lasting_ms
            yield 1

    for _ in phases.batches(drawn(700)):
        phases.stepped()
    assert phases.report().longest_ms[Phase.FIRST_BATCH] == 700
    for _ in phases.batches(drawn(900)):
        assert phases.phase is Phase.COMPUTE
    longest_ms = phases.report().longest_ms
    assert (longest_ms[Phase.FIRST_BATCH], longest_ms[Phase.DATA]) == (900, 10)


def test_what_comes_behind_the_loop_has_no_limit_whatever_is_done_there(time: Time) -> None:
    phases = in_a_generation(PhaseClock())
    with phases.loop():
        for _ in phases.batches([1, 2]):
            phases.enter(Phase.OWN_CODE)
        last = phases.phase
    time.now_ms += 900_000
    assert [last, phases.phase] == [Phase.DATA, Phase.END]
    phases.enter(Phase.COMPUTE)
    with phases.during(Phase.SAVE):
        phases.stepped()
        assert (phases.report().phase, phases.report().lasting_ms) == (Phase.END, 900_000)
    assert hang_limits.limit_ms(Phase.END, {Phase.END: 1}) is None


def test_a_look_whether_a_save_is_due_is_no_measure_of_a_save(time: Time) -> None:
    phases = in_a_generation(PhaseClock())
    with phases.during(Phase.SAVE):
        time.now_ms += 1
    assert Phase.SAVE not in phases.report().longest_ms


def test_what_a_loop_leaves_unfinished_is_no_measure(time: Time) -> None:
    phases = in_a_loop(loads=True)

    def leave() -> None:
        with phases.loop():
            time.now_ms += 3_000
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert (phases.report().phase, phases.report().longest_ms) == (Phase.END, {})


def test_a_loop_that_is_left_before_its_first_step_is_over_too(time: Time) -> None:
    phases = PhaseClock().begin(loads=True)
    with phases.loop():
        time.now_ms += 1_000

    assert phases.report().phase is Phase.END


def test_of_a_loop_of_the_scripts_own_nobody_knows_where_it_ends(time: Time) -> None:
    phases = PhaseClock().begin(loads=True)
    time.now_ms += 1_000
    assert phases.report().phase is Phase.START
    for _ in range(2):
        phases.stepped()

    assert phases.report().phase is Phase.END


def test_a_save_is_no_part_of_a_whole_step(time: Time) -> None:
    phases = in_a_loop(loads=True)
    with phases.during(Phase.SAVE):
        saves_in = phases.phase
        phases.stepped()
    assert [saves_in, phases.phase] == [Phase.START, Phase.STEP]
    time.now_ms += 5
    with phases.during(Phase.SAVE):
        time.now_ms += 80_000
    time.now_ms += 6
    phases.stepped()

    longest_ms = phases.report().longest_ms
    assert (longest_ms[Phase.STEP], longest_ms[Phase.SAVE]) == (6, 80_000)


def test_a_loop_that_tells_no_parts_has_whole_steps(time: Time) -> None:
    phases = in_a_generation(PhaseClock())
    for _ in range(2):
        time.now_ms += 700
        assert phases.report().phase is Phase.STEP
        phases.stepped()

    assert phases.report().longest_ms[Phase.STEP] == 700
    assert phases.report().lasting_ms == 0


def test_a_stop_of_the_whole_process_is_no_part_of_a_phase(time: Time) -> None:
    phases = in_a_generation(PhaseClock())
    phases.tick(0.25)
    phases.enter(Phase.DATA)
    time.now_ms += 60_000
    phases.tick(0.25)
    time.now_ms += 300
    phases.tick(0.25)

    assert phases.report().lasting_ms == 550
    phases.enter(Phase.COMPUTE)
    assert phases.report().longest_ms[Phase.DATA] == 550


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the main thread has waited for a processor in all."""
    waited_ms = [700]
    monkeypatch.setattr(processor_wait, "waited_ms", lambda _: waited_ms[0])
    return waited_ms


def test_a_wait_for_a_processor_is_no_part_of_a_phase(time: Time, starved: list[int]) -> None:
    phases = in_a_generation(PhaseClock())
    phases.enter(Phase.DATA)
    for _ in range(9):
        phases.tick(0.25)
        time.now_ms += 1_000
        starved[0] += 900
    phases.tick(0.25)
    assert phases.report().lasting_ms == 900, "the connection's thread was late by as much"

    phases.enter(Phase.COMPUTE)
    time.now_ms += 100
    assert phases.report().lasting_ms == 100, "what it has waited before is nothing of this phase"


def test_a_stop_that_is_noticed_behind_a_wait_for_a_processor_counts_once(
    time: Time, starved: list[int]
) -> None:
    phases = in_a_generation(PhaseClock())
    phases.enter(Phase.DATA)
    phases.tick(0.25)
    time.now_ms += 9_250
    starved[0] += 3_000
    phases.tick(0.25)

    assert phases.report().lasting_ms == 250


def test_the_kernel_tells_how_long_a_thread_has_waited_for_a_processor() -> None:
    mine, others = threading.get_native_id(), os.sched_getaffinity(0)
    before_ms = processor_wait.waited_ms(mine)
    if not before_ms and not Path(f"/proc/self/task/{mine}/schedstat").exists():
        lacks("scheduler statistics", "run it on a kernel with CONFIG_SCHED_INFO")
    deadline_s = monotonic() + HANG_S
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {min(others)})
        os.sched_setaffinity(mine, {min(others)})
        while processor_wait.waited_ms(mine) < before_ms + 100:
            assert monotonic() < deadline_s
    finally:
        os.sched_setaffinity(mine, others)
        busy.kill()
        busy.wait()


def test_whoever_takes_long_is_told_with_its_stack_and_the_collectives_it_has_begun(time: Time) -> None:
    phases, go_on, begun = PhaseClock(), threading.Event(), threading.Event()

    def waits_in_here() -> None:
        in_a_generation(phases)
        phases.collectives = lambda: 12
        phases.enter(Phase.COMPUTE)
        begun.set()
        go_on.wait()

    main = threading.Thread(target=waits_in_here)
    main.start()
    begun.wait()
    try:
        assert phases.report().stack == ""
        time.now_ms += 4_000
        report = phases.report()
    finally:
        go_on.set()
        main.join()

    assert report.collectives == 12
    lines = report.stack.splitlines()
    assert lines[-1].endswith("in wait")
    assert any(line.endswith("in waits_in_here") for line in lines)
