"""What runs on a node of Ray's: an actor that is the parent of one launcher."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ray

from recovery import launch

_PRE_EXEC = str(Path(launch.__file__).with_name("pre_exec.py"))
"""Ties a process to its parent; see there."""


class Place(NamedTuple):
    """Where an actor is."""

    node: str
    """Ray's id of the node."""
    address: str
    """Of the node, for the others."""
    free_port: int
    directory: str
    """That the driver's is called by here, or the actor's own where there is none of that name."""


class HostAgent:
    """One launcher. Its methods are called by several threads at once: one waits in `run`."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._launcher: subprocess.Popen[bytes] | None = None
        self._notice = Path(tempfile.mkdtemp(prefix="recovery-ray-")) / "notice"

    def where(self, directory: str) -> Place:
        """Look where this is."""
        with socket.socket() as free:
            free.bind(("", 0))
            port = int(free.getsockname()[1])
        here = directory if os.path.isdir(directory) else os.getcwd()  # noqa: PTH109, PTH112 - a path of another machine
        return Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port, here)

    def run(self, words: Sequence[str], variables: Mapping[str, str], directory: str) -> int:
        """Run a launcher to its end. Gives its exit code. It ends with this actor, however that ends."""
        environment = {**os.environ, **variables, "MS_NOTICE_FILE": str(self._notice)}  # noqa: TID251 - handed on
        # Under the conditions of the actor.
        tie = (sys.executable, "-I", "-S", _PRE_EXEC, str(os.getpid()), "{}")
        command = [*tie, sys.executable, "-m", "recovery", "run", *words]
        here = directory if os.path.isdir(directory) else None  # noqa: PTH112 - as above
        self._launcher = subprocess.Popen(command, cwd=here, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603 - our own
        code = self._launcher.wait()
        return 128 - code if code < 0 else code

    def note_departure(self, within_s: float) -> None:
        """This node is to be taken away: its ranks save a step, and leave."""
        draft = self._notice.with_suffix(".draft")
        draft.write_text(f"{max(0.0, within_s):.1f}")
        draft.replace(self._notice)

    def stop(self) -> None:
        """Ask the launcher to end, as Ctrl+C does."""
        with contextlib.suppress(ProcessLookupError):
            if self._launcher is not None:
                self._launcher.terminate()
