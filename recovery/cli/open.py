"""`recovery open`."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from recovery import clock, job_line
from recovery.cli.formats import print_line
from recovery.cli.options import Connect, MaybePath
from recovery.cli.source import Address, ask, scheduler_here, source_of
from recovery.cli.status_screen import failed_work, hang_text, slow_text, status_of_scheduler
from recovery.core.converter import UNREADABLE
from recovery.errors import RecoveryError, UsageError
from recovery.page.feed import Feed, Topic
from recovery.page.page_server import HOST, PageServer
from recovery.report.metrics import is_over
from recovery.report.page_history import history_of_path
from recovery.report.plan import plan
from recovery.report.plan_text import lines_of
from recovery.report.rank_progress import stored_newest_step
from recovery.report.status import status
from recovery.report.stored import read_stored

_NOW_S, _HISTORY_S = 1.0, 2.0


def open(  # noqa: A001 - the name of the command
    path: MaybePath = None,
    connect: Connect = None,
    port: Annotated[
        int, typer.Option(help="to listen on, of 127.0.0.1; 0: any free one", min=0, max=65535)
    ] = 0,
) -> None:
    """Serve the job's page on this host until Ctrl+C, and print the link that opens it. It shows a job that runs, and one that does not."""
    source = source_of(path, connect)
    job: _Files | _Scheduler = _Files(source) if isinstance(source, Path) else _Scheduler(source)
    # What cannot be looked at at all ends the command here.
    job.now()
    asyncio.run(_serve(job, port))


async def _serve(job: _Files | _Scheduler, port: int) -> None:
    key = secrets.token_urlsafe(24)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    feed = Feed(Topic("now", job.now, _NOW_S), Topic("history", job.history, _HISTORY_S))
    server = PageServer(feed, job.plan, key)
    try:
        bound = await server.start(port)
    except OSError as error:
        raise UsageError(
            field="--port",
            reason=f"{port} cannot be listened on ({error})",
            next_step="Give another one, or leave it out.",
        ) from error
    print_line(f"http://{HOST}:{bound}/#{key}")
    print_line(f"for browsers of this host; elsewhere: ssh -L {bound}:{HOST}:{bound} HOST. Ctrl+C ends it.")
    # Whoever reads it from a pipe waits for it.
    sys.stdout.flush()
    await ended.wait()
    await server.stop()


class _Files(NamedTuple):
    """What the page shows of a recovery path. Each is called in a thread."""

    path: Path

    def now(self) -> dict[str, Any]:
        """The status: as the scheduler knows it, where one runs on this host, else by the files."""
        address, unreadable = scheduler_here(self.path), list[str]()
        if address is not None:
            try:
                return _shown({**status_of_scheduler(address, self.path), "path": str(self.path)})
            except (RecoveryError, *UNREADABLE) as error:
                # It may be on its way out, or of another release.
                unreadable.append(f"the scheduler ({error}), so this is what the files say")
        found = status(read_stored(self.path))
        return _shown({**found, "unreadable": [*found["unreadable"], *unreadable]})

    def history(self) -> dict[str, Any]:
        """What has happened."""
        return history_of_path(self.path, clock.wall_ms())

    def plan(self) -> list[str]:
        """What a restart would do, in sentences."""
        stored = read_stored(self.path)
        lines = lines_of(plan(stored), run=stored.job.run, newest_step=lambda: stored_newest_step(stored))
        return [f"{line.text}{line.marked}".strip() for line in lines]


class _Scheduler(NamedTuple):
    """The same of a scheduler that runs on another host, as it tells it."""

    address: Address

    def now(self) -> dict[str, Any]:
        """The status."""
        return _shown(status_of_scheduler(self.address))

    def history(self) -> Any:
        """What has happened."""
        return ask(self.address, "/history")

    def plan(self) -> list[str]:
        """Its files are not here."""
        return ["the checkpoints are on the job's hosts: `recovery plan PATH` says it on the scheduler's"]


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """The status, and what of it needs a look, in the words of the terminal."""
    hang, leaving = hang_text(found), job_line.leaving_of(found)
    alerts = [hang, slow_text(found), f"asked to leave: {leaving}" if leaving else "", failed_work(found)]
    return {**found, "is_over": is_over(found["state"]), "alerts": [text for text in alerts if text]}
