"""What runs on a node of Ray's: an actor that is the parent of one launcher."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ray

from recovery.launch.children import tied
from recovery.owner_files import write_over
from recovery.transport.local_address import free_port


class Place(NamedTuple):
    """Where an actor is."""

    node: str
    """Ray's id of the node."""
    address: str
    """Of the node, for the others."""
    free_port: int


class HostAgent:
    """One launcher. Its methods are called by several threads at once: one waits in `run`."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._launcher: subprocess.Popen[bytes] | None = None
        self._notice = Path(tempfile.mkdtemp(prefix="recovery-ray-")) / "notice"

    def where(self) -> Place:
        """Look where this is."""
        address = ray.util.get_node_ip_address()
        return Place(ray.get_runtime_context().get_node_id(), address, free_port(address))

    def run(self, words: Sequence[str], variables: Mapping[str, str], directory: str) -> int:
        """Run a launcher to its end. Gives its exit code. It ends with this actor, however that ends."""
        environment = {**os.environ, **variables, "MS_NOTICE_FILE": str(self._notice)}  # noqa: TID251 - handed on
        command = tied((sys.executable, "-m", "recovery", "run", *words))
        here = directory if os.path.isdir(directory) else None  # noqa: PTH112 - a path of another machine
        self._launcher = subprocess.Popen(command, cwd=here, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603 - our own
        code = self._launcher.wait()
        return 128 - code if code < 0 else code

    def note_departure(self, within_s: float) -> None:
        """This node is to be taken away: its ranks save a step, and leave."""
        write_over(self._notice, f"{max(0.0, within_s):.1f}".encode())

    def stop(self) -> None:
        """Ask the launcher to end, as Ctrl+C does."""
        with contextlib.suppress(ProcessLookupError):
            if self._launcher is not None:
                self._launcher.terminate()
