"""Tasks of a scheduler with standbys: a rank is taken over, a lost id returns, a rank is handed over before its process ends.

What the next process finds is given to a scheduler as well: no rank may have two holders, and the job must come to run again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Persist
from recovery.core.records import JobState, NodeState, Record, to_held
from recovery.core.rules import Rules
from recovery.store.contents import SchedulerRecords
from tests.core import drained, standbys
from tests.core.desk import Desk, Worker
from tests.faults.task import Task
from tests.faults.tasks import Actors, StoredDesk, find_store, go_on, held, write_all

ROUNDS = 3
"""A worker that started again is ready, then a standby hears an offer, then the plan is made."""


# --- the next scheduler --------------------------------------------------------------------------------------------------


class NextDesk(Desk):
    """The scheduler that is started with what was found, after every process of the job has died."""

    def __init__(self, found: SchedulerRecords, rules: Rules) -> None:
        """Start it.

        Args:
            found: what the store holds.
            rules: of the job.
        """
        super().__init__(rules)
        self.rows.clear()
        assert found.job is not None, "the job is stored"
        rows: list[Record] = [found.job, *found.nodes, *found.slots, *found.processes]
        self._write(Persist((*rows, *found.generations, *found.checkpoints), ()))
        self._found = found
        self.restart()

    def start_all_again(self) -> None:
        """Let the leases pass, start each process again, and answer what is asked with the files that are known."""
        self.at(self.now + self.rules.lease_ms + self.rules.rejoin_window_ms + 1)
        gone = {row.node_id for row in self._found.nodes if row.state is NodeState.LEFT}
        here = [Worker(self, row.node_id) for row in self._found.nodes if row.node_id not in gone]
        here = [one for one in here if isinstance(one.register(), m.Admitted)]
        for _ in range(ROUNDS):
            for one in here:
                self._say_ready(one)

    def _say_ready(self, one: Worker) -> None:
        rank = self.machine.state.nodes[one.node_id].record.rank
        offer = one.last(m.Offer) if one.hears(m.Offer) else None
        asked = rank if offer is None else offer.rank
        files = tuple(to_held(row) for row in self._found.checkpoints if row.rank == asked and row.path)
        one.send(
            m.Ready(
                request_id=one.request(),
                generation=one.generation,
                step=0,
                held=files,
                rank=None if offer is None else offer.rank,
            )
        )


def find_and_go_on(place: Path, rules: Rules) -> object:
    """Open as a restarted scheduler does, and bring the job to run again."""
    found = find_store(place)
    desk = NextDesk(found[0], rules)
    desk.start_all_again()
    assert desk.machine.state.job.state is JobState.RUNNING, (
        f"the next scheduler does not go on: {desk.machine.state.job.state} {desk.machine.state.job.reason}"
    )
    return found


# --- the tasks -----------------------------------------------------------------------------------------------------------

RULES = msgspec.structs.replace(standbys.RULES, rejoin_window_ms=0)
DRAIN_RULES = msgspec.structs.replace(drained.RULES, rejoin_window_ms=0)
Workers = tuple[Worker, ...]


def _waiting(place: Path) -> object:
    """Two workers that have saved, and a standby."""
    desk = StoredDesk(RULES)
    actors = (*standbys.training(desk, 10, 20), standbys.standby(desk))
    return write_all(place, desk, actors)


def _take_over(desk: StoredDesk, actors: Workers) -> None:
    first, second, waits = actors
    standbys.lose(desk, second)
    standbys.answer(waits, 20, 10)
    first.ready(*held(first, 20))
    for one in (first, waits):
        one.follow()
        one.save(30)


def _taken_over(place: Path) -> object:
    """The standby has the rank, and its first holder is gone."""
    desk = StoredDesk(RULES)
    return write_all(place, desk, standbys.taken_over(desk))


def _return(desk: StoredDesk, actors: Workers) -> None:
    """The lost id comes back as a standby, and takes the rank of the next one that is lost."""
    first, waits, second = actors
    assert isinstance(second.register(keep_token=False), m.Admitted)
    second.ready()
    standbys.lose(desk, first)
    standbys.answer(second, 20, of="worker_0", rank=0, written_in=2)
    waits.ready(*held(waits, 20))
    for one in (waits, second):
        one.follow()
        one.save(30)


def _drained(place: Path) -> object:
    desk = StoredDesk(DRAIN_RULES)
    return write_all(place, desk, drained.Drained(desk=desk))


def _drain(desk: StoredDesk, scene: drained.Drained) -> None:
    [waits] = scene.standbys
    scene.take_over(waits, scene.handing_over())
    for one in (scene.zero, waits):
        one.follow()
        one.save(40)


def _task(
    name: str,
    prepare: Callable[[Path], object],
    scenario: Callable[[StoredDesk, Actors], None],
    rules: Rules,
) -> Task:
    return Task(
        name,
        prepare,
        lambda place, prepared, acknowledge: go_on(place, prepared, acknowledge, scenario),
        lambda place: find_and_go_on(place, rules),
    )


STANDBY_TASKS = (
    _task("take-over", _waiting, _take_over, RULES),
    _task("return of a lost id", _taken_over, _return, RULES),
    _task("drain", _drained, _drain, DRAIN_RULES),
)
