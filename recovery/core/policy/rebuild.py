"""What was this job? Its workers report it when its scheduler's store is lost: its numbers, its ranks and where its plans began.

Everything else goes on by the ordinary rules, also which step training goes on from. Nothing is guessed towards step 0: where nothing shows that a
step was held by all, whatever a worker has saved counts as such, and the plan stops rather than start over.
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
from recovery.core.records import CheckpointRecord, CheckpointState, GenerationRecord, JobRecord, NodeRecord
from recovery.core.tiers import tier_of
from recovery.core.tokens import token_digest

REPORTED = "reported by the workers"
NOT_KNOWN = "rebuilt: its worker has saved it, and whether all ranks have is not known"
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
    """Saves that count as committed, since nothing shows that any other step was."""
    unsure: tuple[str, ...]
    """Ranks whose last holder may not have reported: which, and how far each is known. That may cost steps, its place, or a number twice."""

    @property
    def report(self) -> str:
        """What was taken from where, and what nobody knew, for the event log."""
        of_each = "; ".join(
            f"{node_id}: rank {past.rank}, generation {past.generation}, {_steps(past)}"
            for node_id, past in sorted(self.reports.items(), key=lambda item: natural_key(item[0]))
        )
        unsure = [*self.unsure]
        if self.checkpoints:
            unsure.append("whether any step was ever held by all ranks: taken for so, since some have saved")
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
        f"nobody knows who was rank {rank}" for rank in range(newest.worker_count) if rank not in known
    ]
    return Rebuilt(
        job=newest.job,
        worker_count=newest.worker_count,
        run=run,
        generation=max(newest.generation, *(record.generation for record in generations), Generation(0)),
        scheduler_incarnation=max(past.scheduler_incarnation for past in of_job.values()),
        ranks=ranks,
        reports=of_job,
        generations=generations,
        checkpoints=_taken_for_committed(newest.worker_count, holders, of_run.values(), generations),
        unsure=tuple(unsure),
    )


def thousands_skipped(job: str) -> int:
    """How many thousands of numbers a store leaves out that was of this job while it was new: the id is of that store alone.

    One number of two worlds would make one history of both their files: what each rank saved in it is not rolled back by the other's plan.
    """
    return int(token_digest(job), 16) % STORES_TOLD_APART


def first_number_after(newest: Generation, skipped: int) -> Generation:
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


def _taken_for_committed(
    worker_count: int,
    holders: Iterable[JobHistory],
    everybody: Iterable[JobHistory],
    generations: tuple[GenerationRecord, ...],
) -> tuple[CheckpointRecord, ...]:
    """The newest that anybody has saved, where no step is held by all on disks."""
    held = [(past.rank, one) for past in holders for one in rollback.in_lineage(past.held, generations)]
    on_disks = rollback.by_step((rank, one) for rank, one in held if _lasts(one))
    newest = max(everybody, key=_newest_saved)
    if rollback.common_steps(on_disks, worker_count) or not _newest_saved(newest):
        return ()
    row = CheckpointRecord(
        run=newest.run,
        step=_newest_saved(newest),
        rank=newest.rank,
        generation=newest.generation,
        epoch=0,
        step_in_epoch=0,
        path="",
        digest="",
        file_bytes=0,
        state=CheckpointState.COMMITTED,
        reason=NOT_KNOWN,
    )
    return (row,)


def _newest_saved(past: JobHistory) -> int:
    return max(past.saved_step, *(held.step for held in past.held if _lasts(held)), 0)


def _lasts(saved: HeldCheckpoint | CheckpointRecord) -> bool:
    """Was it saved on a disk? What is gone with the memory of a host was never promised."""
    return tier_of(saved.path).is_durable
