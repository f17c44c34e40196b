"""`recovery drain`."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from recovery.cli.options import RecoveryPath
from recovery.cli.source import Address, own_access, scheduler_here
from recovery.core.scheduler.barrier import BarrierState
from recovery.errors import ProcessError, UsageError
from recovery.report import stored as stored_state
from recovery.transport import inspection_client

_POLL_S = 0.1
_AGAIN = "Look at `recovery status`, and ask again."

_WAITS_FOR = {
    BarrierState.ASKING: "every rank to say where it is",
    BarrierState.AGREEING: "all ranks to agree on a step",
    BarrierState.SAVING: "all ranks to reach and save step {step}",
    BarrierState.HANDING_OVER: "a standby to take over at step {step}",
}

Target = Annotated[
    str,
    typer.Argument(help="node id, or the address of a host whose ranks all go", metavar="NODE|HOST"),
]


def drain(path: RecoveryPath, target: Target) -> None:
    """Ask the scheduler, which runs on this host and listens to nobody else about this, and wait until a standby has the rank.

    The process that gives its rank away ends with exit code 143, as SIGTERM would end it.
    """
    address, access = _scheduler_of(path), own_access(path)
    failed = partial(ProcessError, "NOT_HANDED_OVER", target=target, next_step=_AGAIN)

    def ask(post: Any = None) -> dict[str, Any]:
        asking = inspection_client.ask(*address, "/drain", post=post, access=access)
        try:
            answer: dict[str, Any] = asyncio.run(asking)
        except inspection_client.NoAnswerError as error:
            raise failed(reason=f"the scheduler does not answer ({error})") from error
        return answer

    found = ask(post={"target": target})
    if "refused" in found:
        if found["unknown"]:
            raise UsageError(field=target, reason=found["refused"], next_step="`recovery nodes` lists them.")
        raise failed(reason=found["refused"])
    number, shown = found["number"], ""
    typer.echo(f"{', '.join(found['nodes'])} to be handed over")
    pause = threading.Event()
    while (found["number"], found["state"]) != (number, BarrierState.ENDED.value):
        if found["number"] != number:
            raise failed(reason="another drain has begun since")
        waits = _WAITS_FOR[BarrierState(found["state"])].format(**found)
        if waits != shown:
            typer.echo(f"waiting for {waits}")
        shown = waits
        pause.wait(_POLL_S)
        found = ask()
    if not found["handed_over"]:
        raise failed(reason=found["reason"])
    typer.echo(f"{', '.join(found['nodes'])}: {found['reason']}")


def _scheduler_of(path: Path) -> Address:
    """Where the scheduler of this path listens.

    Raises:
        UsageError: none runs on this host, or it belongs to another user.
        StoreError, RecoveryPathError: there is no job.
    """
    stored_state.read_stored(path)
    found = scheduler_here(path)
    if found is None:
        raise UsageError(
            field=str(path),
            reason="no scheduler of this job runs on this host that this user may ask",
            next_step="Run the command on the scheduler's host, as its user; `recovery status` shows whether it runs.",
        )
    return found
