"""Which state everybody goes to, or why the job ends: the rules, without a scheduler."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recovery.core.ids import Rank
from recovery.core.messages import HeldCheckpoint, JobOutcome
from recovery.core.policy import rollback
from recovery.core.policy.next_plan import (
    NETWORK_MS,
    RULES,
    SAME_ENDS_MAX,
    CrashLoop,
    End,
    Facts,
    Plan,
    crash_loop_after,
    next_plan,
)
from recovery.core.policy.rollback import Unusable
from tests.core.desk import checkpoint
from tests.core.survivors import in_memory

_STEPS = st.sets(st.integers(1, 4))
_HOPELESS = CrashLoop(plan=0, step=7, times=SAME_ENDS_MAX, first_ms=0, last_ms=0, by_program=True, done="")


def _held(*steps: set[int]) -> dict[int, dict[Rank, HeldCheckpoint]]:
    """Of each rank these."""
    return rollback.by_step((Rank(rank), checkpoint(step)) for rank, of in enumerate(steps) for step in of)


def _facts(
    *steps: set[int],
    ever_committed: bool = True,
    allowed: bool = False,
    crash_loop: CrashLoop | None = None,
    memories: dict[int, int] | None = None,
    refused: frozenset[int] = frozenset(),
    live: bool = False,
) -> Facts:
    """By rank the steps that it holds. Every step that one of them holds was committed."""
    held = _held(*steps)
    return Facts(
        world_size=len(steps),
        held=held,
        of_one={step: min(held[step].items()) for step in sorted(held, reverse=True)},
        given_up={step: {Rank(9): Unusable(path="", reason="it is gone")} for step in held},
        ever_committed=ever_committed,
        allow_restart_from_zero=allowed,
        live_rollback=live,
        memories={Rank(rank): in_memory(step) for rank, step in (memories or {}).items()},
        refused=refused,
        crash_loop=crash_loop,
        because="worker_0: the data plane broke",
    )


@st.composite
def _any_facts(draw: st.DrawFn) -> Facts:
    ranks = draw(st.integers(1, 3))
    steps = [draw(_STEPS) for _ in range(ranks)]
    loop = CrashLoop(
        plan=0,
        step=7,
        times=draw(st.integers(SAME_ENDS_MAX - 1, SAME_ENDS_MAX)),
        first_ms=draw(st.sampled_from((0, -NETWORK_MS))),
        last_ms=0,
        by_program=draw(st.booleans()),
        done="",
    )
    return _facts(
        *steps,
        ever_committed=draw(st.booleans()),
        allowed=draw(st.booleans()),
        crash_loop=draw(st.sampled_from((None, loop))),
        memories=draw(st.dictionaries(st.integers(0, ranks - 1), st.integers(1, 6))),
        refused=frozenset(draw(st.sets(st.integers(1, 6), max_size=2))),
        live=draw(st.booleans()),
    )


def _dumb(facts: Facts) -> tuple[str, int]:
    """What is decided, written down a second time as one walk: a word for it, and the step."""
    ranks = range(facts.world_size)
    common = [step for step, own in facts.held.items() if all(rank in own for rank in ranks)]
    candidates = [("own", step) for step in common]
    if facts.live_rollback:
        states = {state.step for state in facts.memories.values()} - facts.refused
        candidates += [("memory", step) for step in states]
        candidates += [("one", step) for step in facts.of_one if step not in facts.refused]
    preferred = ("one", "memory", "own")
    newest = max(candidates, key=lambda found: (found[1], preferred.index(found[0])), default=None)
    may_start = facts.allow_restart_from_zero or not facts.ever_committed
    if newest is None and not may_start:
        return "nothing in common", 0
    loop = facts.crash_loop
    if loop and loop.times >= SAME_ENDS_MAX and (loop.by_program or loop.first_ms == -NETWORK_MS):
        return "ends alike", 0
    return newest or ("zero", 0)


@given(_any_facts())
@example(_facts({1}, {1}, crash_loop=_HOPELESS, memories={0: 6}, live=True))
@example(_facts({1}, {2}, crash_loop=_HOPELESS))
def test_every_facts_have_one_outcome_and_a_second_reading_of_the_rules_finds_the_same(facts: Facts) -> None:
    decided = next_plan(facts)
    if isinstance(decided, End):
        said = {JobOutcome.NO_COMMON_CHECKPOINT: "nothing in common", JobOutcome.JOB_FAILED: "ends alike"}
        found = (said[decided.outcome], 0)
    elif decided.files:
        found = ("own", decided.step)
    elif decided.sources:
        found = ("one" if decided.sources[0].is_checkpoint else "memory", decided.step)
    else:
        found = ("zero", decided.step)
    assert found == _dumb(facts)
    assert next_plan(msgspec.structs.replace(facts)) == decided, "it is asked again, and says the same"


@given(_any_facts())
def test_no_plan_follows_where_the_next_generation_would_end_as_those_before_it(facts: Facts) -> None:
    """Whatever state there is: in a rank's memory, in one checkpoint, in all of them, or step 0."""
    assert isinstance(next_plan(msgspec.structs.replace(facts, crash_loop=_HOPELESS)), End)


@given(_any_facts())
def test_no_plan_loses_a_step_that_all_ranks_hold(facts: Facts) -> None:
    decided = next_plan(facts)
    if isinstance(decided, Plan):
        assert decided.step >= facts.common_step
        assert decided.step not in facts.refused or decided.step == facts.common_step
        assert len(decided.files) in (0, facts.world_size)
        assert {file.step for file in decided.files} <= {decided.step}


@given(_any_facts())
def test_a_rule_speaks_for_itself_and_only_the_order_decides_between_two(facts: Facts) -> None:
    outcomes = [outcome for rule in RULES if (outcome := rule(facts)) is not None]
    assert outcomes
    assert next_plan(facts) == outcomes[0]
    nothing = [one for one in outcomes if isinstance(one, End) and one.outcome is not JobOutcome.JOB_FAILED]
    assert not nothing or not any(isinstance(one, Plan) for one in outcomes), "there is no plan then"


def test_every_rank_goes_to_its_own_file_of_the_newest_common_step() -> None:
    decided = next_plan(_facts({1, 2}, {1, 2, 3}))
    assert isinstance(decided, Plan)
    assert (decided.step, len(decided.files), decided.reason) == (2, 2, "every rank holds step 2")


def test_nobody_holds_any_yet_means_step_zero() -> None:
    decided = next_plan(_facts(set(), set(), ever_committed=False))
    assert decided == Plan(reason="no rank has a checkpoint of this run yet")


def test_files_that_are_all_gone_are_not_taken_for_none_yet() -> None:
    decided = next_plan(_facts(set(), set()))
    assert isinstance(decided, End)
    assert decided.reason == "no step is held by all 2 ranks (rank 0: none; rank 1: none)"


def test_nothing_in_common_stops_with_a_table_unless_allowed() -> None:
    decided = next_plan(_facts({1}, set()))
    assert isinstance(decided, End)
    assert decided.outcome is JobOutcome.NO_COMMON_CHECKPOINT
    assert decided.reason.endswith("(rank 0: 1; rank 1: none)")
    allowed = next_plan(_facts({1}, set(), allowed=True))
    assert isinstance(allowed, Plan)
    assert (allowed.step, allowed.at) == (0, None)


def test_a_death_between_the_very_first_saves_starts_at_step_zero() -> None:
    decided = next_plan(_facts({1}, set(), ever_committed=False))
    assert decided == Plan(reason="no step has ever been held by all ranks (rank 0: 1; rank 1: none)")


@pytest.mark.parametrize(("times", "ends"), [(SAME_ENDS_MAX - 1, False), (SAME_ENDS_MAX, True)])
def test_generations_that_end_alike_are_counted(times: int, ends: bool) -> None:
    loop = None
    for _ in range(times):
        loop = crash_loop_after(loop, plan=1, is_live=False, step=7, done="", now_ms=0)
    assert isinstance(next_plan(_facts({1}, {1}, crash_loop=loop)), End) is ends
