"""Files of checkpoints go from node to node: slowly, or not at all, or damaged. What arrives is digested, as the real one does.

What was promised of copies is checked here: I27, I28, I29 of docs/guarantees.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from recovery.core import messages as m
from recovery.core.copy_messages import CopyFailed, CopyReport, FetchFault
from recovery.core.copy_records import CopyRecord, CopyState
from recovery.core.policy.retention import copy_is_needed
from recovery.core.records import NodeState
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Fetch, FindCheckpoints, RetainCopies
from tests.simulation import memory
from tests.simulation.files import COPIES, Saved
from tests.simulation.slots import Slot

if TYPE_CHECKING:
    from recovery.core.scheduler.node import Node
    from tests.simulation.process import Process
    from tests.simulation.scheduler import SchedulerProcess
    from tests.simulation.world import World


class Exchange:
    """Who serves where, and what the scheduler was told of copies."""

    def __init__(self, world: World) -> None:
        self.world, self.failing = world, world.shape.spares.failing_fetches
        self._servers: dict[str, Process] = {}
        self._disks_lost: dict[str, int] = {}
        """By host: when its disk was lost."""
        self._claims: dict[str, dict[tuple[int, int], m.HeldCheckpoint]] = {}
        """What each id has said of copies on its node, by rank and step."""
        self._said: set[str] = set()
        """Who has said since the scheduler started what it holds."""
        self._not_given: set[tuple[str, str]] = set()
        self._not_taken: set[tuple[str, int, str]] = set()
        self._given: dict[str, list[tuple[int, int, int]]] = {}
        """By address: (run, generation, step) of each plan that a process was given."""
        self._kept: dict[str, int] = {}
        """By address: copies from which step on it was told to keep."""

    # --- serving and fetching ------------------------------------------------------------------------------------------

    def serve(self, process: Process) -> str:
        """Where a process serves; empty where nobody does."""
        if self.world.shape.spares.copies is None or process.role is not m.Role.WORKER:
            return ""
        address = f"{process.name}:{len(self._servers) + 1}"
        self._servers[address] = process
        return address

    def _address_of(self, process: Process) -> str:
        return next((address for address, one in self._servers.items() if one is process), "")

    def do(self, process: Process, effect: Fetch | RetainCopies) -> None:
        """Carry out what the machine asks for."""
        if isinstance(effect, RetainCopies):
            self._retain(process, effect)
            return
        there = self.world.disk[_place(process.slot, effect)].get(effect.checkpoint.step)
        if there is not None and there.held.digest == effect.checkpoint.digest and is_whole(there):
            self.world.clock.seen["what was to be fetched was there"] += 1
            done = s.Fetched(process.request(), effect.fetch_id, there.held)
            self.world.clock.soon("fetches", 1, 20, lambda: process.handle(done))
        else:
            self._ask(process, effect, ())

    def _ask(self, process: Process, fetch: Fetch, faults: tuple[FetchFault, ...]) -> None:
        if len(faults) == len(fetch.sources):
            self.world.clock.seen[
                "nobody gave what a plan needed" if fetch.for_plan else "a copy failed"
            ] += 1
            process.handle(s.FetchFailed(process.request(), fetch.fetch_id, faults))
            return
        took = self.world.shape.spares.fetch_ms
        self.world.clock.soon("fetches", *took, lambda: self._answered(process, fetch, faults))

    def _answered(self, process: Process, fetch: Fetch, faults: tuple[FetchFault, ...]) -> None:
        if not process.alive:
            return
        if self.world.clock.now < process.frozen_until:
            wait = process.frozen_until - self.world.clock.now
            self.world.clock.later(wait, lambda: self._answered(process, fetch, faults))
            return
        source = fetch.sources[len(faults)]
        file = self._given_by(process, source, fetch.checkpoint.digest)
        if isinstance(file, Saved) and is_whole(file):
            self._arrived(process, fetch, file, faults)
            return
        damaged = isinstance(file, Saved)
        self.world.clock.seen["a damaged contribution was refused on arrival"] += damaged
        reason = "digest" if isinstance(file, Saved) else file
        self._ask(process, fetch, (*faults, FetchFault(source=source, reason=reason, damaged=damaged)))

    def _given_by(self, process: Process, source: m.Source, digest: str) -> Saved | str:
        server = self._servers[source.address]
        if not server.alive or self.world.clock.now < server.frozen_until:
            return "not reached"
        if self.world.network.is_blocked(server.name) or self.world.network.is_blocked(process.name):
            return "not reached"
        if self.world.clock.draw("fetches").random() < self.failing:
            self.world.clock.seen["a fetch was cut"] += 1
            return "cut in the middle"
        notes = self.world.notes[server.name]
        for directory in (server.name, *sorted(notes.places), *self._of_slot(server.slot)):
            for file in self.world.disk[directory].values():
                if file.held.digest == digest and not file.gone:
                    return file
        return "404"

    def _arrived(self, process: Process, fetch: Fetch, file: Saved, faults: tuple[FetchFault, ...]) -> None:
        place = _place(process.slot, fetch)
        directory = self.world.disk[place]
        there = directory.get(file.held.step)
        if there is not None and there.held.generation > file.held.generation:
            process.handle(s.FetchFailed(process.request(), fetch.fetch_id, faults, "the name is in use"))
            return
        path = f"{place}/{file.held.step}"
        held = msgspec.structs.replace(file.held, path=path)
        directory[file.held.step] = msgspec.structs.replace(file, held=held)
        self.world.promises.checked["I28"] += 1
        assert file.rank == fetch.rank, "I28: what arrives is of the rank that was named"
        assert is_whole(file), "I28: what arrives is verified before it counts"
        self.world.clock.seen["a plan's checkpoint was fetched" if fetch.for_plan else "a copy was made"] += 1
        if memory.host_of(place):
            self.world.clock.seen["a copy was made in memory"] += 1
        if fetch.for_plan and memory.host_of(file.held.path):
            self.world.clock.seen["a plan's checkpoint came from another host's memory"] += 1
        process.handle(s.Fetched(process.request(), fetch.fetch_id, held, faults))

    # --- what lies where -----------------------------------------------------------------------------------------------

    def _of_slot(self, slot: Slot) -> list[str]:
        disk = self.world.disk
        return [
            *disk.below(f"{slot.name}{COPIES}"),
            *disk.below(f"{memory.of_host(slot.host)}{slot.name}{COPIES}"),
        ]

    def own(self, process: Process, rank: int | None) -> set[str]:
        """Where a rank's own contributions lie that were fetched to a node."""
        if rank is None:
            return set()
        places = {
            _directory(process.slot, rank),
            memory.of_host(process.slot.host) + _directory(process.slot, rank),
        }
        return places & set(self._of_slot(process.slot))

    def held(self, process: Process, find: FindCheckpoints) -> tuple[m.HeldCopy, ...]:
        """Copies of other ranks, as a look finds them: what has rotted looks well."""
        return tuple(
            m.HeldCopy(rank=file.rank, checkpoint=file.held)  # type: ignore[arg-type]  # a rank is a number
            for directory in self._of_slot(process.slot)
            for file in self.world.disk[directory].values()
            if not file.gone
            and not file.fault
            and (file.job, file.held.run) == (find.job, find.run)
            and file.rank != find.rank
        )

    def _retain(self, process: Process, retain: RetainCopies) -> None:
        began = [(one.generation, one.step) for one in retain.began]
        given = self._given.get(self._address_of(process), [])
        for name in self._of_slot(process.slot):
            directory = self.world.disk[name]
            for step, file in list(directory.items()):
                if file.held.run != retain.run or file.job != retain.job:
                    continue
                oldest = retain.oldest_in_memory if memory.host_of(name) else retain.oldest
                if not copy_is_needed(
                    file.held, oldest=retain.oldest, oldest_in_memory=retain.oldest_in_memory, began=began
                ):
                    self.world.clock.seen["a copy was let go"] += 1
                    loads = process.plan.path if process.plan and process.phase == "loading" else ""
                    assert loads != file.held.path, "I29: the copy that a plan goes back to was let go"
                    self.world.disk.let_go(name, step)
                    continue
                self.world.promises.checked["I29"] += 1
                outlived = [one for one in given if one[1] > file.held.generation and one[2] < file.held.step]
                assert not outlived, f"I29: {file.held.path} is kept, and was rolled back by {outlived}"
                assert step >= oldest, f"I29: {file.held.path} is kept, older than {oldest}"

    def lose_disk(self, host: str) -> None:
        """A host comes back with an empty disk."""
        world = self.world
        for process in world.living:
            if process.slot.host == host:
                world.kill(process)
        self._disks_lost[host] = world.clock.now
        # Its memory is another fault; but nobody knows any more that something lies there.
        world.disk.lose(lambda directory: not memory.host_of(directory) and world.host_of(directory) == host)
        for slot in world.slots.values():
            if slot.host == host:
                for name in slot.ids:
                    world.notes.pop(name, None)
                world.promises.disk_lost(slot.ids)

    @property
    def has_lost_disks(self) -> bool:
        """Has any disk been lost?"""
        return bool(self._disks_lost)

    def is_lost(self, process: Process) -> bool:
        """Has the disk of its host been lost?"""
        return process.slot.host in self._disks_lost

    # --- what was said of it, and what may follow ----------------------------------------------------------------------

    def scheduler_started(self) -> None:
        """It knows what is stored, and asks again before there is a plan."""
        self._claims.clear()
        self._said.clear()
        self._not_given.clear()
        self._not_taken.clear()

    def note(self, node: Node, message: m.FromNode, sent: int, generation: int) -> None:
        """Keep what a node says."""
        name, world = str(node.record.node_id), self.world
        if isinstance(message, m.Ready):
            if message.generation >= sent:
                self._said.add(name)
                past = message.past.copies if message.past is not None else ()
                self._claims[name] = {
                    (one.rank, one.checkpoint.step): one.checkpoint for one in message.copies or past
                }
        elif isinstance(message, CopyReport):
            self._claims.setdefault(name, {})[message.rank, message.checkpoint.step] = message.checkpoint
        elif isinstance(message, CopyFailed):
            for fault in message.failures:
                if fault.damaged:
                    world.clock.seen["a holder's copy was known to be damaged"] += 1
                    self._claims.get(str(fault.source.node_id), {}).pop((message.rank, message.step), None)
            if message.gives_up and message.generation == generation:
                self._not_given |= {(one.source.address, message.digest) for one in message.failures}
                if message.reason or not message.failures:
                    self._not_taken.add((name, node.record.incarnation, message.digest))

    def claims_for(self, scheduler: SchedulerProcess, node: Node) -> dict[int, m.HeldCheckpoint]:
        """By step: what a node could get of its rank's from who is here, as they have said themselves."""
        found: dict[int, m.HeldCheckpoint] = {}
        for name, claims in self._claims.items():
            holder = scheduler.machine.state.nodes[name]  # type: ignore[index]  # a node id is text
            for (rank, step), held in claims.items():
                if rank != node.record.rank or (name, rank, held.digest) in self._damaged:
                    continue
                is_own = holder is node
                gives = (
                    holder.record.state is NodeState.LIVE
                    and holder.serves
                    and name in self._said
                    and (holder.serves, held.digest) not in self._not_given
                    and (str(node.record.node_id), node.record.incarnation, held.digest)
                    not in self._not_taken
                )
                if (is_own or gives) and self.world.promises.is_past(held):
                    found[step] = held
        return found

    def steps_elsewhere(self, rank: int) -> set[int]:
        """The steps of which somebody holds a rank's contribution, as the store says, or somebody has said just now."""
        rows = self.world.store.all(CopyRecord)
        stored = {row.step for row in rows if row.rank == rank and row.state is CopyState.HELD}
        return stored | {step for claims in self._claims.values() for whose, step in claims if whose == rank}

    @property
    def _damaged(self) -> set[tuple[str, int, str]]:
        """Whose copies are known to be damaged, as the store says."""
        rows = self.world.store.all(CopyRecord)
        return {
            (str(row.node_id), int(row.rank), row.digest) for row in rows if row.state is CopyState.DAMAGED
        }

    def plan_made(self, scheduler: SchedulerProcess, plan: m.Rollback, *, is_new: bool) -> None:
        """I27: a plan names who holds, is here, and can be asked, and never its own node. Sent again it names whom it named."""
        self.world.promises.checked["I27"] += bool(plan.sources)
        is_sent = bool(plan.path or plan.sources or plan.live_rank is not None)
        assert is_sent == bool(plan.step), f"I27: a rank is sent nowhere: {plan}"
        for source in plan.sources if is_new else ():
            self.world.clock.seen["a plan named a holder"] += 1
            holder = scheduler.machine.state.nodes[source.node_id]
            claimed = self._claims.get(str(source.node_id), {}).get((plan.rank, plan.step))
            assert holder.record.state is NodeState.LIVE, f"I27: {source.node_id} is not here: {plan}"
            assert holder.serves == source.address, f"I27: another process serves there: {plan}"
            assert claimed is not None, f"I27: {source.node_id} has not said that it holds this: {plan}"
            assert claimed.digest == plan.digest, f"I27: {source.node_id} holds another history: {plan}"
            server = self._servers[source.address]
            lies_there = self._given_by_name(server, plan.digest)
            assert lies_there or not server.alive or self.is_changed(server), (
                f"I27: {source.node_id} is named and does not hold it: {plan}"
            )

    def _given_by_name(self, server: Process, digest: str) -> bool:
        files = (one for name in self._of_slot(server.slot) for one in self.world.disk[name].values())
        return any(file.held.digest == digest for file in files)

    def is_changed(self, server: Process) -> bool:
        """Has somebody else changed its files?"""
        return self.is_lost(server)

    def plan_received(self, process: Process, plan: m.Rollback) -> None:
        """A process goes by a plan."""
        given = self._given.setdefault(self._address_of(process), [])
        given.append((plan.run, plan.generation, plan.step))


def _directory(slot: Slot, rank: int) -> str:
    return f"{slot.name}{COPIES}{rank}"


def _place(slot: Slot, fetch: Fetch) -> str:
    """Where what is fetched is to lie: a copy in memory if its original does, what a plan needs on the disk."""
    in_memory = not fetch.for_plan and memory.host_of(fetch.checkpoint.path)
    return (memory.of_host(slot.host) if in_memory else "") + _directory(slot, fetch.rank)


def is_whole(file: Saved) -> bool:
    """Is it what its digest says?"""
    return file.good and not file.gone and not file.fault
