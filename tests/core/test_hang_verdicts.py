"""Which rank holds the others up is found out by what all have said, and from when on that is a hang by what was seen before (MS_STEP_TIMEOUT=auto)."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation
from recovery.core.phases import Phase, PhaseReport
from recovery.core.policy import hang_limits
from recovery.core.policy.hang_limits import RankPhase
from recovery.core.records import EventKind, EventRecord, JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.hang_watch import HangWatch
from recovery.core.scheduler.views import job_view
from tests.core.desk import Desk, Worker, running_workers

LEARNED = dict.fromkeys(Phase, 100)


def rank(name: str, phase: Phase, lasting_ms: int, *, step: int = 7, collectives: int = 0) -> RankPhase:
    return RankPhase(
        " ab".index(name),
        name,
        step,
        PhaseReport(phase=phase, lasting_ms=lasting_ms, collectives=collectives),
    )


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        # In the loader, while the other one waits in the collective of the same step.
        ([rank("a", Phase.COMPUTE, 9_000), rank("b", Phase.DATA, 9_000)], "b"),
        ([rank("a", Phase.COMPUTE, 9_500, collectives=12), rank("b", Phase.COMPUTE, 9_000, collectives=11)], "b"),
        # Another one is a step ahead.
        ([rank("a", Phase.COMPUTE, 9_000, step=8, collectives=12), rank("b", Phase.DATA, 9_000)], "b"),
        ([rank("a", Phase.COMPUTE, 6_000), rank("b", Phase.COMPUTE, 9_000)], "b"),
        ([rank("a", Phase.DATA, 9_000)], "a"),
        # Who is behind takes as long as it may: nobody is judged for waiting for it.
        ([rank("a", Phase.COMPUTE, 50_000, collectives=9), rank("b", Phase.SAVE, 50_000, collectives=8)], None),
        ([rank("a", Phase.COMPUTE, 50_000, collectives=9), rank("b", Phase.COMPILE, 10**7, collectives=8)], None),
        ([rank("a", Phase.COMPUTE, 50_000, collectives=9), rank("b", Phase.EVALUATION, 181_000, collectives=8)], "b"),
        ([rank("a", Phase.COMPUTE, 4_000), rank("b", Phase.DATA, 4_999)], None),
    ],
)  # fmt: skip
def test_the_one_that_others_wait_for_is_named(ranks: list[RankPhase], named: str | None) -> None:
    found = hang_limits.suspect(ranks, LEARNED)

    assert (found.node_id if found is not None else None) == named


@pytest.mark.parametrize(
    ("waits", "further", "named"),
    [
        (rank("a", Phase.COMPUTE, 9_000, collectives=12), rank("b", Phase.DATA, 9_000, step=8, collectives=11), "b"),
        (rank("a", Phase.COMPUTE, 9_000, collectives=12), rank("b", Phase.DATA, 9_000, step=8, collectives=12), "a"),
        (rank("a", Phase.COMPUTE, 9_000, collectives=12), rank("b", Phase.DATA, 10, step=8, collectives=11), "b"),
        # It has not said how many it has begun.
        (rank("a", Phase.COMPUTE, 9_000, collectives=12), rank("b", Phase.DATA, 9_000, step=8), "a"),
        (rank("a", Phase.COMPUTE, 4_000, collectives=12), rank("b", Phase.DATA, 9_000, step=8, collectives=11), None),
        (rank("a", Phase.COMPILE, 9_000, collectives=12), rank("b", Phase.DATA, 9_000, step=8, collectives=11), None),
        # Of data of other lengths the one that has less is done: it has left out nothing.
        (rank("a", Phase.COMPUTE, 9_000, collectives=12), rank("b", Phase.DATA, 9_000, step=7, collectives=11), "a"),
    ],
)  # fmt: skip
def test_a_rank_that_is_done_has_left_out_a_collective_where_one_that_waits_has_begun_more(
    waits: RankPhase, further: RankPhase, named: str | None
) -> None:
    found = hang_limits.suspect([waits], LEARNED, [further])

    assert (found.node_id if found is not None else None) == named


def test_a_rank_that_does_not_say_how_many_collectives_it_has_begun_hides_no_other_one_of_its_step() -> None:
    waits = rank("a", Phase.COMPUTE, 9_000, collectives=12)
    says_none, left_one_out = (
        rank(" ", Phase.DATA, 10, step=8),
        rank("b", Phase.DATA, 10, step=8, collectives=11),
    )
    found = hang_limits.suspect([waits, says_none, left_one_out], LEARNED)

    assert found is not None
    assert (found.node_id, found.left_out) == ("b", 1)


@pytest.mark.parametrize("lasting_ms", [(6_000, 4_000), (4_000, 6_000)])
def test_how_many_were_left_out_is_told(lasting_ms: tuple[int, int]) -> None:
    further = rank("b", Phase.COMPUTE, 7_000, step=9, collectives=10)
    waiting = [
        rank(name, Phase.COMPUTE, lasting, collectives=12)
        for name, lasting in zip("a ", lasting_ms, strict=True)
    ]
    found = hang_limits.suspect([further, *waiting], LEARNED)

    assert found is not None
    assert found.sentence == (
        "rank 2 (b) has left out 2 of the collectives before the end of step 9: ranks that wait in one, with fewer steps done: 2, for 6.0 s, its limit "
        "is 5.0 s"
    )


def test_a_limit_is_three_times_the_longest_and_five_seconds_at_least() -> None:
    assert hang_limits.limit_ms(Phase.DATA, {Phase.DATA: 100}) == 5_000
    assert hang_limits.limit_ms(Phase.DATA, {Phase.DATA: 4_000}) == 12_000
    assert hang_limits.limit_ms(Phase.DATA, {}) is None
    assert hang_limits.limit_ms(Phase.COMPILE, {Phase.COMPILE: 100}) is None


def test_how_many_wait_is_told() -> None:
    found = hang_limits.suspect(
        [rank("a", Phase.COMPUTE, 6_000, collectives=9), rank("b", Phase.COMPUTE, 6_000, collectives=8)],
        LEARNED,
    )

    assert found is not None
    assert found.sentence == (
        "rank 2 (b) is in compute behind step 7 for 6.0 s, its limit is 5.0 s; ranks that wait for it: 1"
    )


class Job:
    """Two ranks whose heartbeats come every second."""

    def __init__(self, *, lease_ms: int = 5_000, **rules: bool) -> None:
        self.desk = Desk(Rules(worker_count=2, step_timeout_ms=None, lease_ms=lease_ms, **rules))
        self.workers = running_workers(self.desk)
        self._sequence = 0

    def beat(
        self,
        worker: Worker,
        phase: Phase,
        lasting_ms: int,
        *,
        step: int = 7,
        stack: str = "",
        collectives: int = 0,
    ) -> None:
        self._sequence += 1
        report = PhaseReport(
            phase=phase, lasting_ms=lasting_ms, longest_ms=LEARNED, stack=stack, collectives=collectives
        )
        worker.send(
            m.Heartbeat(sequence=self._sequence, generation=worker.generation, step=step, phase=report)
        )

    def hang(self, seconds: int, *, since: int = 0, step: int = 7, phase: Phase = Phase.DATA) -> None:
        """Rank 1 is in its loader, or elsewhere, and rank 0 waits."""
        for second in range(since, seconds):
            self.desk.at(self.desk.now + 1_000)
            self.beat(self.workers[0], Phase.COMPUTE, 1_000 * second, step=step)
            self.beat(self.workers[1], phase, 1_000 * second, step=step, stack="train.py:7 in read")

    def events(self, kind: EventKind) -> list[EventRecord]:
        return [one for one in self.desk.events if one.kind is kind]


def test_a_hang_is_told_at_the_limit_once_with_its_stack_and_ends_the_generation_at_twice_it() -> None:
    job = Job()
    job.hang(9)

    [told] = job.events(EventKind.HANG_SUSPECTED)
    assert (told.node_id, told.rank, told.step, told.details) == ("worker_1", 1, 7, "train.py:7 in read")
    assert "rank 1 (worker_1) is in data behind step 7 for 5.0 s" in told.reason
    assert job.events(EventKind.GENERATION_INTERRUPTED) == []
    hang = job_view(job.desk.machine.state, job.desk.now)["hang"]
    assert (hang["rank"], hang["phase"], hang["lasting_ms"], hang["limit_ms"]) == (1, "data", 8_000, 5_000)

    job.hang(12, since=9)
    [ended] = job.events(EventKind.GENERATION_INTERRUPTED)
    assert "rank 1 (worker_1) is in data behind step 7 for 10.0 s" in ended.reason
    assert len(job.events(EventKind.HANG_SUSPECTED)) == 1
    assert all(worker.hears(m.Interrupt) for worker in job.workers)


@pytest.mark.parametrize("rules", [{"replaces_hung": False}, {"recovery_enabled": False}])
def test_where_hangs_are_reported_they_are_no_more_than_that(rules: dict[str, bool]) -> None:
    job = Job(**rules)
    job.hang(100)

    assert len(job.events(EventKind.HANG_SUSPECTED)) == 1
    assert job.events(EventKind.GENERATION_INTERRUPTED) == []


def test_a_rank_that_comes_on_is_no_longer_suspected_and_may_be_again() -> None:
    job = Job()
    job.hang(7)
    job.beat(job.workers[0], Phase.COMPUTE, 9_000)
    assert job.events(EventKind.HANG_CLEARED) == []
    job.beat(job.workers[1], Phase.DATA, 5, step=8)

    [cleared] = job.events(EventKind.HANG_CLEARED)
    assert (cleared.node_id, cleared.step) == ("worker_1", 8)
    assert cleared.reason == "rank 1 (worker_1) has come on from data behind step 7"

    job.hang(7, step=8)
    assert len(job.events(EventKind.HANG_SUSPECTED)) == 2


def test_another_rank_that_hangs_meanwhile_is_told_too() -> None:
    job = Job(replaces_hung=False)
    job.hang(7)
    for second in range(7, 10):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[1], Phase.DATA, 1_000 * second)
        job.beat(job.workers[0], Phase.DATA, 20_000 + 1_000 * second)

    assert [one.node_id for one in job.events(EventKind.HANG_SUSPECTED)] == ["worker_1", "worker_0"]


def test_a_verdict_says_nothing_of_the_next_generation_and_comes_later_there() -> None:
    job = Job()
    job.hang(12)
    for worker in job.workers:
        worker.ready()
    for worker in job.workers:
        worker.follow()
    job.hang(32, step=9)

    assert len(job.events(EventKind.GENERATION_INTERRUPTED)) == 1, "its limit is 30 s now"
    assert job.events(EventKind.HANG_CLEARED) == []
    job.hang(62, since=32, step=9)
    assert len(job.events(EventKind.GENERATION_INTERRUPTED)) == 2


def test_one_that_answers_is_not_given_up_before_twice_the_time_of_one_that_is_silent() -> None:
    job = Job(lease_ms=30_000)
    job.hang(60)
    assert len(job.events(EventKind.HANG_SUSPECTED)) == 1
    assert job.events(EventKind.GENERATION_INTERRUPTED) == []
    job.hang(62, since=60)
    assert len(job.events(EventKind.GENERATION_INTERRUPTED)) == 1


def test_a_limit_that_becomes_known_late_is_told_before_anything_follows() -> None:
    job = Job()
    for second in range(100, 108):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[0], Phase.COMPUTE, 1_000 * second)
        job.beat(job.workers[1], Phase.DATA, 1_000 * second)
        assert bool(job.events(EventKind.GENERATION_INTERRUPTED)) is (second >= 106), second
    assert len(job.events(EventKind.HANG_SUSPECTED)) == 1


def test_a_start_that_filled_caches_is_a_measure_of_one_that_loads_once_there_is_one() -> None:
    watch = HangWatch()
    watch.learn({}, fresh_start_ms=600_000)
    assert hang_limits.limit_ms(Phase.START, watch.longest_ms) is None
    watch.learn({Phase.START: 20_000})
    assert hang_limits.limit_ms(Phase.START, watch.longest_ms) == 1_800_000


@pytest.mark.parametrize(
    ("second", "after_s"),
    # Of another phase the verdict at the same step comes as soon as the first one.
    [(Phase.DATA, (60, 360, 2_160)), (Phase.COMPUTE, (60, 60, 360))],
)
def test_a_step_that_takes_half_an_hour_each_time_fails_no_job(
    second: Phase, after_s: tuple[int, ...]
) -> None:
    job = Job(lease_ms=30_000)
    for verdicts, lasts_s in enumerate(after_s, 1):
        phase = second if verdicts == 2 else Phase.DATA
        job.hang(lasts_s, phase=phase)
        assert len(job.events(EventKind.GENERATION_INTERRUPTED)) == verdicts - 1
        job.hang(lasts_s + 2, since=lasts_s, phase=phase)
        assert len(job.events(EventKind.GENERATION_INTERRUPTED)) == verdicts
        job.desk.at(job.desk.now + 10_000)
        for worker in job.workers:
            worker.ready()
        for worker in job.workers:
            worker.follow()
    job.hang(1_800)
    assert len(job.events(EventKind.GENERATION_INTERRUPTED)) == 3
    assert job.desk.machine.state.job.state is JobState.RUNNING


def test_a_suspicion_ends_with_its_generation() -> None:
    job = Job()
    job.hang(7)
    job.workers[0].send(m.CollectiveFailed(generation=job.workers[0].generation, step=7, reason="it broke"))
    for worker in job.workers:
        worker.ready()
    for worker in job.workers:
        worker.follow()
    job.hang(3)

    assert job.events(EventKind.HANG_CLEARED) == []
    assert len(job.events(EventKind.HANG_SUSPECTED)) == 1


def test_nobody_is_judged_of_whom_too_little_is_known() -> None:
    job = Job(lease_ms=30_000)
    for second in range(20):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[1], Phase.DATA, 1_000 * second)
    assert job.events(EventKind.HANG_SUSPECTED) == [], "the other one has said nothing"

    old = Generation(job.workers[0].generation + 1)
    job.workers[0].send(m.Heartbeat(sequence=90, generation=job.workers[0].generation, step=7))
    job.beat(job.workers[1], Phase.DATA, 21_000)
    job.workers[0].send(m.Heartbeat(sequence=91, generation=old, step=7))
    assert job.events(EventKind.HANG_SUSPECTED) == [], "the other one says no phase"

    job.beat(job.workers[0], Phase.COMPUTE, 1_000)
    job.desk.now += 8_000
    job.beat(job.workers[1], Phase.DATA, 30_000)
    assert job.events(EventKind.HANG_SUSPECTED) == [], "the other one is silent"


def test_a_rank_that_is_done_is_waited_for_by_nobody() -> None:
    job = Job()
    job.workers[0].done(step=7)
    job.hang(7)

    assert [one.node_id for one in job.events(EventKind.HANG_SUSPECTED)] == ["worker_1"]


def test_a_verdict_for_a_collective_that_was_left_out_raises_the_limit_of_those_that_wait() -> None:
    job = Job()
    for second in range(12):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[0], Phase.COMPUTE, 1_000 * second, step=7, collectives=30)
        job.beat(job.workers[1], Phase.DATA, 1_000 * second, step=8, collectives=29)
    [ended] = job.events(EventKind.GENERATION_INTERRUPTED)
    assert "its limit is 5.0 s" in ended.reason
    for worker in job.workers:
        worker.ready()
    for worker in job.workers:
        worker.follow()
    job.hang(7, step=9)

    last = job.events(EventKind.HANG_SUSPECTED)[-1]
    assert "in data behind step 9 for 5.0 s, its limit is 5.0 s" in last.reason, "nothing was learned of data"
    job.beat(job.workers[1], Phase.DATA, 5, step=10)
    for second in range(14):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[0], Phase.COMPUTE, 1_000 * second, step=10, collectives=60)
        job.beat(job.workers[1], Phase.DATA, 1_000 * second, step=11, collectives=59)
    assert job.events(EventKind.HANG_SUSPECTED)[-1] is last, "its limit is 30 s now"


@pytest.mark.parametrize("is_done", [True, False])
def test_a_rank_that_has_left_out_a_collective_is_told_once(is_done: bool) -> None:
    job = Job()
    for second in range(9):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[0], Phase.COMPUTE, 1_000 * second, step=7, collectives=30)
        job.beat(job.workers[1], Phase.DATA, 1_000 * second, step=8, collectives=29)
        if is_done and not second:
            job.workers[1].done(step=8)

    [told] = job.events(EventKind.HANG_SUSPECTED)
    assert (told.node_id, told.step) == ("worker_1", 8)
    assert job.events(EventKind.HANG_CLEARED) == []


def test_a_rank_that_is_done_is_heard_before_another_one_is_judged() -> None:
    job = Job(lease_ms=30_000)
    job.beat(job.workers[1], Phase.COMPUTE, 10, step=7, collectives=30)
    job.workers[1].done(step=8)
    done_at = job.desk.now
    for second in range(6, 30):
        job.desk.at(job.desk.now + 1_000)
        job.beat(job.workers[0], Phase.COMPUTE, 1_000 * second, collectives=31)
        is_soon = job.desk.now <= done_at + job.desk.rules.heartbeat_ms_max
        assert not (is_soon and job.events(EventKind.HANG_SUSPECTED))

    # It has never said it.
    assert job.events(EventKind.HANG_SUSPECTED)[0].node_id == "worker_0"
