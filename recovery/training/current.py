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
        function: of the user.
        session: of this entry.
    """
    try:
        takes_session = bool(inspect.signature(function).parameters)
    except ValueError:
        # A callable of C says nothing of what it takes.
        takes_session = True
    return function(session) if takes_session else function()
