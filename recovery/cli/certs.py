"""`recovery certs`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from recovery import clock
from recovery.cli.formats import Format, print_line, show_rows
from recovery.cli.options import AsJson, Rows, chosen
from recovery.errors import UsageError
from recovery.report import tables
from recovery.tls import issue, issued_certificates


class Action(str, Enum):
    """What to do."""

    INIT = "init"
    REVOKE = "revoke"
    SHOW = "show"


def certs(  # noqa: PLR0913, PLR0917 - the options of a command
    action: Annotated[Action, typer.Argument(help="init: make an authority; revoke: take back; show: list")],
    directory: Annotated[Path, typer.Argument(help="of the authority and its files", metavar="DIR")],
    name: Annotated[
        str | None, typer.Argument(help="revoke: whose certificates, as show names them", metavar="[NAME]")
    ] = None,
    nodes: Annotated[
        str, typer.Option(help="init: node ids that get a certificate of their own, separated by commas")
    ] = "",
    hosts: Annotated[
        str, typer.Option(help="init: addresses and names of the scheduler's host, separated by commas")
    ] = "127.0.0.1,localhost",
    days: Annotated[int, typer.Option(help="init: how long certificates are valid", min=1, max=3_650)] = 365,
    form: Rows = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Make the certificates of a small cluster, take one back, list them."""
    if (action is Action.REVOKE) != (name is not None):
        raise UsageError(
            field="NAME",
            reason="is needed by revoke, and by nothing else",
            next_step="Type, for example: recovery certs revoke DIR worker_0.",
        )
    if action is Action.INIT:
        _init(directory, nodes, hosts, days)
    elif name is not None:
        taken = issue.Authority(directory, clock.utc_now()).revoke(name)
        print_line(f"{len(taken)} certificates of {name} taken back; {directory / issue.LIST} says so")
    else:
        rows = tables.CERTIFICATES.rows(issued_certificates.list_of(directory, clock.utc_now()))
        show_rows(tables.CERTIFICATES, rows, chosen(form, as_json=as_json))


def _init(directory: Path, nodes: str, hosts: str, days: int) -> None:
    issue.create(directory, nodes=_parts(nodes), hosts=_parts(hosts), days=days, now=clock.utc_now())
    print_line(f"{directory / issue.CONFIG} names server.p12, client.p12 and {issue.CA}")
    print_line(
        f"{directory / issue.PASSWORD} opens them; {issue.CA_KEY} and {issue.ISSUED}/ go to no other host"
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
