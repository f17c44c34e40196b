"""The same program, forked from a template and spawned."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recovery.launch.children import tied
from recovery.launch.forkserver.fork_messages import Prepare, Prepared
from recovery.launch.forkserver.template import Template
from tests.pace import HANG_S

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
"""Of linux/prctl.h."""


@contextmanager
def ready_template(
    prepare: Prepare, environment: Mapping[str, str] = os.environ, options: tuple[str, ...] = ()
) -> Iterator[Template]:
    """A template whose imports are done."""
    with orphans_left_alone(), Template(prepare, environment=environment, options=options) as made:
        ready = made.await_ready()
        assert isinstance(ready, Prepared), ready
        # A fork of a starved template took 5 s; its own limit is 8.
        made._link.settimeout(HANG_S)
        yield made


@contextmanager
def orphans_left_alone() -> Iterator[None]:
    """Afterwards this process takes in orphans as it did before: other tests look for processes that are gone, not for its zombies."""
    before = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, before)


def forked(
    template: Template,
    directory: Path,
    *words: str,
    environment: Mapping[str, str] = os.environ,
    conditions: Mapping[str, Any] | None = None,
) -> tuple[int, str]:
    """Status and output of a forked process."""
    log = directory / "forked.log"
    with log.open("wb") as stream:
        pid = template.begin(
            [sys.executable, *template.options, *words],
            environment=environment,
            log=stream.fileno(),
            conditions={"directory": str(directory), **(conditions or {})},
        )
    assert isinstance(pid, int), pid
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), _output(log)


def spawned(
    directory: Path,
    *words: str,
    environment: Mapping[str, str] = os.environ,
    options: tuple[str, ...] = (),
) -> tuple[int, str]:
    """Status and output of a spawned process, begun as the launcher does."""
    log = directory / "spawned.log"
    with log.open("wb") as stream:
        status = subprocess.call(
            tied([sys.executable, *options, *words]),
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    return status, _output(log)


def _output(log: Path) -> str:
    """What was printed; addresses of objects are left out."""
    return re.sub(r"0x[0-9a-f]+", "0x", log.read_text())
