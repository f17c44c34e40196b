"""exec in place: the last resort when the main thread does not come back. Keeps pid, rank and incarnation."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from recovery.core.ids import ResumeToken
from recovery.worker.descriptors import close_all_but_standard

TOKEN_VARIABLE = "MS_RESUME_TOKEN"  # noqa: S105 - the name of a variable
"""Carries the resume token over the exec. Taken out of the environment at start, so that no child sees it."""

_START_DIRECTORY = Path.cwd()
"""Where the command line was typed, as long as nobody left it before importing us: relative names in it mean this directory."""

_START_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - handed on, not read
"""What the process was started with: what the program or a framework has set since is set again by the same lines."""

_endings: list[Callable[[], None]] = []


def end_before_exec(end: Callable[[], None]) -> None:
    """Register what must be ended before another program takes this process over: a child that the next one would not know."""
    _endings.append(end)


def replace_process(token: ResumeToken) -> NoReturn:
    """Start the same program in this process, from whichever thread this is.

    Children of `multiprocessing`, and what `end_before_exec` knows, are ended first. The program is `sys.orig_argv`, so `python train.py`, `python -m pytest train.py` and `pytest train.py` all come back as
    they were started, in the directory they were started in.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for end in _endings:
        end()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.chdir(_START_DIRECTORY)
    close_all_but_standard()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    environment = {**_START_ENVIRONMENT, TOKEN_VARIABLE: token}
    os.execve(sys.executable, arguments, environment)  # noqa: S606 - no shell: the process replaces itself


def take_token() -> ResumeToken | None:
    """The token that the program before the exec left, taken out of the environment."""
    token = os.environ.pop(TOKEN_VARIABLE, None)  # noqa: TID251 - see TOKEN_VARIABLE
    return ResumeToken(token) if token else None
