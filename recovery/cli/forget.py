"""`recovery forget`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from recovery import clock
from recovery.cli.options import RecoveryPath, Yes, confirm
from recovery.core.causes import Cause
from recovery.core.records import EventKind, EventRecord, JobState, NodeState
from recovery.errors import UsageError
from recovery.report import stored as stored_state
from recovery.store.repository import SchedulerStore


def forget(
    path: RecoveryPath, node: Annotated[str, typer.Argument(help="node id")], yes: Yes = False
) -> None:
    """End a lost node's rejoin window now: its next process is let in at once, with its rank."""
    confirm(f"Let {node} back in at once, although its old process might still run?", yes=yes)
    _end_window(path, node)
    typer.echo(f"{node} is forgotten: its next process is let in at once, with its rank")


def _end_window(path: Path, node_id: str) -> None:
    """Write it. Refused while a scheduler runs.

    Raises:
        UsageError: there is no such node, or its process may still train.
        StoreLockedError: a scheduler runs.
    """
    # Opening alone would create a store where there is none.
    stored_state.read_stored(path)
    store = SchedulerStore.open(path)
    try:
        state = store.load()
        node = next((node for node in state.nodes if node.node_id == node_id), None)
        if node is None or state.job is None:
            known = ", ".join(str(node.node_id) for node in state.nodes) or "none"
            raise UsageError(
                field=repr(node_id), reason="is no node of this job", next_step=f"Name one of: {known}."
            )
        if node.state is NodeState.LIVE and state.job.state is JobState.RUNNING:
            raise UsageError(
                field=node_id,
                reason="was live when the scheduler was last heard; its process may still train",
                next_step="End that process first, or start the scheduler, which finds out by itself.",
            )
        reason = "forgotten by a person"
        left = msgspec.structs.replace(
            node, state=NodeState.LEFT, rejoin_left_ms=0, reason=reason, cause=Cause.OTHER
        )
        event = EventRecord(
            kind=EventKind.NODE_LEFT,
            node_id=node.node_id,
            rank=node.rank,
            incarnation=node.incarnation,
            run=state.job.run,
            generation=state.job.generation,
            reason=reason,
        )
        store.apply((left, event), wall_ms=clock.wall_ms())
    finally:
        store.close()
