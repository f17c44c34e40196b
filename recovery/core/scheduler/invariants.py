"""What is always true of the scheduler's state between two stimuli. Tests and the simulation ask after every one, a scheduler now and then."""

from __future__ import annotations

from itertools import pairwise

from recovery.core.messages import Role
from recovery.core.records import JobState, NodeState
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def check(state: SchedulerState) -> None:
    """Look at everything.

    Raises:
        AssertionError: something is not as it must be; the sentence says what.
    """
    assert not state.facts.pending, "what follows from each fact was drawn"
    _check_connections(state)
    state.waiting.check()
    state.copying.check()
    state.uploading.check()
    for node in state.nodes.values():
        _check_node(state, node)
    for role in Role:
        _check_counts(state, role)
        _check_ranks(state, role)
    _check_offers(state)
    _check_generations(state)
    if state.job.state is JobState.RUNNING:
        _check_running(state)


def _check_connections(state: SchedulerState) -> None:
    connected = {
        node.connection: node.record.node_id for node in state.nodes.values() if node.connection is not None
    }
    assert state.speakers == connected, (
        "every connection on which somebody speaks belongs to exactly one node"
    )


def _check_node(state: SchedulerState, node: Node) -> None:
    record, name = node.record, node.record.node_id
    if record.state is NodeState.LIVE:
        assert not node.is_watched, f"{name} is live, so its connection tells of its end"
        assert node.connection is not None or state.job_ended, f"{name} is live, so it is connected"
    if record.state in (NodeState.SUSPECT, NodeState.LOST):
        assert node.connection is None, f"{name} is {record.state.value}, so it is not connected"
    if record.state is not NodeState.LOST:
        assert record.rejoin_left_ms == 0, (
            f"{name} is {record.state.value}: only a lost id has a rejoin window"
        )
    if node.done and record.role is Role.WORKER:
        assert state.job.state is JobState.RUNNING or state.job_ended, f"{name} is done with no generation"
    if not node.slot:
        assert record.rank is None, f"{name} has no slot, so it has no rank"
        assert node.is_standby, f"{name} is a server, and servers have slots"
    assert node.sent_generation <= state.job.generation, f"{name} was sent a plan that does not exist"
    assert len(node.answers) <= state.rules.requests_remembered, f"the answers kept for {name} are bounded"


def _check_counts(state: SchedulerState, role: Role) -> None:
    slots = state.slots[role]
    assert slots.forming == (state.job.state is JobState.FORMING), "what a slot is follows the job's state"
    of_role = [node for node in state.nodes.values() if node.record.role is role]
    if not of_role and not state.slot_count(role):
        return
    holders = [node for node in of_role if state.has_slot(node)]
    away = [node for node in of_role if node.slot and not node.record.state.is_here]
    with_rank = sum(node.record.rank is not None for node in away)
    counted = (
        slots.taken,
        slots.ready,
        slots.done,
        set(slots.names),
        slots.standbys,
        slots.ready_standbys,
        slots.vacant,
        slots.absent,
        slots.holders,
    )
    recounted = (
        len(holders),
        sum(node.ready is not None and node.record.state is NodeState.LIVE for node in holders),
        sum(node.done for node in holders),
        {node.slot for node in holders},
        sum(node.is_standby and node.record.state.is_here for node in of_role),
        sum(
            not node.slot and node.record.state is NodeState.LIVE and node.ready is not None
            for node in of_role
        ),
        with_rank,
        with_rank + sum(node.record.rank is None and node.record.state is NodeState.LOST for node in away),
        {node.slot: node.record.node_id for node in of_role if node.slot},
    )
    assert counted == recounted, f"the {role.value}s are counted as {counted}, they are {recounted}"


def _check_ranks(state: SchedulerState, role: Role) -> None:
    ranks = [
        node.record.rank
        for node in state.nodes.values()
        if node.record.role is role and node.record.rank is not None
    ]
    assert len(set(ranks)) == len(ranks), f"two {role.value}s have one rank: {sorted(ranks)}"


def _check_offers(state: SchedulerState) -> None:
    asked = [offer.standby for offer in state.vacancies.offers.values()]
    assert len(set(asked)) == len(asked), f"a standby is asked for one slot at a time: {asked}"
    for slot, offer in state.vacancies.offers.items():
        holder, standby = state.nodes[state.slots[Role.WORKER].holders[slot]], state.nodes[offer.standby]
        assert not holder.record.state.is_here, (
            f"the slot {slot} is offered, and {holder.record.node_id} holds it"
        )
        assert standby.is_standby, f"{offer.standby} is offered a slot, and has one"


def _check_generations(state: SchedulerState) -> None:
    numbers = [record.generation for record in state.generations]
    assert all(earlier < later for earlier, later in pairwise(numbers)), f"generations only rise: {numbers}"
    assert all(record.run == state.job.run for record in state.generations), "generations are of this run"
    assert not numbers or numbers[-1] <= state.job.generation, "no generation is newer than the job's"
    if state.rendezvous is not None:
        assert state.rendezvous.generation == state.job.generation, "the rendezvous is the generation's own"


def _check_running(state: SchedulerState) -> None:
    ranks = sorted(node.record.rank for node in state.workers if node.record.rank is not None)
    assert ranks == list(range(state.rules.world_size)), f"a running job has all its ranks, not {ranks}"
    assert state.generations, "a running job has a generation"
    current = state.generations[-1]
    assert current.generation == state.job.generation, "a running job is in its newest generation"
    assert not current.ended, f"generation {current.generation} has ended, and the job runs"
    assert state.live.sources or state.checkpoints.committed_step >= current.step, (
        f"the committed step is {state.checkpoints.committed_step}, the plan went to {current.step}"
    )
    assert state.deadline_ms is None, "nobody is waited for while all ranks run"
