"""What ranks report of their plan and training: it is not usable, it has begun, the data plane is open or broke, the code raised, it is done."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Persist
from recovery.core.policy.live import NOT_LIVE
from recovery.core.policy.next_plan import CrashLoop, crash_loop_after
from recovery.core.records import CheckpointState, EventKind, EventRecord, JobState, Record, to_record
from recovery.core.scheduler.effects import SchedulerEffect, Send
from recovery.core.scheduler.generations import live
from recovery.core.scheduler.node import Node
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
        state.facts.fail(differs, crash_loop=state.crash_loop)
        return effects
    return [*effects, *live.agreed(state, node, was_known=False)]


def on_first_step(state: SchedulerState, node: Node, first: m.FirstStep) -> list[SchedulerEffect]:
    """It has done the first step after the plan's."""
    if first.generation != state.job.generation:
        return []
    node.told_step(first.step)
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
        is_live=bool(state.live.sources),
        step=step,
        done=", ".join(done[:_NAMED_MAX]),
        now_ms=now_ms,
    )


def on_failure(state: SchedulerState, node: Node, failure: m.Failure) -> list[SchedulerEffect]:
    """Its own code raised. It counts as lost when it disconnects, which it does as soon as it has this answer."""
    node.record = msgspec.structs.replace(node.record, reason=f"its own code raised {failure.error}"[:1024])
    return [state.answer(node, failure.request_id, [node.record, failed_event(state, node, failure)])]


def failed_event(state: SchedulerState, node: Node, failure: m.Failure) -> EventRecord:
    """Also where the job has ended meanwhile: it may be what ended it."""
    return state.node_event(
        EventKind.NODE_FAILED, node, step=failure.step, reason=failure.error, details=failure.traceback
    )


def on_done(state: SchedulerState, node: Node, done: m.Done) -> list[SchedulerEffect]:
    """It has trained to the end; the job has when every rank has."""
    if done.generation != state.job.generation or state.job.state is not JobState.RUNNING:
        # Its generation is over: it is interrupted, comes back and reports it again.
        return []
    node.done = True
    node.told_step(done.step)
    return [state.answer(node, done.request_id, [node.record])]


def on_checkpoint_invalid(
    state: SchedulerState, node: Node, bad: m.CheckpointInvalid
) -> list[SchedulerEffect]:
    """A file of the plan does not verify: it is never used again, and the plan goes back further.

    Or a rank could not take the plan's state from another one's memory, or that one could not give it: then that step is refused there.
    """
    if node.record.rank is None or bad.generation != state.job.generation:
        # Of a plan that is over: the newer one does not go there.
        return [state.answer(node, bad.request_id, [])]
    event = state.node_event(
        EventKind.CHECKPOINT_INVALID, node, step=bad.step, reason=bad.reason, details=bad.path
    )
    # Said again where its answer was lost: the file is known as bad by then.
    is_own = state.checkpoints.is_file_of(node.record.rank, bad.step, bad.path)
    if state.live.sources and not is_own:
        why = f"{node.record.node_id} has not taken the state of step {bad.step}: {bad.reason}"
        answer = state.answer(node, bad.request_id, [event])
        if bad.step in state.live.refused:
            # Its generation has ended for that.
            return [answer]
        state.live.refused.add(bad.step)
        # Behind the end: nothing in a store says that a state is bad. A node that has its answer waits for the end, and does not ask again.
        # That a state was not taken explains nothing of how the generations before it ended, and the next plan may lead there again.
        state.facts.fail(why, crash_loop=state.crash_loop, then=(answer,))
        return []
    checkpoint = state.checkpoints.reject(node.record.rank, bad.step, bad.reason)
    records: list[Record] = [event]
    if checkpoint is not None:
        records.append(to_record(node.record.rank, checkpoint, CheckpointState.INVALID, bad.reason))
    # It may have lain among this node's copies.
    copy = state.checkpoints.copies.reject(node.record.node_id, node.record.rank, bad.step, bad.reason)
    records += [copy] if copy is not None else []
    state.facts.fail(
        f"the checkpoint of step {bad.step} is not usable on {node.record.node_id}: {bad.reason}"
    )
    return [state.answer(node, bad.request_id, records)]
