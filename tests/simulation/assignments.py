"""Could the ranks of a job that has failed have been given to its processes, so that each reads its own checkpoint?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.records import CheckpointRecord, CheckpointState, NodeRecord, NodeState, SlotRecord
from tests.simulation.slots import slot_name

if TYPE_CHECKING:
    from tests.simulation.world import World


def nobody_could(world: World) -> bool:
    """Were there steps that all ranks held, and can none be gone back to? Of the newest that is whole no rank may be left without a reader.

    One process runs in each place, which is started again when it ends, and whoever else was connected when the job ended.
    """
    held = _files_of_common_steps(world)
    files = next((paths for paths in held if len(paths) == world.rules.worker_count), None)
    if files is None:
        return bool(held)
    processes = _processes(world)
    readers = [
        [
            number
            for number, name in enumerate(processes)
            if world.disk.can_read(name, path.rpartition("/")[0])
        ]
        for path in files
    ]
    return not _all_matched(readers)


def _files_of_common_steps(world: World) -> list[list[str]]:
    """Of each step that all ranks held, newest first: by rank the files that can still be used."""
    job = world.store.job
    # A step that every rank has published is one, whether or not its commit was written.
    are_there = (CheckpointState.COMMITTED, CheckpointState.PUBLISHED)
    published = [
        one
        for one in world.store.all(CheckpointRecord)
        if job is not None and one.run == job.run and one.state in are_there
    ]
    count = Counter(one.step for one in published)
    steps = sorted((step for step, held in count.items() if held == world.rules.worker_count), reverse=True)
    ordered = sorted(published, key=lambda one: one.rank)
    return [[one.path for one in ordered if one.step == step and _is_found(world, one)] for step in steps]


def _is_found(world: World, row: CheckpointRecord) -> bool:
    """Does who looks for the files of its rank find it? Not one that is cut short, nor another rank's that was copied over it."""
    file = world.disk.file_at(row.path)
    return file is not None and not file.gone and not file.fault and file.rank == row.rank


def _processes(world: World) -> list[str]:
    """By an id of each: who could have had a rank."""
    workers = [one for one in world.store.all(NodeRecord) if one.role is m.Role.WORKER]
    here = [one.node_id for one in workers if one.state is NodeState.LIVE]
    places = {slot_name(one) for one in here}
    missing = [
        slot.current
        for slot in world.slots.values()
        if slot.role is m.Role.WORKER and slot.name not in places and not slot.is_surplus
    ]
    return [*map(str, here), *missing]


def _all_matched(readers: list[list[int]]) -> bool:
    """Is there a process for each rank, each for one (augmenting paths)?"""
    rank_of: dict[int, int] = {}

    def give(rank: int, asked: set[int]) -> bool:
        for process in readers[rank]:
            if process in asked:
                continue
            asked.add(process)
            if process not in rank_of or give(rank_of[process], asked):
                rank_of[process] = rank
                return True
        return False

    return all(give(rank, set()) for rank in range(len(readers)))


def unnamed(world: World) -> list[str]:
    """Standbys that were here when the job ended, and are not named in its reason. One that was never asked has declined nothing."""
    job = world.store.job
    assert job is not None, "it has failed"
    slots = {one.node_id: one.slot for one in world.store.all(SlotRecord)}
    return [
        str(one.node_id)
        for one in world.store.all(NodeRecord)
        if one.state is NodeState.LIVE and slots.get(one.node_id, one.node_id) == ""
        if f"{one.node_id} did not take the rank of" not in job.reason
    ]
