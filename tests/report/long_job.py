"""The records of a long job as its scheduler would write them: one failure after the other, each with all that follows from it.

    python -m tests.report.long_job PATH [--nodes 1000] [--failures 32] [--worker-files]

writes them into a new recovery path, with two checkpoints of every rank.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.records import (
    EventKind,
    EventRecord,
    GenerationRecord,
    JobState,
    NodeState,
    Record,
    StepRecord,
)
from recovery.store.reader import StoredEvent
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.store import samples

NOTICE_MS, WINDOW_MS, START_MS, RENDEZVOUS_MS, LOAD_MS, FIRST_STEP_MS = 500, 4_000, 100, 200, 300, 50
"""What each failure costs, part by part."""
STEPS, LOST_STEPS = 10, 3
"""Steps of a generation up to its common checkpoint, and after it."""


def event(
    kind: EventKind, generation: int | None = None, node: int | None = None, *, step: int | None = None
) -> EventRecord:
    """One event; node and rank have the same number."""
    return EventRecord(
        kind=kind,
        run=RunId(1),
        generation=None if generation is None else Generation(generation),
        node_id=None if node is None else NodeId(f"worker_{node}"),
        rank=None if node is None else Rank(node),
        step=step,
        reason="worker lost" if kind is EventKind.GENERATION_INTERRUPTED else "",
    )


def batches(nodes: int, failures: int) -> Iterator[tuple[int, list[Record]]]:
    """What is written when, milliseconds: `failures` generations that end with the loss of a node, and the beginning of one more."""
    at_ms = 1_000
    yield at_ms, [event(EventKind.NODE_ADMITTED, None, node) for node in range(nodes)]
    for number in range(1, failures + 2):
        begun, lost = (number - 1) * STEPS, (number - 1) % nodes
        at_ms += START_MS
        yield (
            at_ms,
            [
                *(event(EventKind.NODE_READY, number - 1, node, step=begun) for node in range(nodes)),
                _generation(number, ended_step=0),
                event(EventKind.PLAN_MADE, number, step=begun),
            ],
        )
        at_ms += RENDEZVOUS_MS
        yield at_ms, [event(EventKind.RENDEZVOUS_OPENED, number, 0)]
        at_ms += LOAD_MS
        yield (
            at_ms,
            [event(EventKind.STATE_LOADED, number, node, step=begun) for node in range(nodes)],
        )
        at_ms += FIRST_STEP_MS
        yield (
            at_ms,
            [event(EventKind.FIRST_STEP_DONE, number, node, step=begun + 1) for node in range(nodes)],
        )
        if number > failures:
            return
        at_ms += 10_000
        yield at_ms, [event(EventKind.CHECKPOINT_COMMITTED, number, step=begun + STEPS)]
        at_ms += 1_000
        yield at_ms, [event(EventKind.NODE_SUSPECTED, number, lost)]
        at_ms += NOTICE_MS
        ended_step = begun + STEPS + LOST_STEPS
        yield (
            at_ms,
            [
                event(EventKind.NODE_LOST, number, lost),
                _generation(number, ended_step=ended_step),
                event(EventKind.GENERATION_INTERRUPTED, number, step=ended_step),
            ],
        )
        yield at_ms + WINDOW_MS // 2, [event(EventKind.NODE_REFUSED, None, lost)]
        at_ms += WINDOW_MS
        yield at_ms, [event(EventKind.NODE_ADMITTED, None, lost)]


def as_stored(nodes: int, failures: int) -> tuple[list[StoredEvent], list[GenerationRecord]]:
    """The same as it is read back."""
    events: list[StoredEvent] = []
    generations: dict[int, GenerationRecord] = {}
    for wall_ms, records in batches(nodes, failures):
        for record in records:
            if isinstance(record, EventRecord):
                events.append(StoredEvent(sequence=len(events) + 1, wall_ms=wall_ms, event=record))
            elif isinstance(record, GenerationRecord):
                generations[record.generation] = record
    return events, list(generations.values())


def write(path: Path, nodes: int, failures: int) -> None:
    """Into a new recovery path, as the scheduler writes it."""
    store = SchedulerStore.open(path)
    job = msgspec.structs.replace(
        samples.job(failures + 1), worker_count=nodes, state=JobState.RUNNING, job="large"
    )
    members = [
        msgspec.structs.replace(samples.node(f"worker_{rank}"), rank=Rank(rank), state=NodeState.LIVE)
        for rank in range(nodes)
    ]
    checkpoints = [samples.checkpoint(step, rank) for step in (10, 20) for rank in range(nodes)]
    store.apply([job, *members, *checkpoints], wall_ms=1)
    for wall_ms, records in batches(nodes, failures):
        store.apply(records, wall_ms=wall_ms)
    store.close()


def write_worker_files(path: Path, nodes: int) -> None:
    """And each worker's own file."""
    for rank in range(nodes):
        name = NodeId(f"worker_{rank}")
        store = WorkerStore.open(path, name)
        noted = StepRecord(
            node_id=name,
            rank=Rank(rank),
            run=RunId(1),
            generation=Generation(1),
            incarnation=Incarnation(2),
            step=7,
            epoch=1,
            step_in_epoch=7,
        )
        store.apply([noted], wall_ms=1)
        store.close()


def _generation(number: int, *, ended_step: int) -> GenerationRecord:
    return GenerationRecord(
        run=RunId(1),
        generation=Generation(number),
        step=(number - 1) * STEPS,
        epoch=1,
        step_in_epoch=0,
        because="worker lost",
        ended="worker lost" if ended_step else "",
        ended_step=ended_step,
    )


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description="write the records of a long job into a new recovery path")
    parser.add_argument("path", type=Path)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--failures", type=int, default=32)
    parser.add_argument("--worker-files", action="store_true", help="each worker's own file too")
    asked = parser.parse_args()
    write(asked.path, asked.nodes, asked.failures)
    if asked.worker_files:
        write_worker_files(asked.path, asked.nodes)


if __name__ == "__main__":
    main()
