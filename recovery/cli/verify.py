"""`recovery verify`."""

from __future__ import annotations

import typer

from recovery.cli.formats import print_json, print_line, warn
from recovery.cli.options import FOUND, AsJson, MaybePath
from recovery.cli.source import path_of
from recovery.report import audit
from recovery.report import stored as stored_state
from recovery.report.audit import Finding


def verify(path: MaybePath = None, as_json: AsJson = False) -> None:
    """Check everything; one line per finding."""
    path = path_of(path)
    part = stored_state.read_workers_only(path)
    if part is not None:
        stored, scheduler = part
        warn(f"not looked at: the scheduler's store and what it knows; it is on another host, at {scheduler}")
        _tell([*audit.workers_databases(path), *audit.checkpoints(lambda: stored)], as_json=as_json)
        return
    findings = list(audit.databases(path))
    if not any(finding.path.endswith("scheduler.db") for finding in findings):
        findings += audit.checkpoints(lambda: stored_state.read_stored(path))
        for sentence in audit.not_looked_at(stored_state.read_stored(path)):
            warn(f"not looked at: {sentence}")
    _tell(findings, as_json=as_json)


def _tell(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            print_line(f"{finding.path}: {finding.what}")
        if not findings:
            print_line("all is as it was written")
    if findings:
        raise typer.Exit(FOUND)
