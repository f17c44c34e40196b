"""The scheduler's store as a model: rows by key, in three states. What may never be written is checked as it is written.

    waiting     handed to the writer; a dead process loses it
    committed   with the operating system; a dead process leaves it, a power cut may take the newest of it
    durable     synced; only then is anything acknowledged

tests/simulation/test_store_model.py runs the same operations on it and on the real store: that is what licenses it.
"""

from __future__ import annotations

import random
from typing import Any

from recovery.core.copy_records import CopyRecord
from recovery.core.records import (
    CheckpointRecord,
    EventKind,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    JobRecord,
    LiveSourceRecord,
    NodeRecord,
    NodeState,
    ProcessRecord,
    Record,
    RunRecord,
    SlotRecord,
    TrainingEndRecord,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import new_job, next_incarnation
from recovery.core.scheduler.machine import SchedulerMachine

Batch = tuple[Record, ...]
Rows = dict[tuple[Any, ...], Any]

KEYS: dict[type, tuple[str, ...]] = {
    JobRecord: (),
    RunRecord: ("run",),
    NodeRecord: ("node_id",),
    IncarnationRecord: ("node_id", "incarnation"),
    GenerationRecord: ("run", "generation"),
    CheckpointRecord: ("run", "step", "rank"),
    SlotRecord: ("node_id",),
    ProcessRecord: ("node_id", "incarnation"),
    CopyRecord: ("run", "step", "rank", "node_id"),
    LiveSourceRecord: ("run", "generation", "rank"),
    TrainingEndRecord: ("run",),
}


class StoreModel:
    """Rows by key, as the real store keeps them."""

    def __init__(self, job: str = "job") -> None:
        self._new_job = job
        self.rows: Rows = {}
        """What a reader sees now: durable and committed."""
        self.events = 0
        self._durable: Rows = {}
        self._durable_events = 0
        self._unsynced: list[Batch] = []

    def commit(self, batch: Batch) -> None:
        """One transaction, whole, visible to whoever opens the file; not yet durable."""
        self._unsynced.append(batch)
        rebuilt = any(isinstance(one, EventRecord) and one.kind is EventKind.STORE_REBUILT for one in batch)
        self.events += _put(self.rows, batch, checked=not rebuilt)
        if any(isinstance(one, NodeRecord | SlotRecord) for one in batch):
            check_places(self.all(NodeRecord), self.all(SlotRecord))

    def sync(self) -> None:
        """Everything committed is durable."""
        for batch in self._unsynced:
            self._durable_events += _put(self._durable, batch)
        self._unsynced.clear()

    def cut_power(self, draw: random.Random) -> int:
        """Of what was not synced some first transactions stay, none of them in part. Returns how many went."""
        stay = draw.randint(0, len(self._unsynced))
        lost = len(self._unsynced) - stay
        del self._unsynced[stay:]
        self.sync()
        self.rows, self.events = dict(self._durable), self._durable_events
        return lost

    def is_durable(self, key: tuple[Any, ...]) -> Any:
        """The durable row of a key, if any."""
        return self._durable.get(key)

    def all(self, kind: type[Any]) -> tuple[Any, ...]:
        """The rows of a kind, by key."""
        rows = [(key[1:], row) for key, row in self.rows.items() if key[0] is kind]
        return tuple(row for _, row in sorted(rows, key=lambda item: item[0]))

    @property
    def job(self) -> JobRecord | None:
        """The job's row."""
        row: JobRecord | None = self.rows.get((JobRecord,))
        return row

    def machine(self, rules: Rules) -> SchedulerMachine:
        """The machine of the scheduler's next process."""
        job = self.job
        if job is None:
            return SchedulerMachine(new_job(self._new_job, rules), rules)
        machine = SchedulerMachine(next_incarnation(job), rules)
        machine.restore(
            self.all(NodeRecord),
            self.all(GenerationRecord),
            self.all(CheckpointRecord),
            self.all(SlotRecord),
            self.all(ProcessRecord),
            self.all(CopyRecord),
            live_sources=self.all(LiveSourceRecord),
            training_ends=self.all(TrainingEndRecord),
        )
        return machine


def key_of(record: Record) -> tuple[Any, ...]:
    """Under which key a record is kept."""
    return (type(record), *(getattr(record, field) for field in KEYS[type(record)]))


def _put(rows: Rows, batch: Batch, *, checked: bool = False) -> int:
    events = 0
    for record in batch:
        if isinstance(record, EventRecord):
            events += 1
            continue
        key = key_of(record)
        if checked:
            check_rises(rows.get(key), record)
        rows[key] = record
    return events


def check_places(nodes: tuple[NodeRecord, ...], slots: tuple[SlotRecord, ...]) -> None:
    """I22 on the rows: after every transaction a rank has one holder, a place has one, and who has a rank has a place."""
    of_others = {record.node_id: record.slot for record in slots}
    for role in sorted({node.role for node in nodes}):
        of_role = [node for node in nodes if node.role is role]
        held = [node for node in of_role if node.rank is not None]
        ranks = [node.rank for node in held]
        assert len(set(ranks)) == len(ranks), f"I22: two nodes hold one rank: {held}"
        places = [of_others.get(node.node_id, node.node_id) for node in held]
        assert "" not in places, f"I22: a rank is held without a slot: {held}, {slots}"
        named = [slot for node in of_role if (slot := of_others.get(node.node_id, node.node_id))]
        assert len(set(named)) == len(named), f"I22: two nodes hold one place: {of_role}, {slots}"


def check_rises(old: Any, new: Record) -> None:
    """I1 and I2 on the rows: numbers only rise, a second incarnation begins when the first is over, a plan never changes."""
    if old is None:
        return
    if isinstance(new, NodeRecord):
        assert new.incarnation in (old.incarnation, old.incarnation + 1), f"I2: {old} then {new}"
        if new.incarnation > old.incarnation:
            assert old.state in (NodeState.LOST, NodeState.LEFT), (
                f"I1: a second incarnation beside a living one: {old}"
            )
    if isinstance(new, JobRecord):
        assert (new.run, new.generation) >= (old.run, old.generation), f"I2: {old} then {new}"
        assert new.scheduler_incarnation >= old.scheduler_incarnation, f"I2: {old} then {new}"
    if isinstance(new, GenerationRecord):
        assert (new.step, new.because) == (old.step, old.because), f"I9: a plan changed: {old} then {new}"
