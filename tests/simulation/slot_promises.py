"""The promises around slots: who takes a rank over and from whom, what a proof of death may do, who is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Persist
from recovery.core.ids import ConnectionId, NodeId
from recovery.core.records import (
    EventKind,
    EventRecord,
    JobState,
    NodeRecord,
    NodeState,
    SlotRecord,
)
from recovery.core.scheduler.effects import RebuildTimer, SchedulerEffect
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.node import Node
from recovery.core.tiers import Tier, tier_of
from recovery.core.worker.transitions import WorkerState

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.promises import Promises
    from tests.simulation.scheduler import SchedulerProcess
    from tests.simulation.world import World

Watch = Callable[[list[SchedulerEffect]], None]
_HERE = (NodeState.LIVE, NodeState.SUSPECT)


class SlotPromises:
    """What was promised about slots."""

    def __init__(self, world: World, promises: Promises) -> None:
        """Begin with none.

        Args:
            world: in which.
            promises: the others, which know what was said of files.
        """
        self.world, self._promises = world, promises
        self.before: dict[str, tuple[NodeRecord, m.ProcessIdentity | None]] = {}
        """Every node and its process, before the stimulus that is looked at."""

    def is_dead(self, holder: NodeRecord, now: Node) -> bool:
        """The truth about the process of an incarnation, which may have a successor since this very stimulus."""
        before, process = self.before.get(holder.node_id, (now.record, now.process))
        return self.world.proofs.has_ended(
            process if before.incarnation == holder.incarnation else now.process
        )

    def replaced_incarnation(self, scheduler: SchedulerProcess, name: str) -> int:
        """The incarnation of an id that has trained and whose rank was given to another node; 0: there is none."""
        state = scheduler.machine.state
        node = state.nodes.get(NodeId(name))
        if node is None or node.slot or node.record.state in _HERE:
            return 0
        if node.record.generation not in {one.generation for one in state.generations}:
            # It has had no plan, or only reported one of a store that is lost.
            return 0
        self.world.clock.seen["somebody whose rank was taken over asked again"] += 1
        return int(node.record.incarnation)

    def lost_its_slot(self, process: Process, plan: m.Rollback | None) -> bool:
        """Was its rank given to another node? A plan, which it follows or has just received, says that it had one."""
        slot = self.world.store.rows.get((SlotRecord, process.name))
        return slot is not None and not slot.slot and plan is not None

    # --- I21, I22: a rank is taken over ---------------------------------------------------------------------------------

    def before_answer(self, scheduler: SchedulerProcess, standby: Node, message: m.FromNode) -> Watch:
        """I21: an answer takes a rank only with the newest step that lies on all ranks' disks, of that rank's own files."""
        if not (isinstance(message, m.Ready) and standby.is_standby and message.rank is not None):
            return lambda effects: None
        holders = [node for node in scheduler.machine.state.workers if node.record.rank is not None]
        claims = [_on_disks(self._promises.claims_of(node.record.node_id)) for node in holders]
        needed = self._promises.newest_of(claims, scheduler.machine.state.job.run) if claims else 0
        offers = scheduler.machine.state.vacancies.offers.values()
        is_last = any(one.is_last for one in offers if one.standby == standby.record.node_id)

        def after(effects: list[SchedulerEffect]) -> None:
            if standby.record.rank is None:
                self.world.clock.seen["a standby was asked and did not take the rank"] += 1
                return
            self._promises.checked["I21"] += 1
            steps = {held.step for held in message.held}
            if is_last:
                self.world.clock.seen["a rank was taken with what could be read"] += 1
                return
            elsewhere = self.world.exchange.steps_elsewhere(standby.record.rank)
            assert not needed or needed in steps or needed in elsewhere, (
                f"I21: {standby.record.node_id} took rank {standby.record.rank} over without step {needed}: {steps}"
            )

        return after

    def after_all(self, scheduler: SchedulerProcess, effects: list[SchedulerEffect]) -> None:
        """I21: whom a rank was taken from. I24: a plan that everybody who has a rank is ready for was made."""
        state = scheduler.machine.state
        for effect in effects:
            if isinstance(effect, Persist):
                rows = {one.node_id: one for one in effect.records if isinstance(one, NodeRecord)}
                for record in effect.records:
                    if isinstance(record, EventRecord) and record.kind is EventKind.RANK_TAKEN_OVER:
                        name = NodeId(record.details)
                        self._taken_over(scheduler, rows[name], state.nodes[name])
        self._nobody_is_waited_for(scheduler)

    def _taken_over(self, scheduler: SchedulerProcess, holder: NodeRecord, now: Node) -> None:
        """The row is of the moment when its rank was taken. A next process of its id, which waited, may be in since."""
        self._promises.checked["I21"] += 1
        name = holder.node_id
        self.world.clock.seen["a rank was taken over"] += 1
        assert holder.state not in _HERE, f"I21: the rank of {name} was taken, which is here"
        if holder.state is NodeState.LEFT or self.is_dead(holder, now):
            return
        is_same = now.record.incarnation == holder.incarnation
        assert not is_same or now.connection is None, f"I21: the rank of {name} was taken, which is connected"
        # Nobody has seen it end: then its generation is over, and it has reported its end or was silent for as long as its grace.
        self.world.clock.seen["the rank of a living process was taken over"] += 1
        state = scheduler.machine.state
        is_over = state.job.state is not JobState.RUNNING or holder.generation < state.job.generation
        assert is_over, f"I21: the rank of {name} was taken in its generation"
        if self._leaves(holder):
            self.world.clock.seen["the rank of a process that had reported its end was taken over"] += 1
            return
        silent_ms = self._promises.silent_ms(holder)
        least_ms = self.world.rules.reconnect_grace_ms * (1 - self.world.shape.drift) - 1
        assert silent_ms >= least_ms, f"I21: the rank of {name} was taken {silent_ms} ms after it was heard"

    def _leaves(self, holder: NodeRecord) -> bool:
        """Has this incarnation raised, or given itself up, and lost its connection before it had the answer? It trains no more."""
        of_holder = [
            process.machine
            for process in self.world.living
            if process.name == holder.node_id
            and process.machine.admitted is not None
            and process.machine.admitted.incarnation == holder.incarnation
        ]
        return bool(of_holder) and all(machine.state is WorkerState.LEAVING for machine in of_holder)

    def sent_to(self, process: Process, plan: m.Rollback) -> None:
        """I21: who has a rank goes on from a file of that rank, which it can read."""
        self._promises.checked["I21"] += 1
        file, directory = self.world.disk.file_at(plan.path), plan.path.rpartition("/")[0]
        assert self.world.disk.can_read(process.name, directory), (
            f"I21: {process.name} was sent to a file of another host: {plan.path}"
        )
        if file is not None and file.held.digest == plan.digest:
            assert file.rank == plan.rank, f"I21: rank {plan.rank} was sent to a file of rank {file.rank}"
        if directory != process.name and tier_of(plan.path) is Tier.DISK:
            self.world.clock.seen["a rank went on from files that another node saved"] += 1

    # --- I23: proofs ----------------------------------------------------------------------------------------------------

    def before_word(self, scheduler: SchedulerProcess, after_all: Watch) -> Watch:
        """I23: a report of a process's end, wrong or true, changes only what stands for a process that has ended.

        Who waited for its place may be let in by that. Where a standby is let in so, for which a rank waits that is on its way out, that one leaves.
        """
        nodes = scheduler.machine.state.nodes
        before = {name: (_standing(node), node.process) for name, node in nodes.items()}
        job = scheduler.machine.state.job.state

        def after(effects: list[SchedulerEffect]) -> None:
            self._promises.checked["I23"] += 1
            changed = [
                name for name, node in nodes.items() if name in before and _standing(node) != before[name][0]
            ]
            has_ended = {
                name
                for name in changed
                if before[name][1] is None or self.world.proofs.has_ended(before[name][1])
            }
            for name in changed:
                (state, window_ends_ms, _), _ = before[name]
                was_let_in = state not in _HERE and nodes[name].record.state is NodeState.LIVE
                was_handed_over = nodes[name].record.cause is Cause.RANK_HANDED_OVER
                self.world.clock.seen["who waited was let in by a proven death"] += was_let_in
                assert name in has_ended or ((was_let_in or was_handed_over) and has_ended), (
                    f"I23: {name} lives, and a wrong word has changed its place"
                )
                if nodes[name].window_ends_ms < window_ends_ms:
                    self.world.clock.seen["a proven death ended a window"] += 1
            now = scheduler.machine.state.job.state
            assert changed or now is job, "I23: a wrong word has changed the job"
            after_all(effects)

        return after

    # --- I24: nobody is waited for that is not needed -------------------------------------------------------------------

    def _nobody_is_waited_for(self, scheduler: SchedulerProcess) -> None:
        """I24: while the job waits, a rank is missing or not ready. Standbys are none of them."""
        state = scheduler.machine.state
        if state.job.state not in WAITING or state.store_rebuild.ends_scheduler:
            return
        if state.job.state is JobState.FORMING and not state.job.generation:
            # A store may have been lost, and who is a standby now may have held a rank: it is asked, for its lease at most.
            # One whose connection has just closed may be back within its grace.
            standbys = [node for node in state.nodes.values() if node.is_standby]
            if any(node.record.state is NodeState.LIVE and node.ready is None for node in standbys):
                return
            if any(node.record.state is NodeState.SUSPECT for node in standbys):
                return
            asks_until_ms = state.store_rebuild.asks_until_ms or 0
            if scheduler.own.read() < asks_until_ms or scheduler.awaits(RebuildTimer()):
                # So has who may know more of a rank than everybody who is here.
                self.world.clock.seen["a rebuilt store waited for who knew more"] += 1
                return
        self._promises.checked["I24"] += 1
        missing = [
            node.record.node_id
            for role in m.Role
            for node in state.slot_holders(role)
            if node.record.state is not NodeState.LIVE or node.ready is None
        ]
        slots = sum(len(state.slot_holders(role)) for role in m.Role)
        places = sum(state.slot_count(role) for role in m.Role)
        assert missing or slots < places, "I24: the job waits, and every rank is ready"


def _standing(node: Node) -> tuple[NodeState, int, ConnectionId | None]:
    """What a node holds."""
    return node.record.state, node.window_ends_ms, node.connection


def _on_disks(claims: dict[int, m.HeldCheckpoint]) -> dict[int, m.HeldCheckpoint]:
    return {step: held for step, held in claims.items() if tier_of(held.path) is Tier.DISK}
