"""Planned departure: a rank goes to a standby at a step that every rank has saved, so that no step is lost.

Every rank is asked where it is; a step just ahead of the foremost is named; each rank stops there and saves, or says that it has passed
it: then a later one is named, twice as far ahead. Once all hold the step the departing nodes have left, and everything goes on as
after any departure: their slots are offered to standbys, and the plan goes to the newest step that all hold, which is this one.

Whatever goes wrong before that ends the drain, and training goes on as without it. `advance` looks after each stimulus whether it can go on.

A launcher that is asked to end the job begins one that nobody departs in (planned_end.py). Where a system sends its signal to all processes at once, the
workers' requests may be here first: for a moment, in which all stop and save, no standby is missed.

A script that ends training begins one that planned_end.py leads; here its ranks' answers are heard.
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Answer, Persist
from recovery.core.handover_messages import (
    Depart,
    DrainCancelled,
    HandedOver,
    JobSaved,
    NotHandedOver,
    Position,
    SaveAt,
)
from recovery.core.ids import NodeId, RequestId
from recovery.core.policy import ranks
from recovery.core.records import EventKind, JobState, NodeState, Record
from recovery.core.scheduler.drain_states import RANK_HANDED_OVER, Drain, DrainFact, DrainState
from recovery.core.scheduler.effects import DrainTimer, SchedulerEffect, Send, SetTimer, StandbysTimer
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import DrainAsked

_NOT_SAVED = "not saved for the end of the job: "
STOP_FOLLOWS_MS = 300
"""How long a worker that is asked to end is not sent away for want of a standby: the launcher may have been asked by the same signal. Below
`ANSWER_MS` of core/worker/handover.py."""


def on_depart(state: SchedulerState, node: Node, depart: Depart, now_ms: int) -> list[SchedulerEffect]:
    """A process was asked to end (SIGTERM), and asks for its rank to be handed over first."""
    assert node.connection is not None, "it just spoke"
    node_id = node.record.node_id
    last = state.drain
    # Whose launcher has asked already, and could not wait for a save, is not one of many that have all been asked just now.
    is_ending = last is not None and last.ends_job and last.generation == state.job.generation
    obstacle = why_not(state, (node_id,), "", needs_standbys=is_ending)
    if obstacle:
        said = NotHandedOver(request_id=depart.request_id, reason=obstacle, job_ends=is_ending)
        return [Send(node.connection, said)]
    effects = _begin_or_join(state, DrainAsked((node_id,), "", f"{node_id}: {depart.reason}"), now_ms)
    drain = state.drain
    assert drain is not None, "it was begun"
    drain.departing[node_id] = depart.request_id
    if not effects:
        # It joins one that is under way: the step that it was asked for shows that its wish has come, too.
        effects = [Persist((), (Answer(node.connection, question_of(drain)),))]
    drain.standbys_due_ms = min(now_ms + STOP_FOLLOWS_MS, drain.until_ms)
    return [*effects, SetTimer(StandbysTimer(), drain.standbys_due_ms)]


def on_drain_asked(state: SchedulerState, asked: DrainAsked, now_ms: int) -> list[SchedulerEffect]:
    """A person asks for ranks to be handed over. The caller has looked at `why_not`, and looks at what became of it."""
    if why_not(state, asked.nodes, asked.host):
        return []
    return _begin_or_join(state, asked, now_ms)


def named(state: SchedulerState, target: str) -> tuple[tuple[NodeId, ...], str]:
    """Whose ranks a person means by the name of a node or a host, and the host."""
    of_host = tuple(node.record.node_id for node in state.workers if node.record.host == target)
    node = state.nodes.get(NodeId(target))
    return (of_host, target) if node is None else ((node.record.node_id,), "")


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
    drain = state.drain if state.drain is not None and state.drain.is_open else None
    if drain is not None and drain.ends_training:
        return f"training ends ({drain.reason})"
    if drain is None and not ends_job and is_saved_for_its_end(state):
        return "the job ends"
    departing = {*asked, *(drain.departing if drain is not None else ())}
    ends_job = ends_job or (drain is not None and drain.ends_job)
    hosts = {host, *(drain.left_hosts if drain is not None else ())}
    obstacle = _not_here(state, ends_job=ends_job)
    return obstacle if obstacle or ends_job or not needs_standbys else _missing(state, departing, hosts)


def _not_here(state: SchedulerState, *, ends_job: bool) -> str:
    """What keeps the ranks of a running job from all stopping at a step; empty: nothing. Where it ends the others follow one that is done."""
    for node in state.workers:
        if node.record.state is not NodeState.LIVE:
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


def _begin_or_join(state: SchedulerState, asked: DrainAsked, now_ms: int) -> list[SchedulerEffect]:
    before = state.drain
    joins = before is not None and before.is_open
    if before is not None and joins:
        drain = before
    else:
        drain = new_drain(state, asked.reason, state.rules.drain_timeout_ms, now_ms)
    drain.departing.update({node_id: drain.departing.get(node_id) for node_id in asked.nodes})
    drain.left_hosts |= {asked.host} - {""}
    return [] if joins else begin(state, drain)


def new_drain(state: SchedulerState, reason: str, wait_ms: int, now_ms: int) -> Drain:
    """Put one in the place of the last one, which has ended."""
    number = state.drain.number + 1 if state.drain is not None else 1
    drain = state.drain = Drain(number, state.job.generation, reason)
    drain.wait_ms, drain.until_ms = wait_ms, now_ms + wait_ms
    return drain


def begin(state: SchedulerState, drain: Drain) -> list[SchedulerEffect]:
    """Ask every rank where it is."""
    return [*begun(state, drain), *ask(state, drain, 0)]


def begun(state: SchedulerState, drain: Drain) -> list[SchedulerEffect]:
    """Tell of it, and give it its time."""
    event = state.event(
        EventKind.DRAIN_BEGUN, generation=drain.generation, reason=drain.reason, details=_names(drain)
    )
    return [Persist((event,)), SetTimer(DrainTimer(), drain.until_ms)]


def ask(state: SchedulerState, drain: Drain, step: int) -> list[SchedulerEffect]:
    """Ask every rank whether it stops at this step; 0: where it is."""
    drain.step, drain.passed, drain.late = step, {}, False
    question = question_of(drain)
    drain.connections = {node.record.node_id: node.connection for node in state.workers}
    # In the order of what is written: behind the plan of this generation, which a rank must know first.
    return [Persist((), _answers(state, question))]


def _answers(state: SchedulerState, message: SaveAt | DrainCancelled) -> tuple[Answer, ...]:
    return tuple(Answer(node.connection, message) for node in state.workers if node.connection is not None)


def question_of(drain: Drain) -> SaveAt:
    """What each rank is asked now."""
    return SaveAt(
        drain=drain.number,
        generation=drain.generation,
        step=drain.step,
        wait_ms=drain.wait_ms,
        ends_training=drain.ends_training,
    )


def on_position(state: SchedulerState, node: Node, at: Position) -> list[SchedulerEffect]:
    """A rank has said where it is, and whether it stops. When all have, the next step of the drain is clear."""
    drain = state.drain
    if drain is None or not drain.is_open or at.drain != drain.number or at.step != drain.step:
        # Of a drain or a step that is given up.
        return []
    if node.record.rank is None:
        # Only ranks are asked.
        return []
    if at.obstacle and not drain.ends_training:
        return give_up(
            state, drain, f"{node.record.node_id} cannot save at a step that is asked for: {at.obstacle}"
        )
    if at.is_over:
        drain.last_step = max(drain.last_step, at.passed)
    if at.is_over and not drain.ends_training:
        return _on_over(state, drain, node)
    drain.passed[node.record.node_id] = at.passed
    # A rank that was only asked where it is stops nowhere, whatever it says.
    drain.late = drain.late or not at.stops or not drain.step
    if drain.state is DrainState.SAVING or len(drain.passed) < state.rules.world_size:
        return []
    if not drain.late:
        drain.move(DrainFact.ALL_STOP)
        return []
    if drain.state is DrainState.AGREEING:
        drain.margin *= 2
    drain.move(DrainFact.POSITIONS_KNOWN if drain.state is DrainState.ASKING else DrainFact.TOO_LATE)
    return ask(state, drain, max(drain.passed.values()) + drain.margin)


def _on_over(state: SchedulerState, drain: Drain, node: Node) -> list[SchedulerEffect]:
    """A rank's loop has come to its end, and it stops nowhere. A job that ends needs no more: all save that step by themselves."""
    if drain.ends_job and drain.state is DrainState.SAVING and drain.step == drain.last_step:
        # All were to save that one.
        return []
    if not (drain.ends_job and drain.last_step) or state.checkpoints.is_empty:
        return give_up(state, drain, _trained_to_the_end(node))
    if drain.state is DrainState.ASKING:
        drain.move(DrainFact.POSITIONS_KNOWN)
    if drain.state is DrainState.AGREEING:
        drain.move(DrainFact.ALL_STOP)
    # Somebody may wait at an earlier step.
    return ask(state, drain, drain.last_step) if drain.step != drain.last_step else []


def advance(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """What has become of the drain under way by a stimulus."""
    drain = state.drain
    assert drain is not None, "one is under way"
    if drain.state is DrainState.HANDING_OVER:
        return _follow_hand_over(state, drain)
    if state.job.state is not JobState.RUNNING or state.job.generation != drain.generation:
        return give_up(state, drain, state.job.reason)
    if drain.ends_training:
        # As early_end says.
        return []
    missing = "" if drain.ends_job else _missing(state, set(drain.departing), drain.left_hosts)
    obstacle = _not_here(state, ends_job=drain.ends_job) or _came_back(state, drain)
    if obstacle or (missing and now_ms >= drain.standbys_due_ms):
        return give_up(state, drain, obstacle or missing)
    if now_ms >= drain.until_ms:
        # This process was paused: a rank that waited at the step has let go by itself, and trains on.
        return on_due(state)
    if drain.state is DrainState.SAVING and state.checkpoints.durable_step >= drain.step and not missing:
        return _wait_for_the_end(state, drain) if drain.ends_job else _hand_over(state, drain, now_ms)
    return []


def _came_back(state: SchedulerState, drain: Drain) -> str:
    """A rank that was admitted again waits at no step any more; empty: none was."""
    for node in state.workers:
        if drain.connections.get(node.record.node_id) != node.connection:
            return f"{node.record.node_id} has connected again"
    return ""


def on_due(state: SchedulerState) -> list[SchedulerEffect]:
    """It has had its time."""
    drain = state.drain
    if drain is None or drain.state is DrainState.ENDED:
        return []
    if drain.state is DrainState.HANDING_OVER:
        return end(
            state, drain, DrainFact.GIVEN_UP, f"{_names(drain)} left, and no standby has taken the rank yet"
        )
    limit = f"{drain.wait_ms / 1000:g} s (MS_DRAIN_TIMEOUT)"
    if drain.ends_job:
        limit = "MS_STOP_GRACE leaves for it"
    return give_up(state, drain, f"it took longer than {limit}, {drain.state.value}")


def give_up(state: SchedulerState, drain: Drain, reason: str) -> list[SchedulerEffect]:
    """Everything goes on as without it: a rank that waits at a step trains on, one that asked leaves as it is."""
    # Behind the step that was asked for, which it takes back.
    answers = (*_answers(state, DrainCancelled(drain=drain.number)), *_not_handed_over(state, drain, reason))
    return [Persist((), answers), *end(state, drain, DrainFact.GIVEN_UP, reason)]


def _not_handed_over(state: SchedulerState, drain: Drain, reason: str) -> list[Answer]:
    """What the nodes hear that have asked themselves: they leave as they are."""
    answers: list[Answer] = []
    for node_id, request in drain.departing.items():
        connection = state.nodes[node_id].connection
        if request is not None and connection is not None:
            answer = NotHandedOver(request_id=request, reason=reason[:1024], job_ends=drain.ends_job)
            answers.append(Answer(connection, answer))
    return answers


def _wait_for_the_end(state: SchedulerState, drain: Drain) -> list[SchedulerEffect]:
    """All ranks hold the step, and wait there until their launchers end them."""
    reason = f"saved at step {drain.step}, where the job ends"
    answers = _not_handed_over(state, drain, reason)
    return [Persist((), tuple(answers)), *end(state, drain, DrainFact.JOB_STOPS, reason)]


def _hand_over(state: SchedulerState, drain: Drain, now_ms: int) -> list[SchedulerEffect]:
    """All ranks hold the step, and wait there: a rank that departs has left, and the generation is over."""
    drain.move(DrainFact.COMMITTED)
    records: list[Record] = []
    answers: list[Answer] = []
    reason = f"{RANK_HANDED_OVER} at step {drain.step} ({drain.reason})"
    for node_id in drain.departing:
        node = state.nodes[node_id]
        assert node.connection is not None, "a node that is live is connected"
        answers.append(Answer(node.connection, HandedOver(reason=reason[:1024])))
        records += [
            node.move(NodeState.LEFT, reason=reason, cause=Cause.RANK_HANDED_OVER),
            state.node_event(EventKind.NODE_LEFT, node, step=drain.step, reason=reason),
        ]
    left = Persist(tuple(records), tuple(answers))
    timer = SetTimer(DrainTimer(), now_ms + 2 * state.rules.abort_timeout_ms)
    state.facts.fail(f"{_names(drain)} left: {reason}")
    return [left, timer]


def _follow_hand_over(state: SchedulerState, drain: Drain) -> list[SchedulerEffect]:
    """A standby takes the rank as it would that of any node that has left."""
    if state.job_ended:
        return end(state, drain, DrainFact.GIVEN_UP, f"the job has ended: {state.job.reason}")
    if state.job.state is not JobState.RUNNING:
        return []
    if drain.went_to > drain.step:
        reason = f"{_names(drain)} left at step {drain.step}, and a rank had not waited: it trained on to step {drain.went_to}"
        return end(state, drain, DrainFact.GIVEN_UP, reason)
    if drain.back_too_soon:
        reason = f"{_names(drain)} left at step {drain.step}, and {', '.join(sorted(drain.back_too_soon))} connected again before it had heard that: it may have trained on"
        return end(state, drain, DrainFact.GIVEN_UP, reason)
    step = state.generations[-1].step
    if step != drain.step:
        reason = f"{_names(drain)} left at step {drain.step}, but the plan goes to step {step}"
        return end(state, drain, DrainFact.GIVEN_UP, reason)
    return end(state, drain, DrainFact.TAKEN_OVER, f"handed over at step {step}, no step is lost")


def end(state: SchedulerState, drain: Drain, fact: DrainFact, outcome: str) -> list[SchedulerEffect]:
    """It is over: an event says how, and the launchers that wait for it hear it."""
    drain.end(fact, outcome)
    drain.all_here = all(node.record.state is NodeState.LIVE for node in state.workers)
    fails = drain.ends_job and not drain.saved
    if drain.ends_training and not drain.stops:
        # Its own event has told it, or the next plan does.
        return []
    event = state.event(
        EventKind.DRAIN_ENDED,
        generation=drain.generation,
        step=drain.step or None,
        reason=f"{_NOT_SAVED if fails else ''}{outcome}",
        details=_names(drain),
    )
    answers = tuple(
        Answer(connection, job_saved(state, drain, request)) for connection, request in drain.stops.items()
    )
    return [Persist((event,), answers)]


def job_saved(state: SchedulerState, drain: Drain, request: RequestId) -> JobSaved:
    """What a launcher hears that has asked for the end of the job."""
    if drain.saved:
        return JobSaved(request_id=request, step=drain.step)
    step, obstacle = state.checkpoints.durable_step, drain.outcome[:1024]
    return JobSaved(request_id=request, step=step, obstacle=obstacle)


def is_saved_for_its_end(state: SchedulerState) -> bool:
    """Do all ranks wait at a step for the end of their processes?"""
    drain = state.drain
    return drain is not None and drain.saved and drain.generation == state.job.generation


def _names(drain: Drain) -> str:
    return ", ".join(sorted(drain.departing, key=ranks.natural_key))
