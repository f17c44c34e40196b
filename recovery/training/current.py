"""The session of the entry that this process is in, for code that is handed none: a process is in one generation at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from recovery.training.session import Session

_session: Session | None = None


def current_session() -> Session | None:
    """The session of this entry; None outside a training function, and in a script before `init()`."""
    return _session


def enter(session: Session | None) -> None:
    """Note whose entry begins; None: it is over."""
    global _session  # noqa: PLW0603 - see above
    _session = session


def call(function: Callable[..., Any], session: Session) -> Any:
    """Call a training function, which takes the session or nothing.

    Args:
        function: of the user. It takes the session where its first parameter has no default, is called `session` or is annotated as one: another one
            is the script's own, as `argv=None`.
        session: of this entry.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        # A callable of C says nothing of what it takes.
        return function(session)
    first = parameters[0] if parameters else None
    if first is None or not _takes_session(first):
        return function()
    return function(session=session) if first.kind is first.KEYWORD_ONLY else function(session)


def _takes_session(first: inspect.Parameter) -> bool:
    if first.kind in (first.VAR_KEYWORD, first.KEYWORD_ONLY):
        return first.name == "session"
    annotation = getattr(first.annotation, "__name__", str(first.annotation))
    return first.default is first.empty or first.name == "session" or "Session" in annotation
