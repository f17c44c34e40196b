"""What a framework's integration adds to the run loop. `import recovery.torch` registers its own; the loop calls whatever is here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from recovery.training import current
from recovery.training.live import KeptObjects
from recovery.training.session import Session

_PLAN_SOON_S = 2.0
"""A process that takes a lost rank at once has its plan within that."""


class WarmUp(NamedTuple):
    """What a fresh process pays before its first step, to be paid while it waits."""

    run: Callable[[], None]
    """Called once, before the first plan."""
    imports: tuple[str, ...]
    """Modules that it imports: most of what it pays."""


warm_ups: list[WarmUp] = []

entry_states: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
"""(capture, restore) of random generators and global settings: as they stand at the first entry of what trains, so they stand at every entry."""

kept_objects: list[KeptObjects] = []
"""What is done with what `session.keep` holds, where a world ends and where the next is formed."""

collective_errors: list[Callable[[BaseException], bool]] = []
"""Is this exception the data plane breaking under us, rather than the user's own code?"""

joined: list[Callable[[int | None], None]] = []
"""Called in the connection's thread when this process is admitted: with its rank if an earlier incarnation had one. Returns at once."""


entries: list[Callable[[Session], None]] = []
"""What an integration does where an entry begins, before the code of the user: joining the world, say."""


def on_entry(hook: Callable[[Session], None]) -> None:
    """Have it called at each entry; at once too where one is under way: an integration may be imported inside the training function.

    Args:
        hook: gets the entry's session. What it raises is as if the user's own code had raised it.
    """
    entries.append(hook)
    if (session := current.current_session()) is not None:
        hook(session)


def enter(session: Session) -> None:
    """Call what integrations do where an entry begins."""
    for hook in entries:
        hook(session)


def warm_up(others: Sequence[Callable[[], object]], is_planned: Callable[[float], bool]) -> None:
    """Warm up. What a fork has imported already is left out where the plan comes at once: it would cost more than it saves.

    Args:
        others: called besides.
        is_planned: waits for the first plan, so many seconds at most, and says whether there is one.
    """
    imported = [hook for hook in warm_ups if sys.modules.keys() >= set(hook.imports)]
    for hook in warm_ups:
        if hook not in imported:
            hook.run()
    for call in others:
        call()
    if imported and not is_planned(_PLAN_SOON_S):
        for hook in imported:
            hook.run()


def run_joined(rank: int | None) -> None:
    """Run the hooks of a process that was admitted."""
    for hook in joined:
        hook(rank)


def is_collective_error(error: BaseException) -> bool:
    """Does any integration know this exception as the data plane's?"""
    return any(is_known_by_integration(error) for is_known_by_integration in collective_errors)


def register(
    *,
    warm_up: WarmUp | None,
    entry_states_of_it: Sequence[tuple[Callable[[], Any], Callable[[Any], None]]],
    collective_error: Callable[[BaseException], bool],
    kept_objects_of_it: KeptObjects | None,
) -> None:
    """Add one integration. Called once, when its package is imported.

    Args:
        warm_up: see `WarmUp`; None: there is nothing to pay ahead.
        entry_states_of_it: see `entry_states`.
        collective_error: see `collective_errors`.
        kept_objects_of_it: see `kept_objects`; None: nothing of it can be kept.
    """
    if warm_up is not None:
        warm_ups.append(warm_up)
    entry_states.extend(entry_states_of_it)
    collective_errors.append(collective_error)
    if kept_objects_of_it is not None:
        kept_objects.append(kept_objects_of_it)
