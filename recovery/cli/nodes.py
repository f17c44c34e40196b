"""`recovery nodes`."""

from __future__ import annotations

from pathlib import Path

from recovery.cli.formats import Format, show_rows
from recovery.cli.options import AsJson, Connect, MaybePath, Rows, chosen
from recovery.cli.source import ask, source_of
from recovery.report import status as status_report
from recovery.report import stored as stored_state
from recovery.report import tables
from recovery.report.rank_progress import RunningProcesses, notes_of_now, progress_of_ranks


def nodes(
    path: MaybePath = None, connect: Connect = None, form: Rows = Format.TABLE, as_json: AsJson = False
) -> None:
    """All nodes, from the files or from a running scheduler."""
    source = source_of(path, connect)
    if isinstance(source, Path):
        state = stored_state.read_stored(source)
        processes = RunningProcesses(state)
        ranks = progress_of_ranks(state, processes, notes_of_now(state))
        steps = {progress.node_id: progress.step for progress in ranks if progress.rank is not None}
        rows = [{**row, "newest_step": steps.get(row["node_id"])} for row in processes.rows(state.nodes)]
    else:
        rows = status_report.node_rows(ask(source, "/status"))
    how = chosen(form, as_json=as_json)
    if how is Format.TABLE:
        rows = [{**row, "state": "warming up"} if row["warming_up"] else row for row in rows]
        rows = [
            {**row, "step": row["step"] if row["newest_step"] is None else row["newest_step"]} for row in rows
        ]
    show_rows(tables.NODES, rows, how)
