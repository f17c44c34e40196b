"""Ranks that must hold the same and are found not to: their save is not committed, and training goes back to the newest step that all hold.

What they hold is compared by their files' joint digests, so it is all one whether the scheduler or a rank was started again in between. Where the
same comes of it when the steps are done again, training itself makes the ranks differ: that is said, and nothing is compared any more in this run.
"""

from __future__ import annotations

from collections.abc import Mapping

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Log
from recovery.core.ids import Rank
from recovery.core.policy import replica_difference
from recovery.core.policy.next_plan import Facts
from recovery.core.policy.replica_difference import APART, NAMES_CHARS, Difference
from recovery.core.records import CheckpointState, EventKind, JobState, Record, to_record
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.state import SchedulerState

_UNCOMPARED = "nothing is compared from here on in this run (MS_COMPARE_REPLICAS=0: from the first save on)"
_OF_TRAINING = (
    f"; the same came of it when the steps were done again, so training makes them differ, and {_UNCOMPARED}"
)
_NONE_ALIKE = (
    f"; there is no step left in which they do not, so it is taken for training's doing, and {_UNCOMPARED}"
)
_NOT_COMMITTED = "; it was not committed, and is not gone back to"


def find_difference(state: SchedulerState, rank: Rank, report: m.CheckpointReport) -> Difference | None:
    """Note what a rank's save holds. Where it is the last one of its step: how the ranks differ; None: they do not, or that is not known."""
    watch, held = state.replicas, report.checkpoint
    if report.replica and not state.checkpoints.replicas_apart:
        watch.note(state.job.generation, held.step, rank, report.replica)
    digests = state.checkpoints.replicas_with(rank, held)
    found = _difference(state, held.step, digests)
    if found is None and digests and all(digests.values()):
        watch.agreed(held.generation, held.step)
    return found


def _difference(state: SchedulerState, step: int, digests: Mapping[Rank, str]) -> Difference | None:
    """The files decide. What the ranks have told beside them names the tensors."""
    found = replica_difference.difference_of_digests(digests)
    said = state.replicas.said(step)
    if found is None or len(said) < state.rules.world_size:
        return found
    return replica_difference.difference(said) or found


def tell(
    state: SchedulerState, found: Difference, rank: Rank, held: m.HeldCheckpoint
) -> tuple[list[Record], bool]:
    """Say that the ranks differ; the rows, and whether the step counts all the same. Else its generation ends by that."""
    watch, digests = state.replicas, state.checkpoints.replicas_with(rank, held)
    is_of_training = watch.is_of_training(held.generation, digests)
    event = state.event(
        EventKind.REPLICAS_DIFFER,
        generation=state.job.generation,
        step=held.step,
        reason=found.sentence + (_OF_TRAINING if is_of_training else ""),
    )
    if is_of_training or not state.rules.recovery_enabled:
        state.checkpoints.let_replicas_differ()
        return [event], True
    watch.refuse(held.generation, held.step, digests)
    # Of a rank that is right as well: the scheduler's next process sees from the rows what was refused.
    rows: list[Record] = [] if rank in found.ranks else [state.checkpoints.record_of(rank, held)]
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


def tell_held(state: SchedulerState, facts: Facts) -> list[Record]:
    """Before a plan: say of a step whose last report never came, since its rank was started again, that its files differ. Then the facts are others."""
    differing = facts.differing_steps
    newer = differing if facts.are_apart else [step for step in differing if step > facts.alike_step]
    if not newer:
        return []
    step = newer[-1] if facts.are_apart else newer[0]
    digests = {rank: held.replica for rank, held in sorted(facts.held[step].items())}
    found = _difference(state, step, digests)
    assert found is not None, "its digests differ"
    generation = max(held.generation for held in facts.held[step].values())
    is_of_training = state.replicas.is_of_training(generation, digests)
    because = _OF_TRAINING if is_of_training else _NONE_ALIKE if facts.are_apart else _NOT_COMMITTED
    if is_of_training or facts.are_apart:
        state.checkpoints.let_replicas_differ()
    else:
        state.replicas.refuse(generation, step, digests)
    return [
        state.event(
            EventKind.REPLICAS_DIFFER,
            generation=state.job.generation,
            step=step,
            reason=f"{found.sentence}{because}",
        )
    ]


def tell_uncompared(state: SchedulerState, step: int) -> list[SchedulerEffect]:
    """Say once that a step is committed of which only some ranks' files say what they hold, or name other tensors than the others'."""
    watch = state.replicas
    digests = [held.replica for held in state.checkpoints.files_of(step)]
    said = {digest[:NAMES_CHARS] for digest in digests}
    if len(said) <= 1 or APART in said or watch.told_uncompared:
        return []
    watch.told_uncompared = True
    text = (
        f"step {step} is committed, and not all ranks' checkpoints were compared: {digests.count('')} of {len(digests)} say nothing of what must be alike "
        "(another release, MS_COMPARE_REPLICAS=0), or they name other tensors than the others. It is said once"
    )
    return [Log("replicas_not_compared", text, warning=True)]
