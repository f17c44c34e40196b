"""`recovery export`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from recovery import clock
from recovery.cli.formats import json_of, warn
from recovery.cli.options import RecoveryPath
from recovery.errors import StoreError
from recovery.file_systems import write_new
from recovery.report import stored as stored_state
from recovery.report import tables
from recovery.store.reader import read_checkpoints, read_worker, stored_workers


def export(path: RecoveryPath, file: Annotated[Path, typer.Argument(help="a new file")]) -> None:
    """Everything in one JSON document. Tokens are never stored; their digests are left out all the same."""
    damaged: list[str] = []
    workers = stored_workers(path)
    document: dict[str, Any] = {"written": clock.instant(clock.wall_ms()), "path": str(path)}
    try:
        document |= _of_scheduler(path, damaged)
    except StoreError as error:
        if not workers:
            raise
        damaged.append(str(error))
    document["directories"] = {}
    for node_id in workers:
        try:
            noted = read_worker(path, node_id, accept_without_wal=True).directories
        except StoreError as error:
            damaged.append(str(error))
        else:
            document["directories"][node_id] = [record.path for record in noted]
    if damaged:
        document["unreadable"] = list(dict.fromkeys(damaged))
    write_new(file, json_of(document) + b"\n")
    for sentence in document.get("unreadable", ()):
        warn(f"not exported: {sentence}")
    typer.echo(f"written: {file}")


def _of_scheduler(path: Path, damaged: list[str]) -> dict[str, Any]:
    state = stored_state.read_stored(path)
    steps, not_read = stored_state.progress(state)
    damaged += not_read
    found: dict[str, Any] = {
        "job": state.job,
        "runs": state.runs,
        "nodes": tables.NODES.rows(state.nodes),
        "generations": tables.GENERATIONS.rows(state.generations),
        "steps": tables.STEPS.rows(steps),
    }
    # These hold what is only history: damage there stops no job, so it is found here first.
    history: dict[str, Callable[[], Any]] = {
        "checkpoints": lambda: tables.checkpoint_rows(read_checkpoints(path), state.copies),
        "events": lambda: tables.EVENTS.rows(stored_state.event_log(path)),
    }
    for name, read in history.items():
        try:
            found[name] = read()
        except StoreError as error:
            damaged.append(str(error))
    return found
