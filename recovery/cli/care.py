"""The commands that check or change what is stored, and those that look at this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from recovery import clock, config
from recovery.cli.form import Format
from recovery.cli.output import complain, console, json_of, print_json, print_line, show_rows, text_of
from recovery.core.records import EventKind, EventRecord, JobState, NodeState
from recovery.errors import RecoveryPathError, UsageError
from recovery.report import audit, tables
from recovery.report import stored as stored_state
from recovery.report.doctor import examine
from recovery.report.tables import Column, View, instant
from recovery.scheduler import store_rebuild as rebuilding
from recovery.store.archive import RESET, archive_stores
from recovery.store.reader import read_checkpoints, read_worker, stored_workers
from recovery.store.repository import SchedulerStore

ENV = View(
    "env",
    "Every variable that is read, its value and where it comes from.",
    (
        Column("name", "variable", lambda source: source.name),
        Column("value", "as typed; empty: unset without a default", lambda source: source.value),
        Column("source", "environment, mpirun, rank table or default", lambda source: source.source),
        Column(
            "fate", "honoured, passed through, or accepted without effect", lambda source: source.fate.value
        ),
        Column("rule", "what its value must be", lambda source: source.rule),
    ),
)


def verify(path: Path, *, as_json: bool) -> bool:
    """Check everything; one line per finding. Gives whether all is well."""
    findings = list(audit.databases(path))
    if not any(finding.path.endswith("scheduler.db") for finding in findings):
        findings += audit.checkpoints(stored_state.read(path))
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            print_line(f"{finding.path}: {finding.what}")
        if not findings:
            print_line("all is as it was written")
    return not findings


def export(path: Path, file: Path) -> None:
    """Everything in one JSON document. Tokens are never stored; their digests are left out all the same."""
    state = stored_state.read(path)
    document: dict[str, Any] = {
        "written": instant(clock.wall_ms()),
        "path": str(path),
        "job": state.job,
        "runs": state.runs,
        "nodes": tables.NODES.rows(state.nodes),
        "generations": tables.GENERATIONS.rows(state.generations),
        "checkpoints": tables.checkpoint_rows(read_checkpoints(path)),
        "events": tables.EVENTS.rows(stored_state.event_log(path)),
        "steps": tables.STEPS.rows(stored_state.progress(state)[0]),
        "directories": {
            node_id: [one.path for one in read_worker(path, node_id, accept_without_wal=True).directories]
            for node_id in stored_workers(path)
        },
    }
    with file.open("xb") as stream:
        stream.write(json_of(document) + b"\n")


def forget(path: Path, node_id: str) -> None:
    """End a lost node's rejoin window now: its next process is let in at once, with its rank. Refused while a scheduler runs."""
    stored_state.read(path)  # opening would make a store where there is none
    store = SchedulerStore.open(path)
    try:
        state = store.load()
        node = next((one for one in state.nodes if one.node_id == node_id), None)
        if node is None or state.job is None:
            known = ", ".join(str(one.node_id) for one in state.nodes) or "none"
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
        left = msgspec.structs.replace(node, state=NodeState.LEFT, rejoin_left_ms=0, reason=reason)
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


def reset(path: Path) -> Path:
    """Lay the job's state aside, so that the next start is a new job. Nothing is deleted. Refused while a process has a store open.

    Returns:
        The directory that it lies in now, below the recovery path.
    """
    return archive_stores(path, f"{RESET}{instant(clock.wall_ms())[:19].replace(':', '')}")


def rebuild(path: Path) -> tuple[str, Path | None]:
    """Make the lost store of a scheduler again. Refused while a process uses what is left of it.

    Returns:
        What was taken from where and what nobody knew; and where what was left of the old store lies now.

    Raises:
        StoreLostError: what is there does not tell all of it.
        RecoveryPathError: there is nothing to rebuild, or the store is there.
    """
    traces = rebuilding.lost_in(path)
    if traces is None:
        raise RecoveryPathError(
            path=str(path),
            reason="holds no job whose scheduler's store is lost",
            next_step=f"Look at it with `recovery status {path}`; nothing was changed.",
        )
    records = rebuilding.records_of(traces)
    aside = rebuilding.write(path, records)
    return next(one.details for one in records if isinstance(one, EventRecord)), aside


def environment(environ: Mapping[str, str], form: Format) -> None:
    """Every variable with its value, source and rule; then what is wrong with them.

    Raises:
        SettingError: one is wrong.
    """
    show_rows(ENV, ENV.rows(config.sources(environ)), form)
    for warning in config.load(environ).warnings:
        complain(warning)


def doctor(environ: Mapping[str, str], *, as_json: bool) -> bool:
    """Look at this machine. Gives whether all is well."""
    checks = list(examine(environ))
    if as_json:
        print_json(checks)
    else:
        for check in checks:
            mark = Text("ok   ", style="green") if check.ok else Text("look ", style="bold red")
            step = f"\n     {check.next_step}" if check.next_step else ""
            console.print(
                Text.assemble(mark, (f"{check.name}: ", "bold"), text_of(check.found), step), soft_wrap=True
            )
    return all(check.ok for check in checks)
