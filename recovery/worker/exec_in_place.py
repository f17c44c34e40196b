"""exec in place: the last resort when the main thread does not come back. Keeps pid, rank and incarnation."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from recovery.core.ids import ResumeToken
from recovery.core.worker.stimuli import Hangs
from recovery.errors import ProcessNotReplacedError
from recovery.worker.descriptors import close_all_at_exec

_logger = logging.getLogger("recovery.worker")

TOKEN_VARIABLE = "MS_RESUME_TOKEN"  # noqa: S105 - the name of a variable
"""Carries the resume token over the exec. Taken out of the environment at start, so that no child sees it."""

HANGS_VARIABLE = "MS_RESUME_HANGS"
"""`COUNT:STEP`, beside the token: see `Hangs`."""

_START_DIRECTORY = Path.cwd()
"""Where the command line was typed, as long as nobody left it before importing us: relative names in it mean this directory."""

_START_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - handed on, not read
"""What the process was started with: what the program or a framework has set since is set again by the same lines."""

_endings: list[Callable[[], None]] = []


def end_before_exec(end: Callable[[], None]) -> None:
    """Register what must be ended before another program takes this process over: a child that the next one would not know."""
    _endings.append(end)


def replace_process(token: ResumeToken, hangs: Hangs) -> NoReturn:
    """Start the same program in this process, from whichever thread this is.

    Children of `multiprocessing`, and what `end_before_exec` knows, are ended first. The program is `sys.orig_argv`, so `python train.py`, `python -m pytest train.py` and `pytest train.py` all come back as
    they were started, in the directory they were started in. Where that fails the process ends: its main thread would hang on with its rank.

    Args:
        token: makes the next program the same incarnation.
        hangs: how often in a row it was replaced because it hung.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for end in _endings:
        end()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    environment = {**_START_ENVIRONMENT, TOKEN_VARIABLE: token, HANGS_VARIABLE: f"{hangs.count}:{hangs.step}"}
    try:
        os.chdir(_START_DIRECTORY)
        close_all_at_exec()
        os.execve(sys.executable, arguments, environment)  # noqa: S606 - no shell: the process replaces itself
    except OSError as failure:
        error = ProcessNotReplacedError(path=failure.filename or sys.executable, reason=failure.strerror)
        _logger.error("event=exit code=%d %s", error.exit_code, error)  # noqa: TRY400 - one clear line, as every end has
        os._exit(error.exit_code)


def take_token() -> ResumeToken | None:
    """The token that the program before the exec left, taken out of the environment."""
    token = os.environ.pop(TOKEN_VARIABLE, None)  # noqa: TID251 - see TOKEN_VARIABLE
    return ResumeToken(token) if token else None


def take_hangs() -> Hangs:
    """What the program before the exec counted, taken out of the environment; nothing where nobody did."""
    told = os.environ.pop(HANGS_VARIABLE, "")  # noqa: TID251 - see TOKEN_VARIABLE
    count, _, step = told.partition(":")
    return Hangs(int(count), int(step)) if count.isdecimal() and step.isdecimal() else Hangs()
