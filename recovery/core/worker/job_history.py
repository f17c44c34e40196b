"""What a worker remembers of its job: for its own store, and for a scheduler that has lost its own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.policy.ranks import natural_key
from recovery.core.records import GenerationRecord, JobRecord, JobState, NodeRecord, Record
from recovery.core.rules import Rules

BEGAN_MAX = 1_000
"""Plans that are remembered: 60 KB, of a message of at most 1 MiB. Where an older one began, its files say (policy/rebuild.py)."""


class JobHistoryRecorder:
    """The newest plan that this process was given, and where the earlier ones of its run began."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.past: m.JobHistory | None = None

    @property
    def job(self) -> str:
        """Of the newest plan; empty for none."""
        return self.past.job if self.past is not None else ""

    def note(
        self, plan: m.Rollback, admitted: m.Admitted, rules: Rules, node: NodeRecord
    ) -> tuple[Record, ...]:
        """A plan has come: the rows from which a scheduler's store can be built again."""
        began = m.GenerationStart(
            generation=plan.generation, step=plan.step, epoch=plan.epoch, step_in_epoch=plan.step_in_epoch
        )
        before = self.past
        same_run = before is not None and (before.job, before.run) == (admitted.job, plan.run)
        self.past = m.JobHistory(
            job=admitted.job,
            run=plan.run,
            rank=plan.rank,
            worker_count=rules.worker_count,
            server_count=rules.server_count,
            incarnation=admitted.incarnation,
            generation=plan.generation,
            scheduler_incarnation=admitted.scheduler_incarnation,
            began=(*(before.began if before is not None and same_run else ()), began)[-BEGAN_MAX:],
        )
        job = JobRecord(
            job=admitted.job,
            worker_count=rules.worker_count,
            server_count=rules.server_count,
            run=plan.run,
            state=JobState.RUNNING,
            generation=plan.generation,
            scheduler_incarnation=admitted.scheduler_incarnation,
        )
        generation = GenerationRecord(
            run=plan.run,
            generation=plan.generation,
            step=plan.step,
            epoch=plan.epoch,
            step_in_epoch=plan.step_in_epoch,
            because=plan.because,
        )
        return job, node, generation


def joined(past: m.JobHistory, of_store: m.JobHistory | None) -> m.JobHistory:
    """What a process remembers, with what its node's store holds of the same job and run: the store knows earlier incarnations too."""
    if of_store is None or (of_store.job, of_store.run) != (past.job, past.run):
        return past
    began = {start.generation: start for start in (*of_store.began, *past.began)}
    return msgspec.structs.replace(
        past,
        incarnation=max(past.incarnation, of_store.incarnation),
        generation=max(past.generation, of_store.generation),
        scheduler_incarnation=max(past.scheduler_incarnation, of_store.scheduler_incarnation),
        began=tuple(began[number] for number in sorted(began))[-BEGAN_MAX:],
        saved_step=max(past.saved_step, of_store.saved_step),
    )


def of_slot(own: m.JobHistory | None, others: Mapping[NodeId, m.JobHistory]) -> m.JobHistory | None:
    """What the ids of one place know together: the newest plan that any of them was given, and where the earlier ones began.

    The launcher gives a process there a fresh id after each loss: `others` are those beside that of the one that asks.
    """
    named = {
        name: msgspec.structs.replace(others[name], noted_by=name)
        for name in sorted(others, key=natural_key, reverse=True)
        if not _trained_beside(own, others[name])
    }
    known = ([own] if own is not None else []) + list(named.values())
    if not known:
        return None
    of_job = [past for past in known if past.job == known[0].job]
    newest = max(of_job, key=lambda past: (past.run, past.generation))
    for past in of_job:
        # What the others noted of another rank's files is not of this one.
        of_rank = past.saved_step if past.rank == newest.rank else 0
        newest = joined(newest, msgspec.structs.replace(past, saved_step=of_rank))
    return newest


def _trained_beside(own: m.JobHistory | None, other: m.JobHistory) -> bool:
    """Did both follow one plan, as two ranks? Then `node.2` is no later id of `node`'s slot: a person has called two workers so."""
    if own is None or (own.job, own.run) != (other.job, other.run) or own.rank == other.rank:
        return False
    plans = {start.generation for start in own.began}
    return any(start.generation in plans for start in other.began)
