"""What ranks report of their training: it has begun, the data plane is open or broke, the code raised, it is done."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Persist
from recovery.core.policy.live import NOT_LIVE
from recovery.core.records import EventKind, JobState
from recovery.core.scheduler.effects import SchedulerEffect, Send
from recovery.core.scheduler.generations import live
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pending_facts import CrashLoop, crash_loop_after
from recovery.core.scheduler.state import SchedulerState

_NAMED_MAX = 5
"""Ranks in a sentence."""


def on_rendezvous_open(state: SchedulerState, node: Node, opened: m.RendezvousOpen) -> list[SchedulerEffect]:
    """Rank 0 listens: everybody else is sent where."""
    if opened.generation != state.job.generation or state.job.state is not JobState.RUNNING:
        return []
    known = state.rendezvous is not None and state.rendezvous.address == opened.address
    state.rendezvous = m.Rendezvous(generation=opened.generation, address=opened.address)
    effects: list[SchedulerEffect] = [
        Send(other.connection, state.rendezvous)
        for other in state.workers
        if other.connection is not None and other is not node
    ]
    if not known:
        event = state.node_event(EventKind.RENDEZVOUS_OPENED, node, reason=opened.address)
        effects.append(Persist((event,)))
    return effects


def on_loaded(state: SchedulerState, node: Node, loaded: m.StateLoaded) -> list[SchedulerEffect]:
    """It has the state of the plan's step. What all took from one rank's memory is compared before anybody trains on."""
    if loaded.generation != state.job.generation or state.job.state is not JobState.RUNNING:
        return []
    was_known = node.record.rank in state.live.spoken
    differs = live.note_loaded(state, node, loaded)
    if was_known and not differs:
        return [*live.agreed(state, node, was_known=True)]
    node.record = msgspec.structs.replace(node.record, step=loaded.step)
    details = f"{NOT_LIVE}{loaded.not_live}" if loaded.not_live else ""
    event = state.node_event(EventKind.STATE_LOADED, node, step=loaded.step, reason=differs, details=details)
    effects: list[SchedulerEffect] = [Persist((event,))]
    if differs:
        state.facts.fail(differs)
        return effects
    return [*effects, *live.agreed(state, node, was_known=False)]


def on_first_step(state: SchedulerState, node: Node, first: m.FirstStep) -> list[SchedulerEffect]:
    """It has done the first step after the plan's."""
    if first.generation != state.job.generation:
        return []
    node.record = msgspec.structs.replace(node.record, step=first.step)
    return [Persist((state.node_event(EventKind.FIRST_STEP_DONE, node, step=first.step),))]


def on_collective_failed(
    state: SchedulerState, node: Node, failed: m.CollectiveFailed, now_ms: int
) -> list[SchedulerEffect]:
    """The data plane broke: the generation is over. Whose fault it was is usually known a moment later."""
    if failed.generation != state.job.generation or state.job.state is not JobState.RUNNING:
        return []
    reason = f"{node.record.node_id}: the data plane broke at step {failed.step}: {failed.reason}"
    state.facts.fail(reason, crash_loop=ended_at(state, failed.step, now_ms))
    return []


def ended_at(state: SchedulerState, step: int, now_ms: int) -> CrashLoop:
    """The generation ends at a step for a cause that nobody knows: how those before it ended, and this one."""
    done = [f"rank {node.record.rank} (step {node.record.step})" for node in state.workers if node.done]
    return crash_loop_after(
        state.crash_loop,
        plan=state.generations[-1].step,
        step=step,
        done=", ".join(done[:_NAMED_MAX]),
        now_ms=now_ms,
    )


def on_failure(state: SchedulerState, node: Node, failure: m.Failure) -> list[SchedulerEffect]:
    """Its own code raised. It counts as lost when it disconnects, which it does as soon as it has this answer."""
    node.record = msgspec.structs.replace(node.record, reason=f"its own code raised {failure.error}"[:1024])
    event = state.node_event(
        EventKind.NODE_FAILED, node, step=failure.step, reason=failure.error, details=failure.traceback
    )
    return [state.answer(node, failure.request_id, [node.record, event])]


def on_done(state: SchedulerState, node: Node, done: m.Done) -> list[SchedulerEffect]:
    """It has trained to the end; the job has when every rank has."""
    if done.generation != state.job.generation or state.job.state is not JobState.RUNNING:
        # Its generation is over: it is interrupted, comes back and reports it again.
        return []
    node.done = True
    node.record = msgspec.structs.replace(node.record, step=done.step)
    return [state.answer(node, done.request_id, [node.record])]
