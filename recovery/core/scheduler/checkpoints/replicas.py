"""Ranks that must hold the same and are found not to: their save is not committed, and training goes back to the newest step that all hold.

Where the same comes of it when the steps are done again, training itself makes the ranks differ: that is said, and this process of the scheduler
compares nothing any more.
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Log
from recovery.core.ids import Rank
from recovery.core.policy import replica_difference
from recovery.core.policy.replica_difference import Difference
from recovery.core.records import CheckpointState, EventKind, JobState, Record, to_record
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.state import SchedulerState

_OF_TRAINING = (
    "; the same came of it when the steps were done again, so training makes them differ, and nothing is compared from here on "
    "(MS_COMPARE_REPLICAS=0: from the first save on)"
)


def find_difference(state: SchedulerState, rank: Rank, report: m.CheckpointReport) -> Difference | None:
    """Note what a rank's save holds. Where it is the last one of its step: how the ranks differ; None: they do not, or that is not known."""
    watch, step = state.replicas, report.checkpoint.step
    if not watch.compares or not report.replica:
        return None
    watch.note(state.job.generation, step, rank, report.replica)
    said = watch.said[step]
    others = (other for other in said if other != rank)
    if len(said) < state.rules.world_size or any(
        state.checkpoints.file_of(other, step) is None for other in others
    ):
        return None
    found = replica_difference.difference(said)
    if found is None:
        watch.agreed(step)
    return found


def tell(
    state: SchedulerState, found: Difference, rank: Rank, held: m.HeldCheckpoint
) -> tuple[list[Record], bool]:
    """Say that the ranks differ; the rows, and whether the step counts all the same. Else its generation ends by that."""
    watch = state.replicas
    is_of_training = watch.is_of_training(held.step)
    event = state.event(
        EventKind.REPLICAS_DIFFER,
        generation=state.job.generation,
        step=held.step,
        reason=found.sentence + (_OF_TRAINING if is_of_training else ""),
    )
    if is_of_training or not state.rules.recovery_enabled:
        watch.compares = False
        return [event], True
    watch.refuse(held.step)
    rows: list[Record] = []
    for odd in found.ranks:
        bad = held if odd == rank else state.checkpoints.file_of(odd, held.step)
        assert bad is not None, "every rank has saved the step"
        state.checkpoints.refuse(odd, bad)
        rows.append(to_record(odd, bad, CheckpointState.INVALID, found.sentence[:1024]))
    reason = f"the ranks do not hold the same at step {held.step}: {found.sentence}"
    if state.job.state is JobState.INTERRUPTED:
        # A loss came first. That no memory is trusted is known to a later process of the scheduler by this.
        rows += state.name_cause(reason, Cause.REPLICAS_DIFFER, "")
    state.facts.fail(reason, cause=Cause.REPLICAS_DIFFER)
    return [*rows, event], False


def tell_uncompared(state: SchedulerState, step: int) -> list[SchedulerEffect]:
    """Say once that a step is committed of which only some ranks have told what they hold: they or the scheduler were started again meanwhile."""
    watch = state.replicas
    missing = state.rules.world_size - len(watch.said.get(step, ()))
    if not watch.compares or watch.told_uncompared or not 0 < missing < state.rules.world_size:
        return []
    watch.told_uncompared = True
    text = (
        f"step {step} is committed, and {missing} of {state.rules.world_size} ranks have not told what they hold: started again since, or without "
        "MS_COMPARE_REPLICAS=1. It is said once"
    )
    return [Log("replicas_not_compared", text, warning=True)]
