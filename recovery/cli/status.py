"""`recovery status`."""

from __future__ import annotations

from recovery.cli.formats import console, print_json
from recovery.cli.options import AsJson, Connect, MaybePath
from recovery.cli.source import source_of
from recovery.cli.status_screen import screen, status_of


def status(path: MaybePath = None, connect: Connect = None, as_json: AsJson = False) -> None:
    """One screen, from the files or from a running scheduler."""
    found = status_of(source_of(path, connect))
    if as_json:
        print_json(found)
    else:
        console.print(screen(found))
