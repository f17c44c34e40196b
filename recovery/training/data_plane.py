"""What a session offers to code that forms a world of its ranks and must be freed from it."""

from __future__ import annotations

from collections.abc import Callable

from recovery.core.messages import Rollback
from recovery.core.worker import stimuli as s
from recovery.worker.service import WorkerService


class DataPlane:
    """Of one entry of the training function."""

    def __init__(self, service: WorkerService, plan: Rollback) -> None:
        """Made with the session that it is."""
        self._service, self._plan = service, plan
        self.generation = int(plan.generation)

    @property
    def host(self) -> str:
        """This process's own address, as its peers reach it."""
        return self._service.host

    @property
    def control_inode(self) -> int | None:
        """Inode of the connection to the scheduler: code that closes a world's sockets leaves this one alone."""
        return self._service.control_inode

    @property
    def interrupted(self) -> bool:
        """Is the generation over?"""
        return self._service.training_control.is_interrupted(self.generation)

    def publish_rendezvous(self, address: str) -> None:
        """Rank 0: publish where this generation's world is formed, once something listens there.

        Args:
            address: host:port, or whatever the integration on the other ranks reads.
        """
        self._service.post(s.RendezvousOpened(self._plan.generation, address))

    def await_rendezvous(self) -> str:
        """Other ranks: wait for rank 0's address, as it was published.

        Raises:
            GenerationInterrupted: the generation ended first.
        """
        return self._service.training_control.await_rendezvous(self.generation)

    def on_interrupt(self, wake: Callable[[], None]) -> None:
        """Have `wake` called from another thread when the generation ends: it must free a main thread that sits in a collective."""
        self._service.training_control.on_interrupt(wake)

    def replace_process(self, reason: str) -> None:
        """Start this process's command line again, as the same incarnation: for a framework that cannot leave a world otherwise.

        From any thread; it returns only where the process must end instead.
        """
        if self._service.training_control.verdict_if_any() is None:
            self._service.replace_process(reason)
