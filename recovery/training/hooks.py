"""What a framework's integration adds to the run loop. `import recovery.torch` registers its own; the loop calls whatever is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

warm_ups: list[Callable[[], None]] = []
"""Called once, before the first plan, while this process waits anyway: everything that a fresh process pays before its first step."""

random_states: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
"""(capture, restore) of random generators: as they stand at the first entry of the training function, so they stand at every entry."""

collective_errors: list[Callable[[BaseException], bool]] = []
"""Is this exception the data plane breaking under us, rather than the user's own code?"""

joined: list[Callable[[int | None], None]] = []
"""Called in the connection's thread when this process is admitted: with its rank if an earlier incarnation had one. Returns at once."""


def run_joined(rank: int | None) -> None:
    """Run the hooks of a process that was admitted."""
    for hook in joined:
        hook(rank)


def is_collective_error(error: BaseException) -> bool:
    """Does any integration know this exception as the data plane's?"""
    return any(is_known_by_integration(error) for is_known_by_integration in collective_errors)


def register(
    *,
    warm_up: Callable[[], None],
    random_state: tuple[Callable[[], Any], Callable[[Any], None]],
    collective_error: Callable[[BaseException], bool],
) -> None:
    """Add one integration. Called once, when its package is imported.

    Args:
        warm_up: see `warm_ups`.
        random_state: see `random_states`.
        collective_error: see `collective_errors`.
    """
    warm_ups.append(warm_up)
    random_states.append(random_state)
    collective_errors.append(collective_error)
