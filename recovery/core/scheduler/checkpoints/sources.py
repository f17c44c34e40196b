"""Which nodes can give a rank's contribution to a rank's node that does not have it."""

from __future__ import annotations

from recovery.core.copy_messages import SOURCES_MAX
from recovery.core.held import HeldCheckpoint, Source
from recovery.core.ids import NodeId, Rank
from recovery.core.messages import Role
from recovery.core.policy.ranks import natural_key
from recovery.core.records import NodeState
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def source(node: Node) -> Source | None:
    """Where a node's files can be fetched now; None: it is not here, or gives none."""
    if node.record.state is not NodeState.LIVE or not node.serves:
        return None
    return Source(node_id=node.record.node_id, address=node.serves)


def holders_here(
    state: SchedulerState, rank: Rank, step: int, *, any_said: bool = False
) -> tuple[Source, ...]:
    """The nodes from which a copy of a rank's contribution can be fetched now, in the order of their names.

    Args:
        state: where.
        rank: whose contribution.
        step: to which step.
        any_said: also a node that has not said yet what it holds for the next plan, and held it before.
    """
    found: list[Source] = []
    for node_id in sorted(state.checkpoints.copies.holders(rank, step), key=natural_key):
        where = source(state.nodes[node_id])
        digest = state.checkpoints.copies.holders(rank, step)[node_id].digest
        # A holder whose process is new says first what it holds; while ranks train, all have said so.
        node = state.nodes[node_id]
        has_said = (
            state.copying.said_by.get(node_id) == node.record.incarnation
            or state.job.state not in WAITING
            or any_said
        )
        if where is not None and has_said and (where.address, digest) not in state.copying.not_given:
            found.append(where)
    return tuple(found[:SOURCES_MAX])


def copies_for_plan(state: SchedulerState) -> dict[int, dict[Rank, HeldCheckpoint]]:
    """By step and rank: what a plan can go to although the rank's own node does not have it."""
    found: dict[int, dict[Rank, HeldCheckpoint]] = {}
    for node in state.slot_holders(Role.WORKER):
        rank = node.record.rank
        assert rank is not None, "a plan is for ranks"
        for step in state.checkpoints.copies.steps_of(rank):
            held = copy_for(state, node, rank, step)
            if held is not None:
                found.setdefault(step, {})[rank] = held
    return found


def copy_for(
    state: SchedulerState, node: Node, rank: Rank, step: int, *, any_said: bool = False
) -> HeldCheckpoint | None:
    """A copy that a node can go back to: it holds it itself, or can fetch it. None: there is none. Arguments as of `holders_here`."""
    holders = state.checkpoints.copies.holders(rank, step)
    own = holders.get(node.record.node_id)
    if own is not None:
        return own
    of_process = (rank, node.record.incarnation)
    for where in holders_here(state, rank, step, any_said=any_said):
        held = holders[where.node_id]
        if (*of_process, held.digest) not in state.copying.not_taken:
            return held
    return None


def is_elsewhere(state: SchedulerState, node: Node, needed: HeldCheckpoint, rank: Rank) -> bool:
    """Can a node get what is needed of a rank from others?"""
    held = copy_for(state, node, rank, needed.step, any_said=True)
    return held is not None and held.digest == needed.digest


def names(sources: tuple[Source, ...]) -> str:
    """Their ids, for people."""
    return ", ".join(NodeId(holder.node_id) for holder in sources)
