"""Records of every kind, with values that hurt."""

from __future__ import annotations

from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import Role
from recovery.core.records import (
    ActivityRecord,
    CheckpointRecord,
    CheckpointState,
    DirectoryRecord,
    EventKind,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    Record,
    RunRecord,
    StepRecord,
)


def job(generation: int = 0) -> JobRecord:
    return JobRecord(
        job="j'; DROP TABLE job;--",
        worker_count=8,
        server_count=0,
        run=RunId(1),
        state=JobState.RUNNING,
        generation=Generation(generation),
        scheduler_incarnation=Incarnation(1),
        reason='quote " newline \n snowman ☃',
    )


def node(name: str = "worker_3", step: int = 7) -> NodeRecord:
    return NodeRecord(
        node_id=NodeId(name),
        role=Role.WORKER,
        rank=Rank(3),
        incarnation=Incarnation(2),
        state=NodeState.LOST,
        token_digest="ab" * 32,
        admission_request="r",
        host="10.0.0.1",
        pid=2**31,
        step=step,
        rejoin_left_ms=12_345,
    )


def checkpoint(step: int = 10, rank: int = 0) -> CheckpointRecord:
    return CheckpointRecord(
        run=RunId(1),
        step=step,
        rank=Rank(rank),
        generation=Generation(1),
        epoch=1,
        step_in_epoch=step,
        path=f"/ckpt/{rank}/train-1_{step}.ckpt",
        digest="cd" * 32,
        file_bytes=2**40,
        state=CheckpointState.COMMITTED,
    )


def event(text: str = "why") -> EventRecord:
    return EventRecord(kind=EventKind.NODE_LOST, node_id=NodeId("worker_3"), reason=text)


def every_kind() -> list[Record]:
    return [
        job(),
        RunRecord(run=RunId(1)),
        node(),
        IncarnationRecord(
            node_id=NodeId("worker_3"), incarnation=Incarnation(2), rank=None, host="h", pid=1, run=RunId(1)
        ),
        GenerationRecord(
            run=RunId(1), generation=Generation(1), step=0, epoch=0, step_in_epoch=0, because="first"
        ),
        checkpoint(),
        StepRecord(
            node_id=NodeId("worker_3"),
            rank=Rank(3),
            run=RunId(1),
            generation=Generation(1),
            incarnation=Incarnation(2),
            step=5,
            epoch=1,
            step_in_epoch=5,
        ),
        ActivityRecord(
            node_id=NodeId("worker_3"),
            run=RunId(1),
            generation=Generation(1),
            number=1,
            rank=Rank(3),
            incarnation=Incarnation(2),
            first_step=1,
            step=5,
            lasting_ms=400,
            due_ms=0,
        ),
        event(),
        DirectoryRecord(path="/ckpt/3", prefix="train", run=RunId(1)),
    ]
