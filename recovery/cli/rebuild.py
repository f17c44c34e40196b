"""`recovery rebuild`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from recovery.cli.formats import warn
from recovery.cli.options import RecoveryPath, Yes, confirm
from recovery.core.records import EventRecord, Record
from recovery.errors import RecoveryPathError
from recovery.scheduler import manifest_rebuild
from recovery.scheduler import store_rebuild as rebuilding


def rebuild(
    path: RecoveryPath,
    checkpoints: Annotated[
        list[Path] | None,
        typer.Option(
            help="a directory at or above those that the ranks have saved in, where the workers' own stores are lost too; may be given again",
            metavar="DIR",
        ),
    ] = None,
    job: Annotated[str, typer.Option(help="which job, where --checkpoints holds those of several")] = "",
    yes: Yes = False,
) -> None:
    """Rebuild the lost store of a scheduler. Refused while a process uses what is left of it."""
    if checkpoints:
        found = manifest_rebuild.look(path, checkpoints, job=job)
        where = " ".join(map(str, checkpoints))
        records = rebuilding.records_of(found.traces, where)
        confirm(f"Rebuild the stores in {path} of the job whose checkpoints lie below {where}?", yes=yes)
        sources, archived = _sources(records), manifest_rebuild.write(found, records)
    else:
        traces = rebuilding.lost_in(path)
        scheduler = rebuilding.scheduler_elsewhere(traces) if traces is not None else None
        if scheduler is not None:
            warn(
                f"the scheduler of this job is on another host, at {scheduler}: make its store here only if it is lost there"
            )
        confirm(
            f"Rebuild the scheduler's store of the job in {path} from what its workers have noted?", yes=yes
        )
        sources, archived = rebuild_store(path)
    typer.echo(f"rebuilt: {sources}")
    if archived is not None:
        typer.echo(f"what was left of the old one: {archived}")


def _sources(records: Iterable[Record]) -> str:
    return next(record.details for record in records if isinstance(record, EventRecord))


def rebuild_store(path: Path) -> tuple[str, Path | None]:
    """Rebuild the lost store of a scheduler. Refused while a process uses what is left of it.

    Returns:
        What was taken from where and what nobody knew; and where what was left of the old store lies now.

    Raises:
        StoreLostError: what is there does not show all of it.
        RecoveryPathError: there is nothing to rebuild, or the store is there.
    """
    traces = rebuilding.lost_in(path)
    if traces is None:
        raise RecoveryPathError(
            path=str(path),
            reason="holds no job whose scheduler's store is lost",
            next_step=f"Look at it with `recovery status {path}`; where the stores of its workers are gone as well, name where the ranks have saved "
            f"(recovery rebuild {path} --checkpoints DIR). Nothing was changed.",
        )
    records = rebuilding.records_of(traces)
    archived = rebuilding.write(path, records)
    return _sources(records), archived
