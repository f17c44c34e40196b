"""What this package needs of a session, so that it can be tested with a small one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class SessionInterface(Protocol):
    """The part of `recovery.Session` that a world and a loader use."""

    @property
    def rank(self) -> int:
        """Position in the world, 0..world_size-1."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def local_rank(self) -> int:
        """Position among the ranks of its host, 0..local_world_size-1."""
        ...

    @property
    def local_world_size(self) -> int:
        """Number of ranks on its host."""
        ...

    @property
    def generation(self) -> int:
        """Number of this entry of the training function, 1-based."""
        ...

    @property
    def host(self) -> str:
        """This process's own address, as its peers reach it."""
        ...

    @property
    def control_inode(self) -> int | None:
        """Inode of the connection to the scheduler, which is never closed with a world."""
        ...

    @property
    def plan_is_live(self) -> bool:
        """Will the state come from a rank's memory, once it is built? Until it has, DistributedDataParallel may overwrite nobody's."""
        ...

    def publish_rendezvous(self, address: str) -> None:
        """Rank 0: publish `host:port` to the others, once something listens there."""
        ...

    def await_rendezvous(self) -> str:
        """Other ranks: wait for that address.

        Raises:
            GenerationInterrupted: the generation ended first.
        """
        ...

    def on_interrupt(self, wake: Callable[[], None]) -> None:
        """Have `wake` called from another thread when the generation ends; it returns in milliseconds."""
        ...

    def on_generation_end(self, close: Callable[[], None]) -> None:
        """Have `close` called in the main thread after the training function was left, whichever way."""
        ...

    def check(self) -> None:
        """See whether the generation goes on.

        Raises:
            GenerationInterrupted: it is over.
        """
        ...
