"""Which processes have ended, and who comes to know: the scheduler of those of its own host, launchers of theirs. And wrong words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.ids import NodeId, ResumeToken
from recovery.core.scheduler.effects import EndWatch, WatchProcess
from recovery.core.scheduler.stimuli import MessageReceived, ProcessGone
from tests.simulation.slots import SCHEDULER_HOST

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.scheduler import SchedulerProcess
    from tests.simulation.world import World


class Proofs:
    """What the kernels of all hosts know."""

    def __init__(self, world: World) -> None:
        """Nothing has ended yet."""
        self.world, self.clock = world, world.clock
        self._starts = 0
        self._ended: set[m.ProcessIdentity] = set()
        """A start on another boot or in another container is of another process, which never was."""
        self._watched: dict[tuple[int, str], WatchProcess] = {}
        """By scheduler process and node."""

    def started(self, host: str) -> tuple[int, m.ProcessIdentity | None]:
        """A process begins. Its number is soon used again."""
        if not self.world.shape.spares.identities:
            return 1, None
        self._starts += 2
        pid = self.clock.draw("proofs").randint(1, 3)
        return pid, m.ProcessIdentity(boot_id=host, pid_namespace=1, start_ticks=self._starts)

    def has_ended(self, identity: m.ProcessIdentity | None) -> bool:
        """Is it dead?"""
        return identity in self._ended

    def ended(self, process: Process) -> None:
        """A process has ended."""
        identity = process.identity.process
        if identity is None:
            return
        self._ended.add(identity)
        for (number, name), watched in list(self._watched.items()):
            if watched.process == identity:
                del self._watched[number, name]
                self._tell(number, watched)
        if self.clock.draw("proofs").random() < self.world.shape.spares.exits_seen:
            self.clock.soon("proofs", 1, 2_000, partial(self.report, process, identity))

    def watch(self, scheduler: SchedulerProcess, watched: WatchProcess) -> None:
        """The scheduler asks to be told of an end."""
        if watched.process.boot_id != SCHEDULER_HOST:
            return
        if self.has_ended(watched.process):
            self._tell(scheduler.number, watched)
        else:
            self._watched[scheduler.number, watched.node_id] = watched

    def end_watch(self, scheduler: SchedulerProcess, ended: EndWatch) -> None:
        """It does not ask any more. What is on its way to it comes all the same."""
        self._watched.pop((scheduler.number, ended.node_id), None)

    def _tell(self, number: int, watched: WatchProcess) -> None:
        # Sometimes its loop is busy, and the grace period is over first.
        longest = 20 if self.clock.draw("proofs").random() < 0.8 else 5_000
        self.clock.soon("proofs", 0, longest, partial(self._told, number, watched))

    def _told(self, number: int, watched: WatchProcess) -> None:
        scheduler = self.world.scheduler
        if scheduler is not None and scheduler.number == number:
            self.clock.say(
                f"process of {watched.node_id} incarnation {watched.incarnation} is known to be dead"
            )
            self.clock.seen["a process was known to be dead"] += 1
            node = scheduler.machine.state.nodes[watched.node_id]
            late = node.record.incarnation != watched.incarnation or node.connection is not None
            self.clock.seen["a proof came too late to matter"] += late
            scheduler.handle(ProcessGone(watched.node_id, watched.incarnation))

    def report(self, process: Process, identity: m.ProcessIdentity, *, gives_up: bool = False) -> None:
        """Somebody says how a process ended, on a connection of its own.

        Of a node whose process the scheduler does not know, a rebuilt store's, the number alone counts: nobody says that wrongly here.
        """
        scheduler = self.world.scheduler
        if scheduler is None or self.world.verdict:
            return
        node = scheduler.machine.state.nodes.get(NodeId(process.name))
        if not self.has_ended(identity) and (node is None or node.process is None):
            return
        self.clock.say(f"the end of {process.name} is reported")
        exited = m.Exited(
            node_id=NodeId(process.name),
            pid=process.identity.pid,
            reason="killed",
            process=identity,
            gives_up=gives_up,
        )
        number = self.world.network.next_number()
        scheduler.handle(MessageReceived(number, exited, "peer", ResumeToken("")))
