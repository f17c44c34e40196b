"""Who knows that a process has ended: the scheduler of those of its own host, launchers of theirs. And wrong words about it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from recovery.core import messages as m
from recovery.core.ids import NodeId, ResumeToken
from recovery.core.scheduler.effects import WatchProcess
from recovery.core.scheduler.stimuli import MessageReceived, ProcessGone
from tests.simulation.slots import SCHEDULER_HOST

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.scheduler import SchedulerProcess
    from tests.simulation.world import World

WRONG = ("recycled", "another boot", "another namespace", "another pid")
"""In what a wrong word about a process differs from it."""


class Deaths:
    """Every process that there was, by what identifies it."""

    def __init__(self, world: World) -> None:
        """None yet."""
        self.world = world
        self._started = 0
        self._ended: set[tuple[int, m.ProcessIdentity]] = set()
        self._watched: list[tuple[SchedulerProcess, WatchProcess]] = []

    def next_process(self, host: str) -> tuple[int, m.ProcessIdentity]:
        """The process id and the identity of one more process."""
        self._started += 1
        identity = m.ProcessIdentity(boot_id=f"boot-{host}", pid_namespace=1, start_ticks=self._started)
        return 1_000 + self._started, identity

    def has_ended(self, pid: int, process: m.ProcessIdentity) -> bool:
        """The truth."""
        return (pid, process) in self._ended

    def watch(self, scheduler: SchedulerProcess, effect: WatchProcess) -> None:
        """Tell the scheduler of the end of a process of its own host, at once where it has ended."""
        if effect.process.boot_id != f"boot-{SCHEDULER_HOST}":
            return
        if self.has_ended(effect.pid, effect.process):
            self._tell_gone(scheduler, effect)
        else:
            self._watched.append((scheduler, effect))

    def _tell_gone(self, scheduler: SchedulerProcess, effect: WatchProcess) -> None:
        self.world.clock.seen["a death was proven"] += 1
        gone = ProcessGone(effect.node_id, effect.incarnation)
        self.world.clock.soon("deaths", 1, 30, partial(scheduler.handle, gone))

    def ended(self, process: Process) -> None:
        """It is gone: whoever watches it knows that soon."""
        identity = process.identity
        assert identity.process is not None, "every process here has one"
        self._ended.add((identity.pid, identity.process))
        for scheduler, effect in self._watched:
            if (effect.pid, effect.process) == (identity.pid, identity.process):
                self._tell_gone(scheduler, effect)
        if self.world.clock.draw("deaths").random() < self.world.shape.spares.exits_seen:
            self.world.clock.soon("deaths", 1, 500, partial(self._report, process, identity.process))

    def _report(self, process: Process, identity: m.ProcessIdentity) -> None:
        """The launcher of its host tells the scheduler."""
        self.tell(NodeId(process.name), process.identity.pid, identity)

    def tell(self, node_id: NodeId, pid: int, identity: m.ProcessIdentity) -> None:
        """A launcher says that a process has ended."""
        scheduler = self.world.scheduler
        if scheduler is None or self.world.verdict:
            return
        exited = m.Exited(node_id=node_id, pid=pid, reason="killed by SIGKILL", process=identity)
        self.world.clock.say(f"a launcher: {node_id} (pid {pid}) has ended")
        number = self.world.network.next_number()
        scheduler.handle(MessageReceived(number, exited, "peer", ResumeToken("")))

    def tell_wrongly(self, process: Process, wrong: str) -> None:
        """A launcher says that a process has ended that is another one than the node's: nothing may follow from it."""
        identity, pid = process.identity.process, process.identity.pid
        assert identity is not None, "every process here has one"
        if wrong == "recycled":
            identity = msgspec.structs.replace(identity, start_ticks=identity.start_ticks + 100_000)
        elif wrong == "another boot":
            identity = msgspec.structs.replace(identity, boot_id="another")
        elif wrong == "another namespace":
            identity = msgspec.structs.replace(identity, pid_namespace=2)
        else:
            pid += 100_000
        self.tell(NodeId(process.name), pid, identity)
