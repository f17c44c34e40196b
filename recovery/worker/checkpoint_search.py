"""Where a node looks for checkpoints of a rank: wherever it has saved, and among its copies."""

from __future__ import annotations

from pathlib import Path

import msgspec

from recovery.checkpoint import catalogue, names
from recovery.core.held import HeldCheckpoint, Skipped
from recovery.core.ids import NodeId, Rank, RunId
from recovery.core.messages import JobHistory
from recovery.core.policy.ranks import slot_of
from recovery.core.records import DirectoryRecord
from recovery.worker.held_copies import Copies


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search of the directories has found."""

    held: tuple[HeldCheckpoint, ...] = ()
    passed_over: tuple[Skipped, ...] = ()
    past: JobHistory | None = None
    """Another job that this node has trained; None: none that anybody remembers."""


def copies_of(recovery_path: Path | None, node_id: NodeId, replaces: str) -> Copies | None:
    """Name the copies of a node's place; None: recovery is off, there are none."""
    return Copies(recovery_path, slot_of(node_id, replaces)) if recovery_path is not None else None


def search(
    copies: Copies | None, records: tuple[DirectoryRecord, ...], job: str, run: RunId, rank: Rank | None
) -> catalogue.Listing:
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
    return catalogue.list_all(places, job=job, run=run, rank=rank)


def prefix_of(held: HeldCheckpoint) -> str | None:
    """What a directory is searched for to find a checkpoint again; None: its name is none."""
    if held.is_folder:
        return catalogue.FOLDERS
    parsed = names.parse(Path(held.path).name)
    return parsed.prefix if parsed else None
