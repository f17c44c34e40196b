"""`recovery rebuild`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recovery.cli.formats import warn
from recovery.cli.options import RecoveryPath, Yes, confirm
from recovery.core.policy.rebuild import Unclear
from recovery.core.policy.rebuild import rebuild as built_of
from recovery.core.rules import Rules
from recovery.errors import RecoveryPathError, StoreLostError
from recovery.scheduler import manifest_rebuild, store_rebuild
from recovery.scheduler.store_rebuild import Traces


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
    """Have the next scheduler rebuild its lost store from what the workers report. Refused while a process uses what is left of it."""
    archived = None
    if checkpoints:
        found = manifest_rebuild.look(path, checkpoints, job=job)
        where = " ".join(map(str, checkpoints))
        confirm(f"Rebuild the stores in {path} of the job whose checkpoints lie below {where}?", yes=yes)
        archived = manifest_rebuild.write(found)
        traces = _lost_in(path)
    else:
        traces = _lost_in(path)
        scheduler = store_rebuild.scheduler_elsewhere(traces)
        if scheduler is not None:
            warn(
                f"the scheduler of this job is on another host, at {scheduler}: make its store here only if it is lost there"
            )
        confirm(
            f"Have the next scheduler of the job in {path} rebuild its store from what the workers know?",
            yes=yes,
        )
    archived = rebuild_store(traces) or archived
    typer.echo(f"the next scheduler asks the workers; {traces.description}")
    if archived is not None:
        typer.echo(f"what was left of the old one: {archived}")


def _lost_in(path: Path) -> Traces:
    traces = store_rebuild.lost_in(path)
    if traces is None:
        raise RecoveryPathError(
            path=str(path),
            reason="holds no job whose scheduler's store is lost",
            next_step=f"Look at it with `recovery status {path}`; where the stores of its workers are gone as well, name where the ranks have saved "
            f"(recovery rebuild {path} --checkpoints DIR). Nothing was changed.",
        )
    return traces


def rebuild_store(traces: Traces) -> Path | None:
    """Have the next scheduler ask the workers which job it is of. Refused while a process uses what is left of its store.

    Returns:
        Where what was left of the old store lies now; None: there was nothing.

    Raises:
        StoreLostError: the workers' stores contradict each other.
    """
    built = built_of(traces.pasts) if traces.pasts else None
    if isinstance(built, Unclear):
        raise StoreLostError(path=str(traces.path), found=f"{traces.description}, but {built.reason}")
    count = built.worker_count if built is not None else 1
    return store_rebuild.ask_workers(traces.path, Rules(worker_count=count))
