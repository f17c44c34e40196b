"""A rank cannot use what its plan goes back to."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.records import CheckpointState, EventKind, Record, to_record
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.generations import live
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def on_checkpoint_invalid(
    state: SchedulerState, node: Node, bad: m.CheckpointInvalid
) -> list[SchedulerEffect]:
    """A file of the plan does not verify: it is never used again, and the plan goes back further."""
    if node.record.rank is None or bad.generation != state.job.generation:
        # Of a plan that is over: the newer one does not go there.
        return [state.answer(node, bad.request_id, [])]
    own = state.checkpoints.file_of(node.record.rank, bad.step)
    if state.live.sources and (own is None or own.path != bad.path):
        why = f"{node.record.node_id} has not taken the state of step {bad.step}: {bad.reason}"
        noted = live.on_not_taken(state, node, bad)
        # Behind the end: nothing in a store says that a state is bad. A node that has its answer waits for the end, and does not ask again.
        state.facts.fail(why, then=(state.answer(node, bad.request_id, noted),))
        return []
    checkpoint = state.checkpoints.reject(node.record.rank, bad.step, bad.reason)
    records: list[Record] = [
        state.node_event(
            EventKind.CHECKPOINT_INVALID, node, step=bad.step, reason=bad.reason, details=bad.path
        )
    ]
    if checkpoint is not None:
        records.append(to_record(node.record.rank, checkpoint, CheckpointState.INVALID, bad.reason))
    # It may have lain among this node's copies.
    copy = state.checkpoints.copies.reject(node.record.node_id, node.record.rank, bad.step, bad.reason)
    records += [copy] if copy is not None else []
    state.facts.fail(
        f"the checkpoint of step {bad.step} is not usable on {node.record.node_id}: {bad.reason}"
    )
    return [state.answer(node, bad.request_id, records)]
