"""Where a node looks for checkpoints of a rank: wherever it has saved, and among its copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from recovery.checkpoint import catalogue
from recovery.config import MemorySettings
from recovery.core.held import HeldCheckpoint, PassedOver
from recovery.core.ids import NodeId, Rank, RunId
from recovery.core.messages import Past
from recovery.core.policy.ranks import place_of
from recovery.core.records import DirectoryRecord
from recovery.worker.copy_files import Copies
from recovery.worker.memory_copies import MemoryCopies


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search of the directories has found."""

    held: tuple[HeldCheckpoint, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    past: Past | None = None
    """Another job that this node has trained; None: none that anybody remembers."""


def copies_of(
    recovery_path: Path | None,
    node_id: NodeId,
    replaces: str,
    memory: MemorySettings,
    job_is_over: Callable[[], bool],
) -> Copies | None:
    """Name the copies of a node's place; None: recovery is off, there are none.

    Args:
        recovery_path: of the job.
        node_id: of this process.
        replaces: the lost id that it was started in the place of; empty: none.
        memory: what the environment says about checkpoints in memory.
        job_is_over: asked when this process ends: what is left in memory then goes.
    """
    if recovery_path is None:
        return None
    place = place_of(node_id, replaces)
    return Copies(recovery_path, place, MemoryCopies(memory, recovery_path, place, job_is_over))


def look(
    copies: Copies | None, records: tuple[DirectoryRecord, ...], job: str, run: RunId, rank: Rank | None
) -> catalogue.Look:
    """Look wherever a rank's checkpoints may lie.

    Args:
        copies: of this node; what was brought back for its own rank lies among them. None: there are none.
        records: directories that were saved to.
        job: whose.
        run: of which run of it.
        rank: of which rank; None: this process was never given one.
    """
    places: list[tuple[str, str | None]] = [
        (record.path, record.prefix) for record in records if record.run == run
    ]
    if copies is not None and rank is not None:
        places += [(str(directory), None) for directory in copies.directories(job, run, rank)]
    return catalogue.look_all(places, job=job, run=run, rank=rank)
