"""What was this job? Its workers report it when its scheduler's store is lost: its numbers, its ranks and where its plans began.

Everything else goes on by the ordinary rules. Nothing is guessed towards step 0: where a worker has ever saved, the plan counts a step as
committed and stops rather than start over.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Union

import msgspec

from recovery.core.causes import Cause
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.messages import GenerationStart, HeldCheckpoint, JobHistory
from recovery.core.policy import rollback
from recovery.core.policy.ranks import natural_key
from recovery.core.records import (
    CheckpointRecord,
    CheckpointState,
    GenerationRecord,
    JobRecord,
    NodeRecord,
    to_record,
)
from recovery.core.tiers import tier_of
from recovery.core.tokens import token_digest

REPORTED = "reported by the workers"
NOT_KNOWN = "rebuilt: whether all ranks held it is not known"
OF_REBUILT_STORE = "its scheduler's store was rebuilt"
"""Why a node is in its state that has not come since."""
UNSURE = "; not known: "
"""What follows it in the details of the event of a rebuild, nobody has known."""
NUMBERS_PER_REBUILD = 1_000
NUMBERS_LEFT_FREE = 100
STORES_TOLD_APART = 1_000
"""Of two stores that are built again from the same reports, and of which the second meets nobody who was given a plan by the first, one in so
many goes on at the same number. At ten times it numbers get seven digits; at a tenth of it one in a hundred is given twice."""


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
    """Of those who are here: the newest holder of each rank."""
    reports: Mapping[NodeId, JobHistory]
    """Of this job, whoever has said it. Those of an older run count only for the numbers."""
    generations: tuple[GenerationRecord, ...]
    """Where the plans of the run began that a worker knows: no step that one of them rolled back is gone back to."""
    checkpoints: tuple[CheckpointRecord, ...]
    unsure: tuple[str, ...]
    """Ranks whose last holder may not have reported: which, and how far each is known. That may cost steps, its place, or a number twice."""

    def missing(self) -> list[int]:
        """Ranks of which no worker has reported."""
        return sorted(set(range(self.worker_count)) - set(self.ranks.values()))

    def report(self, *unsure: str) -> str:
        """What was taken from where, and what nobody knew, for the event log; `unsure`: what else."""
        of_each = "; ".join(
            f"{node_id}: rank {past.rank}, generation {past.generation}, {_steps(past)}"
            for node_id, past in sorted(self.reports.items(), key=lambda item: natural_key(item[0]))
        )
        unsure += self.unsure
        if any(record.reason for record in self.checkpoints):
            unsure += ("whether any step was ever held by all ranks: taken for so, since some have saved",)
        return f"{of_each}{UNSURE}{'; '.join(unsure)}" if unsure else of_each


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
    reports: Mapping[NodeId, JobHistory], here: Collection[NodeId] | None = None
) -> Union[Rebuilt, Unclear]:
    """Put together what the workers know; at least one has said it.

    Args:
        reports: by node id.
        here: who of them can hold a rank; None: all. Of the others the numbers and plans were given, and they have saved what they have saved.

    Source: docs/design/store.md "A store that is lost".
    """
    here = reports.keys() if here is None else here
    jobs = {reports[node_id].job: node_id for node_id in here or reports}
    if len(jobs) > 1:
        named = ", ".join(f"{job} ({node_id})" for job, node_id in sorted(jobs.items()))
        return Unclear(f"workers know {len(jobs)} different jobs: {named}")
    of_job = {node_id: past for node_id, past in sorted(reports.items()) if past.job in jobs}
    run = max(past.run for past in of_job.values())
    of_run = {node_id: past for node_id, past in of_job.items() if past.run == run}
    knows_most = max(of_run, key=lambda node_id: of_run[node_id].generation)
    newest = of_run[knows_most]
    for node_id, past in of_run.items():
        if past.worker_count != newest.worker_count or past.rank >= newest.worker_count:
            had = f"rank {past.rank} of {past.worker_count} workers"
            return Unclear(f"{node_id} was {had}, and {knows_most} knows {newest.worker_count} workers")
    ranks = _holders({node_id: past for node_id, past in of_run.items() if node_id in here})
    holders = [of_run[node_id] for node_id in ranks]
    generations = _generations(run, of_run.values())
    known = {past.rank: past.generation for past in holders}
    unsure = [
        f"rank {rank} is known only up to generation {known[rank]} of {newest.generation}"
        for rank in sorted(known)
        if known[rank] < newest.generation
    ]
    unsure += [
        f"nobody knows who was rank {rank}"
        for rank in map(Rank, range(newest.worker_count))
        if rank not in known
    ]
    return Rebuilt(
        job=newest.job,
        worker_count=newest.worker_count,
        server_count=newest.server_count,
        run=run,
        generation=max(newest.generation, *(record.generation for record in generations), Generation(0)),
        scheduler_incarnation=max(past.scheduler_incarnation for past in of_job.values()),
        ranks=ranks,
        reports=of_job,
        generations=generations,
        checkpoints=_checkpoints(newest.worker_count, holders, of_run.values(), generations),
        unsure=tuple(unsure),
    )


def slot_names(wanted: Mapping[NodeId, str]) -> dict[NodeId, str]:
    """How the slot of each node is called: as it is wanted, but no two by one name, and none by the id of a node that has another one."""
    names: dict[NodeId, str] = {}
    taken: set[str] = set()
    for node_id, name in wanted.items():
        is_of_another = name in taken or (name != node_id and name in wanted)
        names[node_id] = node_id if is_of_another else name
        taken.add(names[node_id])
    return names


def thousands_skipped(job: str) -> int:
    """How many thousands of numbers a store leaves out that was of this job while it was new: the id is of that store alone.

    One number of two worlds would make one history of both their files: what each rank saved in it is not rolled back by the other's plan.
    """
    return int(token_digest(job), 16) % STORES_TOLD_APART


def first_number_after(newest: Generation, skipped: int = 0) -> Generation:
    """The number of the first plan of a store that was built again: the next thousand that leaves a hundred numbers free, and `skipped` on.

    The plans that only nodes have received which did not come have numbers above the newest that is known. None of them is given again, and
    what was saved in them is older than this plan, or newer, and never of the same number.
    """
    thousand = math.ceil((newest + NUMBERS_LEFT_FREE) / NUMBERS_PER_REBUILD) + skipped
    return Generation(thousand * NUMBERS_PER_REBUILD)


def _steps(past: JobHistory) -> str:
    return (
        f"holds steps {', '.join(str(held.step) for held in reversed(past.held))}"
        if past.held
        else "holds nothing"
    )


def _holders(pasts: Mapping[NodeId, JobHistory]) -> dict[NodeId, Rank]:
    """Of each rank its newest holder; of the processes of one place, which know the same, who held it itself, or was started last."""
    last: dict[Rank, NodeId] = {}
    for node_id in sorted(
        pasts, key=lambda name: (pasts[name].generation, not pasts[name].noted_by, natural_key(name))
    ):
        last[pasts[node_id].rank] = node_id
    return {node_id: rank for rank, node_id in last.items()}


def _generations(run: RunId, pasts: Iterable[JobHistory]) -> tuple[GenerationRecord, ...]:
    """Every plan that somebody received, and where one that nobody remembers began: below whatever was saved in it.

    Of the files of one step only those of one generation stay then, and these are of one history.
    """
    began: dict[Generation, GenerationStart] = {}
    lowest: dict[Generation, HeldCheckpoint] = {}
    for past in pasts:
        for start in past.began:
            began[start.generation] = min(start, began.get(start.generation, start), key=lambda one: one.step)
        for held in past.held:
            lowest[held.generation] = min(held, lowest.get(held.generation, held), key=lambda one: one.step)
    for generation in lowest.keys() - began.keys():
        step = lowest[generation].step - 1
        began[generation] = GenerationStart(generation=generation, step=step, epoch=0, step_in_epoch=0)
    return tuple(
        GenerationRecord(
            run=run,
            **msgspec.structs.asdict(began[number]),
            because=REPORTED,
            ended=REPORTED,
            cause=Cause.STORE_REBUILT,
        )
        for number in sorted(began)
    )


def _checkpoints(
    worker_count: int,
    holders: Iterable[JobHistory],
    everybody: Iterable[JobHistory],
    generations: tuple[GenerationRecord, ...],
) -> tuple[CheckpointRecord, ...]:
    """What the holders of the ranks hold. Where nothing proves that a step was ever held by all, whatever was saved counts as such."""
    held = [(past.rank, one) for past in holders for one in rollback.in_lineage(past.held, generations)]
    common = rollback.common_steps(rollback.by_step(held), worker_count)
    on_disks = rollback.by_step((rank, one) for rank, one in held if _lasts(one))
    in_memory = {one.step for _, one in held if not _lasts(one)}
    # A plan that went to a step in memory says nothing of disks.
    planned = any(record.step and record.step not in in_memory for record in generations)
    is_proven = planned or bool(rollback.common_steps(on_disks, worker_count))
    rows = [
        to_record(
            rank,
            one,
            CheckpointState.COMMITTED if one.step in common or not is_proven else CheckpointState.PUBLISHED,
            "" if is_proven else NOT_KNOWN,
        )
        for rank, one in held
    ]
    if is_proven:
        return tuple(rows)
    found = {(row.rank, row.step) for row in rows}
    noted = {(past.rank, step): past for past in everybody if (step := _newest_saved(past))}
    return (*rows, *(_noted(past) for key, past in noted.items() if key not in found))


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
