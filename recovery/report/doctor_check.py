"""What one look of the doctor has found, and a look that stands by itself: whatever it raises, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from typing_extensions import ParamSpec

from recovery.errors import RecoveryError

_Arguments = ParamSpec("_Arguments")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What one look has found."""

    name: str
    ok: bool
    found: str
    next_step: str = ""
    """What to do; empty when all is well."""


def check(name: str, found: str, next_step: str = "") -> Check:
    """What there is something to do about is not as it should be."""
    return Check(name=name, ok=not next_step, found=found, next_step=next_step)


def standing(
    name: str,
    look: Callable[_Arguments, Check | Iterable[Check]],
    *arguments: _Arguments.args,
    **named: _Arguments.kwargs,
) -> Iterator[Check]:
    """Give what a look finds; where it fails, that and why in its place.

    Args:
        name: of the check, where it fails.
        look: finds one thing, or several.
        arguments: of `look`.
        named: of `look`.
    """
    try:
        found = look(*arguments, **named)
        yield from (found,) if isinstance(found, Check) else found
    except Exception as error:  # noqa: BLE001 - drivers, tools and file systems raise anything; a doctor that ends there says nothing of the rest
        why = (
            str(error) if isinstance(error, (RecoveryError, OSError)) else f"{type(error).__name__}: {error}"
        )
        yield check(
            name, f"cannot be looked at: {why}", "Correct what the reason names; the job would meet it, too."
        )
