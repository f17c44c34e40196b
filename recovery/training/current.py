"""The session of the entry that this process is in, for code that is handed none: a process is in one generation at a time."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
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


def call(function: Callable[..., Any], session: Session, /, *arguments: Any, **named: Any) -> Any:
    """Call a training function, which takes the session or not.

    Args:
        function: of the user. It takes the session at the parameter that is called `session` or is annotated as one; where there is none,
            at its first one if the arguments leave that open: `argv=None` is the script's own.
        session: of this entry.
        arguments: further ones, passed through.
        named: likewise, by name.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        # A callable of C says nothing of what it takes.
        return function(session, *arguments, **named)
    parameters = list(signature.parameters.values())
    names = getattr(inspect.unwrap(function), "__globals__", {})
    at = next((place for place, one in enumerate(parameters) if _is_session(one, names)), None)
    if at is not None and parameters[at].name in named:
        at = None
    elif at is None and parameters and _is_left_open(signature, arguments, named):
        at = 0
    if at is None:
        return function(*arguments, **named)
    if parameters[at].kind is inspect.Parameter.KEYWORD_ONLY or at > len(arguments):
        return function(*arguments, **named, **{parameters[at].name: session})
    return function(*arguments[:at], session, *arguments[at:], **named)


def _is_session(one: inspect.Parameter, names: Mapping[str, object]) -> bool:
    """Does it say so? Other packages have a class of that name too: requests, SQLAlchemy."""
    if one.name == "session":
        return True
    if one.kind in _MANY or one.annotation is one.empty:
        return False
    if isinstance(one.annotation, type):
        return one.annotation is Session
    # A name in quotes, one of several types.
    return any(_names_session(found, names) for found in _A_SESSION.findall(str(one.annotation)))


def _names_session(dotted: str, names: Mapping[str, object]) -> bool:
    """Does a name mean our class where the function stands? One that only a type checker sees does."""
    first, *others = dotted.split(".")
    if first not in names:
        return first in {"recovery", "Session"}
    meant = names[first]
    for other in others:
        meant = getattr(meant, other, None)
    return meant is Session


_A_SESSION = re.compile(r"[\w.]*\bSession\b(?![\w.])")
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_left_open(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Is the first parameter one that the arguments do not fill?"""
    first = next(iter(signature.parameters.values()))
    if first.kind is first.VAR_POSITIONAL:
        return not arguments
    if first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD) or first.default is not first.empty:
        return False
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return True
    return False
