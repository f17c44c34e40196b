"""`recovery reset`."""

from __future__ import annotations

import typer

from recovery import clock
from recovery.cli.options import RecoveryPath, Yes, confirm
from recovery.store.archive import RESET, archive_stores


def reset(path: RecoveryPath, yes: Yes = False) -> None:
    """Archive the job's state, so that the next start is a new job. Nothing is deleted. Refused while a process has a store open."""
    confirm(f"Archive all state of the job in {path}? Training then starts at step 0.", yes=yes)
    archived = archive_stores(path, f"{RESET}{clock.instant(clock.wall_ms())[:19].replace(':', '')}")
    typer.echo(f"archived: {archived}")
