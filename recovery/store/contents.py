"""The records of a whole file, as the process that begins with them holds them. Without SQLAlchemy, whose import costs 0.2 s."""

from __future__ import annotations

import msgspec

from recovery.core.copy_records import CopyRecord
from recovery.core.records import (
    CheckpointRecord,
    DirectoryRecord,
    GenerationRecord,
    JobRecord,
    LiveSourceRecord,
    NodeRecord,
    ProcessRecord,
    RunRecord,
    SlotRecord,
    StepRecord,
    TrainingEndRecord,
)


class SchedulerRecords(msgspec.Struct, frozen=True, kw_only=True):
    """All that a restarted scheduler begins with: no retired checkpoints. Each tuple is in the order of its key."""

    job: JobRecord | None = None
    runs: tuple[RunRecord, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    slots: tuple[SlotRecord, ...] = ()
    """Only of the nodes that hold another place than that of their own name, or none."""
    processes: tuple[ProcessRecord, ...] = ()
    """Of all incarnations."""
    generations: tuple[GenerationRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    copies: tuple[CopyRecord, ...] = ()
    """Of other ranks' checkpoints, on nodes: those that are there, and those that are damaged."""
    live_sources: tuple[LiveSourceRecord, ...] = ()
    """Of the plans that went to ranks' memories."""
    training_ends: tuple[TrainingEndRecord, ...] = ()
    """Of the runs whose training a script has ended."""


class WorkerRecords(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker's next incarnation begins with. Each tuple is in the order of its key."""

    directories: tuple[DirectoryRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    """One at most: its note of its newest save on a disk, in the run of its newest plan. All others are only history."""
    step: StepRecord | None = None
    node: NodeRecord | None = None
    job: JobRecord | None = None
    """As the newest plan said. None in a store that has never seen a plan, or none since the release that stores it."""
    generations: tuple[GenerationRecord, ...] = ()
    """The plans that this node received, of all runs."""
