"""What all ranks stop at a barrier for: a rank goes to a standby at a step that every rank has saved, or the whole job ends there.

Once all hold the step a rank that departs has left, and everything goes on as after any departure: its slot is offered to standbys, and the
plan goes to the newest step that all hold, which is this one. Where launchers end the job all ranks wait at the step until their processes are
ended, and the next start goes on there; another launcher's request, or the SIGTERM of a worker, joins it. Where a system sends its signal to all
processes at once, the workers' requests may be here first: for a moment, in which all stop and save, no standby is missed.

Whatever goes wrong before that ends the barrier, and training goes on as without it. `advance` looks after each stimulus whether it can go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from recovery.core import messages as m
from recovery.core.barrier_messages import GoOn, HandedOver, NotHandedOver, Position, StopJob
from recovery.core.causes import Cause
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, NodeId, RequestId
from recovery.core.records import JOB_STOPPED, EventKind, JobState, NodeState, Record
from recovery.core.scheduler.barrier import RANK_HANDED_OVER, Barrier, BarrierState, tell
from recovery.core.scheduler.effects import BarrierTimer, KeepConnection, SchedulerEffect, SetTimer
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState

_NOT_SAVED = "not saved for the end of the job: "
_ALL_IS_TO_END = "the whole job is to end"
_ENDS_WITHIN_MS = 5_000
"""How long processes take to end behind the save, at most: what a launcher leaves them of MS_STOP_GRACE."""

# --- who asks -----------------------------------------------------------------------------------------------------------


def on_stop_job(
    state: SchedulerState, connection: ConnectionId, stop: StopJob, peer: str, now_ms: int
) -> list[SchedulerEffect]:
    """A launcher was asked to end the job. All of them are, one soon after the other, and the first request is that of all."""
    last, before, request = state.barrier, open_one(state), stop.request_id
    is_heard = last is not None and (request in last.launchers.values() or _still_waits(state, last, now_ms))
    if last is not None and before is None and (is_heard or last.state is BarrierState.HANDING_OVER):
        said = last.job_saved(request, state.checkpoints.durable_step)
        return [Persist((), (Answer(connection, said),))]
    if before is not None and (before.ends_training or before.ends_job):
        # Said again, it only keeps its connection. Behind the end of training the launcher's time counts.
        before.launchers[connection] = request
        before.wait_ms = stop.within_ms if before.ends_training else before.wait_ms
        return [KeepConnection(connection)]
    unknown = any(node.step_unknown and node.record.state.is_here for node in state.workers)
    if unknown and stop.within_ms and state.job.state is JobState.RUNNING:
        # This scheduler was just started again. Said again, the request is looked at when every rank was heard, or is lost.
        return [KeepConnection(connection)]
    obstacle = _why_not_saved(state)
    barrier = new_barrier(state, f"the launcher at {peer}: {stop.reason}", stop.within_ms, now_ms)
    barrier.launchers[connection] = request
    effects: list[SchedulerEffect] = []
    if before is not None and obstacle:
        effects = give_up(state, before, _ALL_IS_TO_END)
    elif before is not None:
        # Its workers were asked by the same signal, its hosts by the same notice, or a person wants less: all stop once more, for the launcher.
        barrier.launchers |= before.leaving
        before.leaving = {}
        effects, barrier.departing = end(state, before, _ALL_IS_TO_END), before.departing
    if obstacle:
        return [*effects, *end(state, barrier, obstacle)]
    return [KeepConnection(connection), *effects, *begin(state, barrier)]


def begin_or_join(
    state: SchedulerState,
    departing: Mapping[NodeId, RequestId | None],
    host: str,
    why: str,
    now_ms: int,
    wait_ms: int | None = None,
) -> tuple[Barrier, list[SchedulerEffect]]:
    """Have these nodes depart at the barrier under way, or at a new one; the effects of that, none where they join."""
    joined = open_one(state)
    wait_ms = state.rules.drain_timeout_ms if wait_ms is None else wait_ms
    barrier = joined or new_barrier(state, why, wait_ms, now_ms)
    for node_id, request in departing.items():
        barrier.departing[node_id] = request or barrier.departing.get(node_id)
    barrier.left_hosts |= {host} - {""}
    return barrier, begin(state, barrier) if joined is None else []


def open_one(state: SchedulerState) -> Barrier | None:
    """The one under way that may still be given up; None: there is none."""
    return state.barrier if state.barrier is not None and state.barrier.is_open else None


def new_barrier(state: SchedulerState, reason: str, wait_ms: int, now_ms: int) -> Barrier:
    """Put one in the place of the last one, which has ended."""
    number = state.barrier.number + 1 if state.barrier is not None else 1
    barrier = state.barrier = Barrier(number, state.job.generation, reason)
    barrier.wait_ms, barrier.until_ms = wait_ms, now_ms + wait_ms
    return barrier


def begin(state: SchedulerState, barrier: Barrier, step: int = 0) -> list[SchedulerEffect]:
    """Tell of it, give it its time, and ask every rank whether it stops at this step; 0: where it is."""
    event = state.event(
        EventKind.DRAIN_BEGUN, generation=barrier.generation, reason=barrier.reason, details=barrier.names
    )
    return [
        Persist((event,)),
        SetTimer(BarrierTimer(), barrier.until_ms),
        barrier.ask(state.workers, step),
    ]


# --- what keeps it ------------------------------------------------------------------------------------------------------


def why_not(
    state: SchedulerState,
    asked: tuple[NodeId, ...],
    host: str,
    *,
    ends_job: bool = False,
    needs_standbys: bool = True,
) -> str:
    """Why the ranks of these nodes cannot be handed over now; empty: they can.

    `host`: all of which they leave; empty: they are single nodes. `ends_job`: nobody is to take them. `needs_standbys`: those are to be here already.
    """
    if not state.rules.recovery_enabled:
        return "MS_ENABLE_RECOVERY=1 is not set"
    if state.job.state is not JobState.RUNNING:
        return f"the job is {state.job.state.value}{f' ({state.job.reason})' if state.job.reason else ''}"
    for node_id in asked:
        node = state.nodes.get(node_id)
        if node is None or node.record.role is not m.Role.WORKER or not state.has_slot(node):
            return f"{node_id} has no rank"
    barrier = open_one(state)
    if barrier is not None and barrier.ends_training:
        return f"training ends ({barrier.reason})"
    if barrier is None and not ends_job and _is_saved_for_its_end(state):
        return "the job ends"
    departing = {*asked, *(barrier.departing if barrier is not None else ())}
    ends_job = ends_job or (barrier is not None and barrier.ends_job)
    hosts = {host, *(barrier.left_hosts if barrier is not None else ())}
    obstacle = _not_here(state, ends_job=ends_job)
    return obstacle if obstacle or ends_job or not needs_standbys else _missing(state, departing, hosts)


def _why_not_saved(state: SchedulerState) -> str:
    """Why the end of the job is not worth a save, or cannot be put off for one; empty: it can."""
    obstacle = why_not(state, (), "", ends_job=True)
    if obstacle:
        return obstacle
    plan, reached = state.generations[-1].step, max(node.record.step for node in state.workers)
    # A loop that counts no step never comes to one, and one that has not begun has nothing to lose.
    is_stored = plan <= state.checkpoints.durable_step
    return f"no step is done since step {plan}" if is_stored and reached <= plan else ""


def _not_here(state: SchedulerState, *, ends_job: bool) -> str:
    """What keeps the ranks of a running job from all stopping at a step; empty: nothing. Where it ends the others follow one that is done."""
    for node in state.workers:
        if node.record.state is not NodeState.LIVE and (ends_job or not node.is_awaited):
            return f"{node.record.node_id} is {node.record.state.value} ({node.record.reason})"
        if node.done and not ends_job:
            return _trained_to_the_end(node)
    return ""


def _trained_to_the_end(node: Node) -> str:
    return f"{node.record.node_id} has trained to the end"


def _missing(state: SchedulerState, departing: set[NodeId], left_hosts: set[str]) -> str:
    """Which standbys are not here that these need; empty: none."""
    ready = sum(
        node.is_standby and node.record.state is NodeState.LIVE
        for node in state.nodes.values()
        if node.record.host not in left_hosts
    )
    if not ready:
        return "no standby is ready"
    if ready < len(departing):
        return f"{len(departing)} ranks need a standby each, and there are {ready}"
    return ""


# --- on its way ---------------------------------------------------------------------------------------------------------


def on_position(state: SchedulerState, node: Node, at: Position) -> list[SchedulerEffect]:
    """A rank has said where it is, and whether it stops. When all have, the next step of the barrier is clear."""
    barrier = open_one(state)
    if barrier is None or (at.drain, at.step) != (barrier.number, barrier.step) or node.record.rank is None:
        # Of one that is given up, or of a step; and only ranks are asked.
        return []
    if at.obstacle and not barrier.ends_training:
        why = f"{node.record.node_id} cannot save at a step that is asked for: {at.obstacle}"
        return give_up(state, barrier, why)
    if at.is_over:
        barrier.last_step = max(barrier.last_step, at.passed)
    if at.is_over and not barrier.ends_training:
        return _on_over(state, barrier, node)
    step = barrier.take(node.record.node_id, at, state.rules.world_size)
    return [barrier.ask(state.workers, step)] if step else []


def _on_over(state: SchedulerState, barrier: Barrier, node: Node) -> list[SchedulerEffect]:
    """A rank's loop has come to its end, and it stops nowhere. A job that ends needs no more: all save that step by themselves."""
    is_asked, saves = barrier.step == barrier.last_step, barrier.state is BarrierState.SAVING
    if barrier.ends_job and saves and is_asked:
        # All were to save that one.
        return []
    if not (barrier.ends_job and barrier.last_step) or state.checkpoints.is_empty:
        return give_up(state, barrier, _trained_to_the_end(node))
    if not saves:
        barrier.move(BarrierState.SAVING)
    # Somebody may wait at an earlier step.
    return [] if is_asked else [barrier.ask(state.workers, barrier.last_step)]


def on_due(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Something of it is due now, which `advance` looks at behind each stimulus; what is not is looked at in its time."""
    barrier = state.barrier
    if barrier is None or not barrier.is_under_way or now_ms >= barrier.until_ms:
        return []
    return [SetTimer(BarrierTimer(), barrier.until_ms)]


def advance(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """What has become of the barrier under way by a stimulus."""
    barrier = state.barrier
    assert barrier is not None, "one is under way"
    if barrier.state is BarrierState.HANDING_OVER:
        return _follow_hand_over(state, barrier, now_ms)
    if state.job.state is not JobState.RUNNING or state.job.generation != barrier.generation:
        return give_up(state, barrier, state.job.reason)
    if barrier.ends_training:
        # As training_end.py says.
        return []
    # Those that were not heard yet as all were asked where they are.
    come = [node for node in barrier.reconnected(state.workers) if node.step_unknown and not node.is_awaited]
    effects = [barrier.ask_again(come)] if come and barrier.state is BarrierState.ASKING else []
    missing = "" if barrier.ends_job else _missing(state, set(barrier.departing), barrier.left_hosts)
    is_saved = barrier.state is BarrierState.SAVING and state.checkpoints.durable_step >= barrier.step
    if is_saved and barrier.leaving:
        # The host goes: who comes for its ranks later loses no step.
        missing = ""
    back = [f"{node.record.node_id} has connected again" for node in barrier.reconnected(state.workers)]
    obstacle = _not_here(state, ends_job=barrier.ends_job) or next(iter(back), "")
    # A process that leaves anyway leaves behind a save: the plan goes there.
    is_due = now_ms >= barrier.standbys_due_ms and (is_saved or not barrier.leaves_anyway)
    if obstacle or (missing and is_due):
        return give_up(state, barrier, obstacle or missing)
    if now_ms >= barrier.until_ms:
        # Also where this process was paused: a rank that waited at the step has let go by itself, and trains on.
        wait_s = f"{barrier.wait_ms / 1000:g} s"
        limit = f"{wait_s} (MS_DRAIN_TIMEOUT)"
        limit = f"the {wait_s} that are left to its host" if barrier.leaving else limit
        limit = "MS_STOP_GRACE leaves for it" if barrier.ends_job else limit
        late = f"it took longer than {limit}, {barrier.state.value}"
        return give_up(state, barrier, "; ".join(filter(None, [missing, late])))
    if not is_saved or missing:
        return [*effects]
    if not barrier.ends_job:
        return _hand_over(state, barrier, now_ms)
    # All ranks wait there until their launchers end them.
    reason = f"saved at step {barrier.step}, where the job ends"
    answers = tuple(_not_handed_over(state, barrier, reason))
    return [Persist((), answers), *end(state, barrier, reason, is_done=True)]


def give_up(state: SchedulerState, barrier: Barrier, reason: str) -> list[SchedulerEffect]:
    """Everything goes on as without it: a rank that waits at a step trains on, one that asked leaves as it is."""
    if barrier.leaving:
        reached = max((node.record.step for node in state.workers), default=0)
        reason = f"{reason}; {state.copying.left_behind(state.checkpoints.durable_step, reached)}"
    # Behind the step that was asked for, which it takes back.
    go_on = GoOn(drain=barrier.number)
    let_go = tell(state.workers, lambda _: go_on).then
    answers = (*let_go, *_not_handed_over(state, barrier, reason))
    return [Persist((), answers), *end(state, barrier, reason)]


def _not_handed_over(state: SchedulerState, barrier: Barrier, reason: str) -> list[Answer]:
    """What the nodes hear that have asked themselves: they leave as they are."""
    answers: list[Answer] = []
    for node_id, request in barrier.departing.items():
        connection = state.nodes[node_id].connection
        if request is not None and connection is not None:
            said = NotHandedOver(request_id=request, reason=reason[:1024], job_ends=barrier.ends_job)
            answers.append(Answer(connection, said))
    return answers


def end(
    state: SchedulerState, barrier: Barrier, outcome: str, *, is_done: bool = False
) -> list[SchedulerEffect]:
    """It is over: an event says how, and the launchers that wait for it hear it."""
    barrier.end(outcome, is_done=is_done)
    barrier.all_here = all(node.record.state is NodeState.LIVE for node in state.workers)
    if barrier.ends_training and not barrier.ends_job:
        # Its own event has told it, or the next plan does.
        return []
    state.notices += 1
    event = state.event(
        EventKind.DRAIN_ENDED,
        generation=barrier.generation,
        step=barrier.step or None,
        reason=f"{_NOT_SAVED if barrier.ends_job and not barrier.saved else ''}{outcome}",
        details=barrier.names,
    )
    durable = state.checkpoints.durable_step
    answers = [Answer(where, barrier.job_saved(asked, durable)) for where, asked in barrier.launchers.items()]
    answers += [Answer(where, barrier.host_left(asked, durable)) for where, asked in barrier.leaving.items()]
    return [Persist((event,), tuple(answers))]


# --- a rank is handed over ------------------------------------------------------------------------------------------------


def _hand_over(state: SchedulerState, barrier: Barrier, now_ms: int) -> list[SchedulerEffect]:
    """All ranks hold the step, and wait there: a rank that departs has left, the generation is over, and standbys that are there are waited for."""
    is_there = not _missing(state, set(barrier.departing), barrier.left_hosts)
    barrier.until_ms = now_ms + (2 * state.rules.abort_timeout_ms if is_there else 0)
    barrier.move(BarrierState.HANDING_OVER)
    records: list[Record] = []
    answers: list[Answer] = []
    reason = f"{RANK_HANDED_OVER} at step {barrier.step} ({barrier.reason})"
    for node_id in barrier.departing:
        node = state.nodes[node_id]
        assert node.connection is not None, "a node that is live is connected"
        answers.append(Answer(node.connection, HandedOver(reason=reason[:1024])))
        records += [
            node.move(NodeState.LEFT, reason=reason, cause=Cause.RANK_HANDED_OVER),
            state.node_event(EventKind.NODE_LEFT, node, step=barrier.step, reason=reason),
        ]
    state.facts.fail(f"{barrier.names} left: {reason}")
    return [Persist(tuple(records), tuple(answers)), SetTimer(BarrierTimer(), barrier.until_ms)]


def _follow_hand_over(state: SchedulerState, barrier: Barrier, now_ms: int) -> list[SchedulerEffect]:
    """A standby takes the rank as it would that of any node that has left."""
    runs, step = state.job.state is JobState.RUNNING, state.generations[-1].step
    left = f"{barrier.names} left"
    if state.job_ended:
        return end(state, barrier, f"the job has ended: {state.job.reason}")
    if not runs and now_ms < barrier.until_ms:
        return []
    if not runs:
        return end(state, barrier, f"{left}, and no standby has taken the rank yet")
    if barrier.spoiled:
        return end(state, barrier, f"{left} at step {barrier.step}, and {barrier.spoiled}")
    if step != barrier.step:
        return end(state, barrier, f"{left} at step {barrier.step}, but the plan goes to step {step}")
    return end(state, barrier, f"handed over at step {step}, no step is lost", is_done=True)


# --- the job ends ---------------------------------------------------------------------------------------------------------


def _is_saved_for_its_end(state: SchedulerState) -> bool:
    """Do all ranks wait at a step for the end of their processes?"""
    barrier = state.barrier
    return barrier is not None and barrier.saved and barrier.generation == state.job.generation


def _still_waits(state: SchedulerState, barrier: Barrier, now_ms: int) -> bool:
    """Is what was saved for the end of the job still where all ranks are?"""
    trains_on = state.job.state is JobState.RUNNING and now_ms >= barrier.until_ms
    return _is_saved_for_its_end(state) and not trains_on


def why_job_stops(state: SchedulerState, now_ms: int) -> str:
    """Why processes end now, where a launcher has asked for the end of the job and has not had its time; empty: none has."""
    barrier = state.barrier
    if barrier is None or not (barrier.ends_job and barrier.all_here):
        return ""
    is_due = barrier.generation == state.job.generation and now_ms < barrier.until_ms + _ENDS_WITHIN_MS
    return f"{JOB_STOPPED} ({barrier.reason})" if is_due else ""
