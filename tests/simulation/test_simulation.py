"""Hundreds of jobs under random faults in virtual time. A failure prints its seed and how to replay it."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec
import pytest

from recovery.core.records import RunRecord
from tests.simulation.faults import DRAWN, IN_AN_OFFER, KINDS, Fault
from tests.simulation.run import run, shrink
from tests.simulation.shape import Spares, shape_of
from tests.simulation.world import World
from tests.untraced import run_module

FEW, SEEDS = range(12), 500
"""Seeds of the gate, and how many `make test-all` runs."""

WORTH_REACHING = (
    *(f"fault: {kind}" for kind in KINDS),
    "a file was passed over",
    "a plan gave up a committed step",
    "a checkpoint was rejected when it was loaded",
    "a fenced incarnation woke up to an old plan",
    "a job ended for want of a common checkpoint",
    "a lost store was rebuilt",
    "a job finished",
    "a main thread did not come back",
    "a power cut took a transaction that nobody had heard of",
    "a process exited FENCED",
    "a save failed",
    "a worker's own store did not write",
    "a write found no space",
    "an fsync failed",
    "the scheduler was killed with writes under way",
    "a process was known to be dead",
    "a proof came too late to matter",
    "a proven death ended a window",
    "a rank was taken over",
    "a standby was asked and did not take the rank",
    "an offer was answered late",
    "an offer was never answered",
    "a rank went on from files that another node saved",
    "the rank of a living process was taken over",
    *(f"in an offer: {what}" for what in IN_AN_OFFER),
    "who waited was told at once",
)
"""Where a simulation that never gets proves nothing."""

FOUND = (106, 225, 226, 228, 300, 732, 3140, 3574, 4127)
"""Seeds that once failed, in the engine or in the checks; docs/reliability.md tells which."""

_LATER = ("spoil", "remove", "copy", "wrong word", "lost id", "host", "in an offer")

FOUND_AMONG = tuple(kind for kind in DRAWN if kind not in _LATER)
"""The kinds of faults that there were then: with others, these seeds would draw other faults."""

FOUND_SINCE = (
    431298,
    431575,
    432478,
    433895,
    434413,
    700194,
    700335,
    702233,
    720514,
    910000462,
    910000623,
    910001657,
    910002553,
    910003843,
    910005479,
    910007264,
    910010024,
    920001462,
    930001848,
    930014750,
    # A rank sends a step to object storage that it has sent before, now from a copy that a person has made of its file.
    970007885,
    # A rebuilt store has one rank's word that a step was held by all; the rank says again that it has the file, and the scheduler starts twice.
    980008946,
    # A power cut takes a plan before it is written; its number is given again, and then the store is lost.
    980008935,
    # Whoever a rebuilt store has never met trains on; the store is lost again, and the next one meets another process of its id first.
    980008587,
    # The only rank is done and cut off; what it saved last is damaged, and its job fails for that. It ends well, since all ranks held it.
    981001116,
    # A rank's first plan is in its socket when the store is lost, and it wakes up to that; its world, whose other ranks count, is found again.
    990009671,
    # The store is lost twice; a report of before the newest plan comes once more, and that of the save behind it later.
    1010006921,
)
"""Seeds that failed with all kinds of faults."""


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    done = run_module(f"tests.simulation --seeds {SEEDS} --workers 8 --json")
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("seed", FEW)
def test_every_promise_is_kept_under_a_few_seeds(seed: int) -> None:
    outcome = run(seed, workers=8)

    assert not outcome.failure, "\n".join((*outcome.log, outcome.failure))


@pytest.mark.slow
def test_eight_workers_keep_every_promise_under_five_hundred_seeds(figures: dict[str, Any]) -> None:
    print(json.dumps({name: value for name, value in figures.items() if not isinstance(value, dict)}))
    assert figures["seeds"] == SEEDS
    assert figures["faults"] > 10_000


@pytest.mark.slow
def test_the_seeds_together_reach_everything_that_is_worth_reaching(figures: dict[str, Any]) -> None:
    assert [name for name in WORTH_REACHING if not figures["seen"].get(name)] == []
    assert set(figures["checked"]) >= {
        "I3",
        "I4",
        "I5",
        "I8",
        "I9",
        "I10",
        "I11",
        "I12",
        "I13",
        "I19",
        "I20",
        "I21",
        "I23",
        "I24",
    }


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_stays_fixed(seed: int) -> None:
    outcome = run(seed, kinds=FOUND_AMONG, spares=Spares())

    assert not outcome.failure, "\n".join((*outcome.log, outcome.failure))


@pytest.mark.parametrize("seed", FOUND_SINCE)
def test_what_was_found_since_stays_fixed(seed: int) -> None:
    outcome = run(seed)

    assert not outcome.failure, "\n".join((*outcome.log, outcome.failure))


def test_a_second_process_of_one_that_runs_beside_its_slot_loses_nobody() -> None:
    """Who is started under an id that was given up runs beside the process of the slot, and so does one more of that id."""
    world = World(0, shape_of(0, ("impostor", "lost id"), workers=2, spares=Spares()))
    world.clock.run(5_000, lambda: False)
    slot = world.slots["w0"]
    first = slot.process
    world.earlier(slot, "w0")
    beside = world.seconds[-1]
    world.second(beside)
    assert first is not None
    assert slot.process is first
    of_slot = [process for process in world.living if process.slot is slot]
    assert len(of_slot) == len(set(of_slot)) == 3


@pytest.mark.parametrize(
    "but", ["", "the job goes on", "not done", "not held by all", "heard", "not damaged"]
)
def test_nobody_ends_well_before_the_job_but_who_is_cut_off_with_a_last_step_that_was_damaged(
    but: str,
) -> None:
    world = World(0, shape_of(0, ("cut",), workers=1, spares=Spares()))
    world.clock.run(5_000_000, lambda: "finished" in world.outcomes)
    process, files, last = world.slots["w0"].process, world.disk["w0"], world.shape.steps
    assert process is not None
    assert process.wire is not None
    assert process.phase == "done"
    assert world.promises.may_end_well(process)
    # As if it had failed instead.
    run = msgspec.structs.replace(world.store.all(RunRecord)[0], outcome="no_common_checkpoint")
    world.store.commit((run,))
    world.verdict = "" if but == "the job goes on" else "NO_COMMON_CHECKPOINT"
    process.phase = "training" if but == "not done" else "done"
    process.step = last + (but == "not held by all")
    process.wire = process.wire if but == "heard" else None
    files[last] = msgspec.structs.replace(files[last], good=but == "not damaged")
    assert world.promises.may_end_well(process) is not bool(but)


@pytest.mark.parametrize(
    ("counted_before", "found_at", "step", "is_kept"),
    [
        (0, 2, 3, True),
        (0, 2, 4, False),
        (0, 2, 2, False),
        (0, 4, 5, False),
        (1, 2, 3, True),
        (1, 2, 4, False),
    ],
)
def test_a_rank_goes_on_behind_what_a_world_has_done_that_was_left_behind_and_is_found_again(
    counted_before: int, found_at: int, step: int, *, is_kept: bool
) -> None:
    """Also one of which no step has counted before. It has done three."""
    world = World(0, shape_of(0, ("cut",), workers=1, spares=Spares()))
    slot, promises = world.slots["w0"], world.promises
    world.clock.run(5_000_000, lambda: slot.process is not None and slot.process.plan is not None)
    assert slot.process is not None
    assert slot.process.plan is not None
    of, plan = slot.process, slot.process.plan
    for number in range(1, counted_before + 1):
        promises.stepped(of, plan, number)
    promises._left_behind.add(of)
    for number in range(counted_before + 1, 4):
        promises.stepped(of, plan, number)

    found = msgspec.structs.replace(plan, generation=plan.generation + 1_000, step=found_at)
    promises._count_left_behind(found)
    promises._left_behind.discard(of)
    if is_kept:
        promises.stepped(of, found, step)
        assert promises._applied[plan.job, plan.rank] == list(range(1, step + 1))
    else:
        with pytest.raises(AssertionError, match="I10: rank 0 did step"):
            promises.stepped(of, found, step)


def test_one_seed_leaves_the_same_trace_in_every_process() -> None:
    here = run(7)
    again = run_module("tests.simulation --seed 7")

    assert f"trace {here.fingerprint[:16]}" in again.stdout
    assert run(8).fingerprint != here.fingerprint


def test_a_failure_is_shrunk_to_the_faults_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.simulation import run as module

    def never_stops(world: Any) -> None:
        stopped = world.clock.seen["fault: stop"] + world.clock.seen["fault: kill"]
        assert stopped < 2, "I14: planted"

    monkeypatch.setattr(module, "_check_end", never_stops)
    failed = next(outcome for outcome in map(run, range(50)) if outcome.failure)
    smallest = shrink(failed)

    assert len(failed.faults) > len(smallest.faults) >= 2
    # A delay may be needed too: it keeps the job alive until the second stop.
    for number in range(len(smallest.faults)):
        fewer = [*smallest.faults[:number], *smallest.faults[number + 1 :]]
        assert not run(failed.seed, faults=fewer).failure, f"{smallest.faults[number]} was not needed"


def test_a_failing_seed_tells_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.simulation import __main__ as command

    options = argparse.Namespace(workers=None, drains=False)
    command._report(run(3, faults=[Fault(1_000, "kill", 1)]), options)
    said = capsys.readouterr().out

    assert "1 s kill" in said
    assert said.rstrip().endswith("again: python -m tests.simulation --seed 3")
