"""`recovery export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recovery import clock
from recovery.cli.formats import json_of
from recovery.cli.options import RecoveryPath
from recovery.report import stored as stored_state
from recovery.report import tables
from recovery.store.reader import read_checkpoints, read_worker, stored_workers


def export(path: RecoveryPath, file: Annotated[Path, typer.Argument(help="a new file")]) -> None:
    """Everything in one JSON document. Tokens are never stored; their digests are left out all the same."""
    state = stored_state.read_stored(path)
    document: dict[str, Any] = {
        "written": clock.instant(clock.wall_ms()),
        "path": str(path),
        "job": state.job,
        "runs": state.runs,
        "nodes": tables.NODES.rows(state.nodes),
        "generations": tables.GENERATIONS.rows(state.generations),
        "checkpoints": tables.checkpoint_rows(read_checkpoints(path), state.copies),
        "events": tables.EVENTS.rows(stored_state.event_log(path)),
        "steps": tables.STEPS.rows(stored_state.progress(state)[0]),
        "directories": {
            node_id: [
                record.path for record in read_worker(path, node_id, accept_without_wal=True).directories
            ]
            for node_id in stored_workers(path)
        },
    }
    with file.open("xb") as stream:
        stream.write(json_of(document) + b"\n")
    typer.echo(f"written: {file}")
