"""`recovery reset`."""

from __future__ import annotations

from contextlib import suppress

import typer

from recovery import clock
from recovery.cli.options import RecoveryPath, Yes, confirm
from recovery.errors import RecoveryError
from recovery.report.stored import workers_part
from recovery.store.archive import archive_stores, scheduler_files
from recovery.store.paths import RESET


def reset(path: RecoveryPath, yes: Yes = False) -> None:
    """Archive the job's state, so that the next start is a new job. Nothing is deleted. Refused while a process has a store open."""
    what, then, stays = "all state of the job", "Training then starts at step 0.", ""
    # What is damaged is archived, too; what is not there is refused by who archives.
    with suppress(RecoveryError, OSError):
        part = None if scheduler_files(path) else workers_part(path)
        if part is not None:
            what = f"the stores of {', '.join(sorted(part[0].pasts))}"
            then = stays = (
                f"The job stays: its scheduler's store is on another host, at {part[1]}. "
                "Run `recovery reset` there, too, for a new job."
            )
    confirm(f"Archive {what} in {path}? {then}", yes=yes)
    archived = archive_stores(path, f"{RESET}{clock.instant(clock.wall_ms())[:19].replace(':', '')}")
    typer.echo(f"archived: {archived}")
    if stays:
        typer.echo(stays)
