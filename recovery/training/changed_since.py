"""What a program has built otherwise than the one that saved is said in the same words, and overridden in the same way, whatever the framework."""

from __future__ import annotations

import functools
import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from recovery.errors import UsageError

Override = Mapping[str, Sequence[str]]
"""By part, the names of what is to be as the program builds it now: `{"optimizer": ["lr"]}`."""


def say_kept(logger: logging.Logger, where: str, was: str, now: str, *, name: tuple[str, str]) -> None:
    """The checkpoint's is gone on with; `name` is the part and the name by which an override takes that of now."""
    logger.warning(
        'event=changed_since_checkpoint %s was built as %s and is %s now: the checkpoint\'s is gone on with; override={"%s": ["%s"]} takes '
        "that of now",
        where,
        was,
        now,
        *name,
    )


def say_taken(logger: logging.Logger, where: str, was: str, now: str) -> None:
    """An override has asked for that of now."""
    logger.info(
        "event=overridden %s was built as %s and is %s now, as it is asked for",
        where,
        was,
        now,
    )


def say_gone_on_with(logger: logging.Logger, where: str, was: str, now: str) -> None:
    """No checkpoint has it, so that of now is gone on with."""
    logger.warning(
        "event=changed_since_checkpoint %s was %s and is %s now, which is gone on with", where, was, now
    )


def refused(reason: str, *, example: str) -> UsageError:
    """The error of an override that names what there is not."""
    return UsageError(
        field="override",
        reason=reason,
        next_step=f'Name what is to be as the program builds it now: override={{"optimizer": ["{example}"]}}.',
    )


@functools.cache
def script() -> dict[str, str]:
    """For a manifest: a digest of the script that this process runs, as it is when this is asked first; empty: there is no such file."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        content = Path(path).read_bytes() if path else b""
    except OSError:
        content = b""
    return {"script": hashlib.sha256(content).hexdigest()[:12]} if content else {}
