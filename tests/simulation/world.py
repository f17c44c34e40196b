"""The world around the machines: who runs, who starts them again, what lies on the disks, and the data plane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from recovery.core import messages as m
from recovery.core.effects import Exit
from recovery.core.ids import NodeId, ResumeToken
from recovery.core.policy.ranks import is_in_slot, slot_of
from recovery.core.records import NodeRecord, Record, RunRecord
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import Identity
from recovery.core.worker.effects import FindCheckpoints
from tests.simulation import live, memory
from tests.simulation.clock import Clock
from tests.simulation.exchange import Exchange
from tests.simulation.files import Disks
from tests.simulation.network import UP, Network, Wire
from tests.simulation.notes import Notes
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.proofs import Proofs
from tests.simulation.scheduler import SchedulerProcess
from tests.simulation.shape import Shape
from tests.simulation.slots import Slot, slot_name
from tests.simulation.stops import DrainPromises
from tests.simulation.store_model import StoreModel
from tests.simulation.training_stops import TrainingEndPromises
from tests.simulation.uploads import Storage

COLLECTIVE_TIMEOUT_MS = 30_000
"""Behind the end of the job: how long a rank still waits in a collective for peers that are gone."""


class World:
    """Everybody and everything, from one seed."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.clock, self.shape, self.rules = Clock(seed), shape, shape.rules
        self.store, self.promises = StoreModel(), Promises(self)
        self.network = Network(self.clock, delay_ms=shape.delay_ms, stall_share=shape.stall_share)
        self.slow_writes, self.failing_saves, self.hanging = (
            shape.slow_writes,
            shape.failing_saves,
            shape.hanging,
        )
        self.late_looks = shape.spares.late_looks
        self.relaunch_ms, self.step_ms = shape.relaunch_ms, shape.step_ms
        self.disk_full_until, self.next_sync_fails = 0, False
        self.slots: dict[str, Slot] = {}
        for index in range(self.rules.worker_count):
            self._add_slot(f"w{index}", m.Role.WORKER, index)
        for index in range(self.rules.server_count):
            self._add_slot(f"ps{index}", m.Role.SERVER, index)
        for index in range(shape.spares.standbys):
            # Of the last host first: a standby of another host is the harder case.
            self._add_slot(f"s{index}", m.Role.WORKER, -1 - index, standby=True)
        self.disk = Disks(self._can_read)
        self.drains = DrainPromises(self)
        self.training_end = TrainingEndPromises(self)
        self.exchange, self.storage = Exchange(self), Storage(self)
        self.seconds: list[Process] = []
        """Further processes of an id whose first one runs, or is paused."""
        self.finished: set[str] = set()
        self.verdict, self.ended_ms = "", 0
        self.on_note: Callable[[Process, tuple[Record, ...]], None] = lambda process, records: None
        """Called with what a node has written into its own store."""
        self.on_step: Callable[[Process, m.Rollback, int], None] = lambda process, plan, step: None
        """Called with each step that a rank has applied."""
        self.on_offer: list[Callable[[Process], None]] = []
        """The first is called with the next process that is offered a rank."""
        self._planes: dict[tuple[str, int], list[Process]] = {}
        """By address and generation, as for a framework: where two worlds have one number, the ranks of one meet nobody of the other's."""
        self._starts = self._stores = 1
        self._ports = 0
        self.notes: defaultdict[str, Notes] = defaultdict(Notes)
        """What lies in each node's own store."""
        self.proofs = Proofs(self)
        self.scheduler: SchedulerProcess | None = SchedulerProcess(self, 1)
        for slot in self.slots.values():
            self.clock.soon("start", 0, 2_000, partial(self.launch, slot))

    def _add_slot(self, name: str, role: m.Role, index: int, *, standby: bool = False) -> None:
        self.slots[name] = Slot(name, role, f"h{index % self.shape.spares.hosts}", standby=standby)

    def host_of(self, node_id: str) -> str:
        """Where the processes of an id run."""
        return self.slots[slot_name(node_id)].host

    def _can_read(self, node_id: str, directory: str) -> bool:
        if memory.host_of(directory):
            return memory.host_of(directory) == self.host_of(node_id)
        return self.shape.spares.shared_files or self.host_of(node_id) == self.host_of(directory)

    def names_of_place(self, node_id: str, replaces: str) -> list[str]:
        """The ids under which a process was started in a place, as who was started there can know them."""
        place = slot_of(node_id, replaces)
        return [name for name in self.slots[slot_name(node_id)].ids if is_in_slot(name, place)]

    @property
    def names(self) -> list[str]:
        """The ids that are used now."""
        return [slot.current for slot in self.slots.values()]

    @property
    def living(self) -> list[Process]:
        """Every process that runs, in one order."""
        everybody = (*(slot.process for slot in self.slots.values()), *self.seconds)
        return [process for process in everybody if process is not None and process.alive]

    # --- processes come and go -----------------------------------------------------------------------------------------

    def launch(self, slot: Slot, *, fresh: bool = False) -> None:
        """Start a process in a place, unless there is one."""
        if slot.process is None and slot.name not in self.finished and not self.verdict:
            slot.begin_next(fresh=fresh)
            of_whom = f" for {slot.replaces}" if slot.replaces else ""
            self.clock.say(f"{slot.current} launched{of_whom}")
            slot.process = Process(self, slot, self._identity(slot, slot.current, slot.replaces))

    def _identity(self, slot: Slot, name: str, replaces: str = "") -> Identity:
        pid, process = self.proofs.started(slot.host)
        return Identity(
            node_id=NodeId(name),
            role=slot.role,
            host=slot.host,
            pid=pid,
            process=process,
            standby=slot.standby,
            replaces=NodeId(replaces),
            stores=self.shape.spares.stores,
        )

    def second(self, process: Process) -> None:
        """One more process of the same id."""
        self.clock.say(f"{process.name} launched a second time")
        slot = process.slot
        if slot.process is not process:
            # It is beside the one of its slot itself.
            self.earlier(slot, process.name)
            return
        self.seconds.append(process)
        slot.process = Process(self, slot, self._identity(slot, process.name))

    def earlier(self, slot: Slot, name: str) -> None:
        """A process of an id that was given up for a fresh one: a person starts it, or it was there all the time."""
        self.clock.say(f"{name} launched again")
        self.seconds.append(Process(self, slot, self._identity(slot, name)))

    def _start_holder_again(self, slot: Slot, name: str) -> None:
        """Whoever started it does not leave the job without a rank that it has: no other place's process comes for that one.

        A place whose process had never come before is surplus since.
        """
        row = self.store.rows.get((NodeRecord, name))
        has_rank = row is not None and row.rank is not None and name != slot.current
        if has_rank and not self.verdict and all(one.name != name for one in self.living):
            self.clock.seen["an earlier id that has a rank was started again"] += 1
            self.earlier(slot, name)

    def exited(self, process: Process, exit_: Exit) -> None:
        """A process ends by itself; with an error it is relaunched."""
        self.clock.say(f"{process.name} exits {exit_.code!r} {exit_.reason}")
        self.clock.seen[f"a process exited {exit_.code or 'well'}"] += 1
        if exit_.code == "":
            assert self.promises.may_end_well(process), "nobody ends well before the job has"
            self.finished.add(process.slot.name)
        # As the launcher: the job is complete without it.
        surplus = exit_.code == "WORLD_FULL" and process.machine.admitted is None
        if surplus and process.slot.process is process:
            process.slot.is_surplus = True
            self.clock.seen["a process was not started again, since the job was complete"] += 1
        self.kill(process)

    def kill(self, process: Process) -> None:
        """The process is gone, its socket closes; somebody relaunches it."""
        process.alive = False
        self._gone(process)
        self.proofs.ended(process)
        slot = process.slot
        if slot.process is process:
            slot.process = None
            if slot.is_surplus:
                return
            was_member = process.machine.admitted is not None
            fresh = was_member and self.shape.spares.fresh_ids and slot.role is m.Role.WORKER
            self.clock.soon("relaunch", *self.relaunch_ms, partial(self.launch, slot, fresh=fresh))
        else:
            # Whoever started the process that had the place starts another one.
            surplus = [one for one in (slot, *self.slots.values()) if one.is_surplus]
            for place in surplus[:1]:
                self.clock.soon("relaunch", *self.relaunch_ms, partial(self.launch, place, fresh=False))
            if process.name != slot.current:
                again = partial(self._start_holder_again, slot, process.name)
                self.clock.soon("relaunch", *self.relaunch_ms, again)

    def _gone(self, process: Process) -> None:
        if process.plan is not None:
            self.parted(process, process.plan)
        if process.wire is not None:
            wire = process.wire
            wire.send(UP, lambda: wire.cut("connection closed"))

    def replaced(self, process: Process, token: ResumeToken, hangs: s.Hangs) -> None:
        """exec in place."""
        self.clock.say(f"{process.name} replaces itself")
        process.alive = False
        self._gone(process)
        # Neither the process id nor the start time changes by an exec.
        successor = Process(self, process.slot, process.identity, token, hangs)
        if process.slot.process is process:
            process.slot.process = successor
        else:
            self.seconds.append(successor)

    def dialled(self, process: Process) -> Wire | None:
        """A node dials."""
        if self.scheduler is None or self.network.is_blocked(process.name):
            return None
        wire = self.network.connect(process, self.scheduler)
        self.scheduler.wires[wire.number] = wire
        return wire

    def look_takes(self, name: str, find: FindCheckpoints, found: Callable[[], None]) -> None:
        """A look for files takes its time; one for an offered rank may take longer than the offer stands, or never end."""
        draw = self.clock.draw("looks")
        if find.offer is None or draw.random() >= self.late_looks:
            self.clock.soon("disk", 1, 50, found)
        elif draw.random() < 0.5 or self._has_rank(name):
            # Who has the rank already is waited for, however long it looks.
            self.clock.seen["an offer was answered late"] += 1
            self.clock.later(self.rules.abort_timeout_ms + draw.randint(1, 3_000), found)
        else:
            self.clock.seen["an offer was never answered"] += 1

    def _has_rank(self, name: str) -> bool:
        row = self.store.rows.get((NodeRecord, name))
        return row is not None and row.rank is not None

    def kill_scheduler(self) -> None:
        """SIGKILL to the scheduler; somebody relaunches it."""
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler = None
            self.clock.soon("relaunch", *self.relaunch_ms, self._relaunch_scheduler)

    def lose_store(self) -> None:
        """The scheduler's store is gone; its next process knows nothing and asks the workers."""
        self._stores += 1
        self.kill_scheduler()
        self.promises.store_lost()
        self.training_end.store_lost()
        self.store = StoreModel(f"job-{self._stores}")

    def _relaunch_scheduler(self) -> None:
        self._starts += 1
        self.clock.say(f"scheduler process {self._starts}")
        self.scheduler = SchedulerProcess(self, self._starts)

    def scheduler_ended(self, exit_: Exit) -> None:
        """The job is over."""
        self.scheduler = None
        self.verdict, self.ended_ms = exit_.code or "FINISHED", self.clock.now
        self.clock.later(COLLECTIVE_TIMEOUT_MS, self._time_out_collectives)

    def _time_out_collectives(self) -> None:
        """A world whose peers have ended behind a partition, and which no scheduler interrupts: its framework gives up in the end."""
        for process in self.living:
            if process.plan is not None:
                self._broke(process, process.plan, "the collective timed out")

    @property
    def outcomes(self) -> list[str]:
        """How the runs ended, as a reader of the store sees it."""
        return [run.outcome for run in self.store.all(RunRecord)]

    # --- the data plane ------------------------------------------------------------------------------------------------

    def next_address(self) -> str:
        """Where a rank 0 listens: of one world only."""
        self._ports += 1
        return f"h:{self._ports}"

    def joined(self, process: Process, plan: m.Rollback) -> None:
        """A rank has entered the world of its generation."""
        plane = self._planes.setdefault((process.meets_at, plan.generation), [])
        plane.append(process)
        if len(plane) == plan.world_size and plan.live_rank is None:
            self._next(plane, plan, plan.step + 1)
        elif len(plane) == plan.world_size:
            self.clock.soon("live", 1, 100, lambda: live.transfer(self, plan, plane))

    def parted(self, process: Process, plan: m.Rollback) -> None:
        """A rank is gone from its world: some of the others notice, some wait for ever."""
        plane = self._planes.get((process.meets_at, plan.generation), [])
        if process not in plane:
            return
        plane.remove(process)
        live.some_step_on(self, process, plan, plane)
        for other in plane:
            if self.clock.draw("data plane").random() < 0.5:
                error = f"{process.name} closed the connection"
                self.clock.soon("data plane", 1, 30, partial(self._broke, other, plan, error))

    def _broke(self, process: Process, plan: m.Rollback, error: str) -> None:
        mine = process.plan
        if (
            mine is not None
            and mine.generation == plan.generation
            and process.phase in ("training", "taking")
        ):
            process.stop(mine, error if process.interrupted < plan.generation else "")

    def agreed(self, process: Process, plan: m.Rollback) -> None:
        """A rank has heard that all hold one state: the last one of them begins."""
        plane = self._planes[process.meets_at, plan.generation]
        if len(plane) == plan.world_size and all(rank.phase == "training" for rank in plane):
            self._next(plane, plan, plan.step + 1)

    def _next(self, plane: list[Process], plan: m.Rollback, step: int) -> None:
        self.clock.soon("data plane", *self.step_ms, lambda: self._tick(plane, plan, step))

    def _tick(self, plane: list[Process], plan: m.Rollback, step: int) -> None:
        if len(plane) < plan.world_size or any(rank.phase != "training" for rank in plane):
            return
        waits = [rank.stop_asked.waits or not rank.confirmed for rank in plane]
        if any(waits) or any(self.clock.now < rank.frozen_until for rank in plane):
            # A collective waits for who is paused, or was asked to stop.
            self._next(plane, plan, step)
        elif any(rank.is_over for rank in plane):
            for rank in [one for one in plane if one.is_over]:
                rank.finish(step - 1)
        else:
            for rank in list(plane):
                rank.trained(step)
            if step < self.shape.steps:
                self._next(plane, plan, step + 1)
