"""A rank that makes the others wait in each step by its own work is told, with what is slow; one that waits for others is not (MS_STRAGGLER_PERCENT)."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation
from recovery.core.pace import HeldUp, Pace
from recovery.core.phases import Phase, PhaseReport
from recovery.core.policy import stragglers
from recovery.core.policy.stragglers import RankPace
from recovery.core.records import EventKind, EventRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.straggler_watch import StragglerWatch
from recovery.core.scheduler.views import job_view
from tests.core.desk import Desk, Worker, running_workers


def pace(data_ms: float, compute_ms: float, *, batches: int = 100, **held_up: int) -> Pace:
    return Pace(
        batches=batches,
        data_us=int(data_ms * 1_000),
        compute_us=int(compute_ms * 1_000),
        held_up={HeldUp(word): much for word, much in held_up.items()},
    )


def slow(*paces: Pace, percent: int = 33) -> list[tuple[int, str]]:
    ranks = [RankPace(rank, f"worker_{rank}", one) for rank, one in enumerate(paces)]
    return [(one.rank, one.part) for one in stragglers.slow(ranks, percent)]


@pytest.mark.parametrize(
    ("paces", "found"),
    [
        ([pace(1, 10), pace(1, 10), pace(1, 14)], [(2, "compute")]),
        ([pace(1, 10), pace(5, 10), pace(1, 10)], [(1, "data")]),
        # Of two the faster one is what is usual.
        ([pace(1, 14), pace(1, 10)], [(0, "compute")]),
        ([pace(1, 10), pace(9, 20), pace(1, 10), pace(1, 15)], [(1, "compute"), (3, "compute")]),
        # One third slower, and no more.
        ([pace(0, 30), pace(0, 30), pace(0, 39.9)], []),
        # Much in proportion, and less than a millisecond.
        ([pace(0.1, 0.5), pace(0.1, 0.5), pace(0.1, 1.5)], []),
        # It has less to do with its data and more to compute: no longer in all.
        ([pace(9, 3), pace(9, 3), pace(2, 10)], []),
        # Half of them are slow: nobody knows what is usual.
        ([pace(1, 10), pace(1, 20), pace(1, 20)], []),
        ([pace(1, 100)], []),
        ([], []),
        # A loop that does not tell when its gradients are there is compared by its data.
        ([pace(1, 0), pace(1, 90), pace(8, 5)], [(2, "data")]),
    ],
)  # fmt: skip
def test_a_rank_is_slow_by_its_own_work(paces: list[Pace], found: list[tuple[int, str]]) -> None:
    assert slow(*paces) == found


def test_how_much_is_slow_can_be_chosen() -> None:
    assert slow(pace(0, 10), pace(0, 10), pace(0, 18), percent=100) == []
    assert slow(pace(0, 10), pace(0, 10), pace(0, 12), percent=10) == [(2, "compute")]


def test_it_is_said_what_the_kernel_says() -> None:
    ranks = [
        RankPace(0, "a", pace(1, 10)),
        RankPace(1, "b", pace(1, 30, throttled=400, starved=250, stolen=19, swapped=20)),
    ]

    [found] = stragglers.slow(ranks, 33)

    assert found.sentence == (
        "rank 1 (b) needs 31.0 ms for its own work on a batch, others 11.0 ms; most of it in compute; its control group was throttled for 40% of the "
        "time; its main thread waited for a processor for 25% of the time; 2% of its memory is in swap"
    )


def watch_of(*seen: tuple[int, tuple[str, ...]]) -> list[tuple[int, str, str]]:
    """What is told at which second, where these nodes are slow at these seconds."""
    watch, told = StragglerWatch(), list[tuple[int, str, str]]()
    watch.may_look(Generation(1), 0)
    for second, names in seen:
        verdicts = watch.note(
            [stragglers.Straggler(0, name, "data", 20, 10) for name in names], second * 1_000
        )
        told += [(second, "found", one.node_id) for one in verdicts.found]
        told += [(second, "cleared", one.node_id) for one in verdicts.cleared]
    return told


def test_it_is_told_once_where_it_lasts_and_when_it_is_over() -> None:
    seen = [(second, ("a",) if 2 <= second < 30 else ()) for second in range(0, 60, 2)]

    assert watch_of(*seen) == [(12, "found", "a"), (40, "cleared", "a")]


def test_moments_are_not_told() -> None:
    assert watch_of(*((second, ("a",) if second % 8 else ()) for second in range(0, 100, 2))) == []


def test_a_moment_without_it_does_not_end_it() -> None:
    told = watch_of(*((second, () if second == 20 else ("a",)) for second in range(0, 60, 2)))

    assert told == [(10, "found", "a")]


class Job:
    """Three workers, of which each beat tells a pace."""

    def __init__(self, *, percent: int = 33) -> None:
        self.desk = Desk(Rules(worker_count=3, straggler_percent=percent))
        self.workers = running_workers(self.desk, "worker_0", "worker_1", "worker_2")
        self._sequence = 0

    def beat(self, worker: Worker, told: Pace | None) -> None:
        self._sequence += 1
        report = PhaseReport(phase=Phase.COMPUTE, lasting_ms=5, pace=told)
        worker.send(m.Heartbeat(sequence=self._sequence, generation=worker.generation, step=7, phase=report))

    def seconds(self, count: int, *paces: Pace | None) -> None:
        for _ in range(count):
            self.desk.at(self.desk.now + 1_000)
            for worker, told in zip(self.workers, paces, strict=True):
                self.beat(worker, told)

    def events(self, kind: EventKind) -> list[EventRecord]:
        return [one for one in self.desk.events if one.kind is kind]

    @property
    def shown(self) -> list[int]:
        return [one["rank"] for one in job_view(self.desk.machine.state, self.desk.now)["stragglers"]]


EVEN, SLOW = pace(1, 10), pace(1, 20)


def test_the_scheduler_tells_it_by_name_and_shows_it() -> None:
    job = Job()
    job.seconds(20, EVEN, SLOW, EVEN)

    [told] = job.events(EventKind.STRAGGLER_FOUND)
    assert (told.node_id, told.step) == ("worker_1", 7)
    assert told.reason.startswith("rank 1 (worker_1) needs 21.0 ms")
    assert job.shown == [1]
    view = job_view(job.desk.machine.state, job.desk.now)
    assert [(node["data_ms"], node["compute_ms"]) for node in view["nodes"][:3]] == [
        (1.0, 10.0),
        (1.0, 20.0),
        (1.0, 10.0),
    ]

    job.seconds(20, EVEN, EVEN, EVEN)
    [cleared] = job.events(EventKind.STRAGGLER_CLEARED)
    assert cleared.node_id == "worker_1"
    assert job.shown == []


@pytest.mark.parametrize(
    "told",
    [
        None,
        # Of a moment.
        pace(1, 10, batches=99),
    ],
)
def test_while_one_rank_has_not_told_enough_nobody_is_slow(told: Pace | None) -> None:
    job = Job()
    job.seconds(30, EVEN, SLOW, told)
    assert job.events(EventKind.STRAGGLER_FOUND) == []


def test_a_rank_that_is_done_is_compared_no_more() -> None:
    job = Job()
    job.seconds(1, EVEN, EVEN, EVEN)
    job.workers[2].done(step=7)
    job.seconds(20, EVEN, SLOW, EVEN)
    assert [one.node_id for one in job.events(EventKind.STRAGGLER_FOUND)] == ["worker_1"]


def test_without_a_per_cent_nobody_looks() -> None:
    job = Job(percent=0)
    job.seconds(30, EVEN, SLOW, EVEN)
    assert job.events(EventKind.STRAGGLER_FOUND) == []


def test_another_generation_begins_anew() -> None:
    watch = StragglerWatch()
    watch.may_look(Generation(1), 0)
    one = stragglers.Straggler(0, "a", "data", 20, 10)
    for now_ms in (0, 10_000):
        watch.note([one], now_ms)
    assert watch.of(Generation(1)) == [one]
    assert watch.of(Generation(2)) == []

    assert not watch.may_look(Generation(2), 10_500)
    assert watch.may_look(Generation(2), 12_500)
    assert watch.of(Generation(2)) == []
