"""What was this job? Its workers report it when its scheduler's store is lost: together they know what it knew.

Nothing is guessed towards step 0: where a worker has ever saved, the plan counts a step as committed and stops rather than start over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Union

import msgspec

from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import GenerationStart, HeldCheckpoint, JobHistory
from recovery.core.policy import ranks, rollback
from recovery.core.records import (
    CheckpointRecord,
    CheckpointState,
    GenerationRecord,
    JobRecord,
    NodeRecord,
    to_record,
)
from recovery.core.tiers import tier_of

REPORTED = "reported by the workers"
NOT_KNOWN = "rebuilt: whether all ranks held it is not known"
OF_REBUILT_STORE = "its scheduler's store was rebuilt"
"""Why a node is in its state that has not come since."""
NUMBERS_PER_REBUILD = 1_000
NUMBERS_LEFT_FREE = 100
_NOBODY: Mapping[NodeId, JobHistory] = {}


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """The job as it was."""

    job: str
    worker_count: int
    server_count: int
    run: RunId
    generation: Generation
    """The newest that any worker knows: numbers only rise."""
    scheduler_incarnation: Incarnation
    ranks: Mapping[NodeId, Rank]
    incarnations: Mapping[NodeId, Incarnation]
    """Also of those that have no rank, or are gone."""
    generations: tuple[GenerationRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    guesses: tuple[str, ...]
    """What nobody could say, and what was taken instead."""
    unsure_ranks: tuple[str, ...] = ()
    """Ranks whose last holder may not have reported: which, and how far each is known. That may cost steps, its place, or a number twice."""

    def missing(self) -> list[int]:
        """Ranks of which no worker has reported."""
        return sorted(set(range(self.worker_count)) - set(self.ranks.values()))


class Unclear(msgspec.Struct, frozen=True):
    """The workers contradict each other: a person has to say which of them is right."""

    reason: str


def past_of(
    job: JobRecord,
    node: NodeRecord,
    generations: Iterable[GenerationRecord],
    saved: Iterable[CheckpointRecord],
) -> JobHistory:
    """What one worker knows, from the rows of its own store.

    Args:
        job: as the newest plan named it.
        node: its own row.
        generations: the plans that it received.
        saved: what it has noted to have saved; what it holds is for a scan of its directories to say.
    """
    # Newer generations are of another job that the store served before.
    began = (
        rollback.start_of(record)
        for record in generations
        if record.run == job.run and record.generation <= job.generation
    )
    return JobHistory(
        job=job.job,
        run=job.run,
        rank=node.rank if node.rank is not None else Rank(0),
        worker_count=job.worker_count,
        server_count=job.server_count,
        incarnation=node.incarnation,
        generation=job.generation,
        scheduler_incarnation=job.scheduler_incarnation,
        began=tuple(began),
        saved_step=max(
            (checkpoint.step for checkpoint in saved if checkpoint.run == job.run and _lasts(checkpoint)),
            default=0,
        ),
    )


def rebuild(
    pasts: Mapping[NodeId, JobHistory], gone: Mapping[NodeId, JobHistory] = _NOBODY
) -> Union[Rebuilt, Unclear]:
    """Put together what the workers know; at least one does, here or gone.

    Args:
        pasts: by node id. Those of an older run count only for the numbers.
        gone: of nodes that have said it and are not here any more. Each holds no rank and no file; its numbers and plans were given, and it has
            saved what it has saved.

    Source: docs/design/store.md "A store that is lost".
    """
    jobs = {past.job: node_id for node_id, past in (pasts or gone).items()}
    if len(jobs) > 1:
        named = ", ".join(f"{job} ({node_id})" for job, node_id in sorted(jobs.items()))
        return Unclear(f"workers know {len(jobs)} different jobs: {named}")
    everybody = [*pasts.values(), *(past for past in gone.values() if past.job in jobs)]
    run = max(past.run for past in everybody)
    current = {node_id: past for node_id, past in sorted(pasts.items()) if past.run == run}
    left = {node_id: past for node_id, past in gone.items() if past.job in jobs and past.run == run}
    newest = max((*current.values(), *left.values()), key=lambda past: past.generation)
    current, replaced = _holders(current)
    clashes = (
        _clash(known, newest.worker_count)
        for known in (current, *({node_id: left[node_id]} for node_id in left))
    )
    clash = next(filter(None, clashes), "")
    if clash:
        return Unclear(clash)
    known = {node_id: past.rank for node_id, past in current.items()}
    generations, guesses = _generations(run, (*current.values(), *left.values()))
    guesses += [*replaced, *(f"{node_id} has said so and is gone, with its files" for node_id in left)]
    guesses += [
        f"{node_id} knows only run {past.run} of {run}" for node_id, past in pasts.items() if past.run != run
    ]
    checkpoints, unsure = _checkpoints(newest.worker_count, current, left.values(), generations)
    built = Rebuilt(
        job=newest.job,
        worker_count=newest.worker_count,
        server_count=newest.server_count,
        run=run,
        generation=Generation(
            max(
                newest.generation,
                *(record.generation for record in checkpoints),
                *(record.generation for record in generations),
                0,
            )
        ),
        scheduler_incarnation=max(past.scheduler_incarnation for past in everybody),
        ranks=known,
        incarnations={
            node_id: past.incarnation for node_id, past in (*pasts.items(), *gone.items()) if past.job in jobs
        },
        generations=generations,
        checkpoints=checkpoints,
        guesses=(*guesses, *unsure),
    )
    lost = [f"nobody knows who was rank {rank}" for rank in built.missing()]
    behind = [
        _known_up_to(past.rank, past.generation, newest.generation)
        for past in sorted(current.values(), key=lambda past: past.rank)
        if past.generation < newest.generation
    ]
    unsure_ranks = (*behind, *lost)
    guessed = (*built.guesses, *unsure_ranks)
    return msgspec.structs.replace(built, guesses=guessed, unsure_ranks=unsure_ranks)


def _known_up_to(rank: Rank, generation: int, newest: int) -> str:
    return f"rank {rank} is known only up to generation {generation} of {newest}"


def first_number_after(newest: Generation) -> Generation:
    """The number of the first plan of a store that was built again: the next thousand that leaves a hundred numbers free.

    The plans that only nodes have received which did not come have numbers above the newest that is known. None of them is given again, and
    what was saved in them is older than this plan.
    """
    return Generation(math.ceil((newest + NUMBERS_LEFT_FREE) / NUMBERS_PER_REBUILD) * NUMBERS_PER_REBUILD)


def guesses_of(
    job: JobRecord, nodes: Iterable[NodeRecord], checkpoints: Iterable[CheckpointRecord]
) -> tuple[str, ...]:
    """What a rebuilt store still rests on, as sentences: what its rows do not know of nodes that have not come since.

    Args:
        job: as it is stored.
        nodes: those that hold a rank.
        checkpoints: its index, of this run.
    """
    behind = sorted(
        (node.rank, node.generation)
        for node in nodes
        if node.reason == OF_REBUILT_STORE
        if node.rank is not None and node.generation < job.generation
    )
    guesses = [
        f"{_known_up_to(rank, generation, job.generation)}: a later holder of it may have newer files"
        for rank, generation in behind
    ]
    if any(record.reason == NOT_KNOWN for record in checkpoints):
        guesses.append("whether any step was ever held by all ranks is not known: taken for so")
    return tuple(guesses)


def report(built: Rebuilt, pasts: Mapping[NodeId, JobHistory]) -> str:
    """What was taken from where, and what nobody knew, for the event log."""
    of_each = "; ".join(
        f"{node_id}: rank {past.rank}, generation {past.generation}, "
        + (
            f"holds steps {', '.join(str(held.step) for held in reversed(past.held))}"
            if past.held
            else "holds nothing"
        )
        for node_id, past in sorted(pasts.items(), key=lambda item: ranks.natural_key(item[0]))
    )
    guessed = f"; not known: {'; '.join(built.guesses)}" if built.guesses else ""
    return f"{of_each}{guessed}"


def _holders(pasts: Mapping[NodeId, JobHistory]) -> tuple[dict[NodeId, JobHistory], list[str]]:
    """Of one rank the newest holder, and the nodes that had it before: a standby has taken the rank over.

    Of the processes of one place, which know the same, the one that held it itself; else the one that was started last.
    """
    newest: dict[Rank, int] = {}
    for past in pasts.values():
        newest[past.rank] = max(newest.get(past.rank, 0), past.generation)
    last = {node_id: past for node_id, past in pasts.items() if past.generation == newest[past.rank]}
    themselves = {past.rank for past in last.values() if not past.noted_by}
    started_last: dict[Rank, NodeId] = {}
    for node_id in sorted(last, key=ranks.natural_key):
        if last[node_id].rank not in themselves:
            started_last[last[node_id].rank] = node_id
    holders = {
        node_id: past
        for node_id, past in last.items()
        if started_last.get(past.rank, node_id) == node_id and not (past.noted_by and past.rank in themselves)
    }
    replaced = [
        f"{node_id} was rank {past.rank} up to generation {past.generation}, when another took it over"
        for node_id, past in pasts.items()
        if past.generation < newest[past.rank]
    ]
    return holders, replaced


def _clash(pasts: Mapping[NodeId, JobHistory], worker_count: int) -> str:
    of_rank: dict[Rank, NodeId] = {}
    for node_id, past in pasts.items():
        if past.worker_count != worker_count:
            return f"workers know different numbers of workers: {past.worker_count} ({node_id}) and {worker_count}"
        if past.rank >= worker_count:
            return f"{node_id} was rank {past.rank} of {worker_count} workers"
        if past.rank in of_rank:
            return f"{of_rank[past.rank]} and {node_id} were both rank {past.rank}"
        of_rank[past.rank] = node_id
    return ""


def _generations(run: RunId, pasts: Iterable[JobHistory]) -> tuple[tuple[GenerationRecord, ...], list[str]]:
    """Every plan that somebody received, and where one that nobody remembers began: below whatever was saved in it.

    Of the files of one step only those of one generation stay then, and these are of one history.
    """
    began: dict[int, GenerationStart] = {}
    lowest_saved: dict[int, int] = {}
    newest = 0
    for past in pasts:
        newest = max(newest, past.generation)
        for start in past.began:
            if start.generation not in began or start.step < began[start.generation].step:
                began[start.generation] = start
        for held in past.held:
            newest = max(newest, held.generation)
            lowest_saved[held.generation] = min(held.step, lowest_saved.get(held.generation, held.step))
    guesses = []
    for generation in range(1, newest + 1):
        if generation in began:
            continue
        if generation in lowest_saved:
            step = lowest_saved[generation] - 1
            began[generation] = GenerationStart(
                generation=Generation(generation), step=step, epoch=0, step_in_epoch=0
            )
            guesses.append(f"where generation {generation} began, taken for step {step}")
    records = (
        GenerationRecord(
            run=run,
            generation=start.generation,
            step=start.step,
            epoch=start.epoch,
            step_in_epoch=start.step_in_epoch,
            because=REPORTED,
            ended=REPORTED,
        )
        for start in sorted(began.values(), key=lambda start: start.generation)
    )
    return tuple(records), guesses


def _checkpoints(
    worker_count: int,
    pasts: Mapping[NodeId, JobHistory],
    gone: Iterable[JobHistory],
    generations: tuple[GenerationRecord, ...],
) -> tuple[tuple[CheckpointRecord, ...], list[str]]:
    held = {past.rank: rollback.in_lineage(past.held, generations) for past in pasts.values()}
    all_held = [(rank, file) for rank, files in held.items() for file in files]
    common = set(rollback.common_steps(rollback.by_step(all_held), worker_count))
    on_disks = rollback.by_step((rank, file) for rank, file in all_held if _lasts(file))
    durable = rollback.common_steps(on_disks, worker_count)
    in_memory = {file.step for _, file in all_held if not _lasts(file)}
    # A plan that went to a step in memory says nothing of disks.
    proven = bool(durable) or any(record.step and record.step not in in_memory for record in generations)
    saved = [past for past in (*pasts.values(), *gone) if _newest_saved(past)]
    guesses = []
    if saved and not proven:
        guesses.append("whether any step was ever held by all ranks: taken for so, since some have saved")
    records = [
        to_record(
            rank,
            file,
            CheckpointState.COMMITTED if file.step in common or not proven else CheckpointState.PUBLISHED,
            reason="" if proven else NOT_KNOWN,
        )
        for rank, file in all_held
    ]
    if not proven:
        there = {(record.rank, record.step) for record in records}
        noted = {(past.rank, _newest_saved(past)): past for past in saved}
        records += [_noted(past) for key, past in noted.items() if key not in there]
    return tuple(records), guesses


def _newest_saved(past: JobHistory) -> int:
    return max(past.saved_step, *(held.step for held in past.held if _lasts(held)), 0)


def _lasts(saved: HeldCheckpoint | CheckpointRecord) -> bool:
    """Was it saved on a disk? What is gone with the memory of a host was never promised."""
    return tier_of(saved.path).is_durable


def _noted(past: JobHistory) -> CheckpointRecord:
    """A save that a worker has noted and whose file it does not find: it keeps the plan from step 0."""
    return CheckpointRecord(
        run=past.run,
        step=_newest_saved(past),
        rank=past.rank,
        generation=past.generation,
        epoch=0,
        step_in_epoch=0,
        path="",
        digest="",
        file_bytes=0,
        state=CheckpointState.COMMITTED,
        reason="rebuilt: its worker has noted it and does not find the file",
    )
