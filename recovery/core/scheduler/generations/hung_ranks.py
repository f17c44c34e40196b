"""Ranks that are connected and come no further, as their heartbeats show them.

A rank's heartbeats come from a thread of its own while its main thread hangs where no collective would notice it. Which rank that is, is found out by
what all have said (MS_STEP_TIMEOUT=auto). Or it shows itself when its generation has ended: its main thread does not come back, and its process is
replaced (`core/worker/main_thread.py`).
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Persist
from recovery.core.ids import NodeId
from recovery.core.phases import PhaseReport
from recovery.core.policy import hang_limits
from recovery.core.policy.hang_limits import RankPhase, Suspect
from recovery.core.records import NO_STEP, EventKind, EventRecord, JobState
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.generations.training_messages import ended_at
from recovery.core.scheduler.hang_watch import Suspicion
from recovery.core.scheduler.node import Node, StepWait
from recovery.core.scheduler.pauses import PAUSE_MS
from recovery.core.scheduler.pending_facts import Failure
from recovery.core.scheduler.state import SchedulerState

_REPLACED_AT = 2
"""Times the limit: from there on a rank is no longer one that is slow. And times the lease: one that answers is not given up before one that is silent."""


def note_heartbeat(
    state: SchedulerState, node: Node, beat: m.Heartbeat, now_ms: int
) -> list[SchedulerEffect]:
    """A heartbeat, the node's newest, says where its rank is: the generation cannot go on where that stays the same for too long.

    By a fixed limit nobody is judged who has made no step at all: a program that tells nothing of its steps, or one that compiles its first.
    """
    is_training = state.job.state is JobState.RUNNING and beat.generation == state.job.generation
    is_judged = is_training and not node.done and not node.is_standby
    limit_ms = state.rules.step_timeout_ms
    if limit_ms is None:
        return _look_at_phases(state, node, beat, now_ms) if is_judged else []
    if not limit_ms or not is_judged or not beat.step:
        node.step_wait = None
        return []
    _note_stall(state, node, beat, limit_ms, now_ms)
    return []


def _note_stall(state: SchedulerState, node: Node, beat: m.Heartbeat, limit_ms: int, now_ms: int) -> None:
    before = node.step_wait
    if before is None or (before.generation, before.step) != (beat.generation, beat.step):
        node.step_wait = StepWait(beat.generation, beat.step, 0, now_ms)
        return
    # One that is later than that shows that one of the two processes was paused.
    passed_ms = min(now_ms - before.heard_ms, state.rules.heartbeat_ms_max + PAUSE_MS)
    node.step_wait = before._replace(lasting_ms=before.lasting_ms + passed_ms, heard_ms=now_ms)
    if node.step_wait.lasting_ms >= limit_ms:
        node.step_wait = None
        reason = f"{node.record.node_id} is connected, and has made no step behind step {beat.step} for {limit_ms / 1000:g} s (MS_STEP_TIMEOUT)"
        _fail(state, reason, beat.step, now_ms)


def _look_at_phases(
    state: SchedulerState, node: Node, beat: m.Heartbeat, now_ms: int
) -> list[SchedulerEffect]:
    report, watch = beat.phase, state.hangs
    if report is None:
        return []
    watch.learn(report.longest_ms, report.fresh_start_ms)
    effects = _cleared(state, node, beat.step, report)
    if report.lasting_ms < hang_limits.LEAST_MS or not watch.may_look(now_ms):
        return effects
    ranks, done = _training_ranks(state, now_ms), _done_ranks(state, now_ms)
    found = hang_limits.suspect(ranks, watch.longest_ms, done) if ranks and done is not None else None
    return effects if found is None else [*effects, *_suspect(state, found, now_ms)]


def _cleared(state: SchedulerState, node: Node, step: int, report: PhaseReport) -> list[SchedulerEffect]:
    """Whom was suspected has come on; or that was of another generation, which says nothing of this one."""
    known = state.hangs.suspicion
    if known is None:
        return []
    if known.generation != state.job.generation:
        state.hangs.suspicion = None
        return []
    suspect = known.suspect
    is_at_it = suspect.left_out or report.lasting_ms >= suspect.lasting_ms
    is_there = (suspect.step, suspect.phase) == (step, report.phase) and is_at_it
    if suspect.node_id != node.record.node_id or is_there:
        return []
    state.hangs.suspicion = None
    reason = f"rank {suspect.rank} ({suspect.node_id}) has come on from {suspect.phase.value} behind step {suspect.step}"
    return [Persist((state.node_event(EventKind.HANG_CLEARED, node, step=step, reason=reason),))]


def _training_ranks(state: SchedulerState, now_ms: int) -> list[RankPhase]:
    """Empty: of one of them too little is known, or it is silent, which its lease judges."""
    ranks: list[RankPhase] = []
    for node in state.workers:
        if node.done:
            continue
        beat = node.newest_beat
        if beat is None or beat.phase is None or beat.generation != state.job.generation:
            return []
        if node.connection is None or now_ms - node.heard_ms > state.rules.heartbeat_ms_max + PAUSE_MS:
            return []
        assert node.record.rank is not None, "a node of the world has one while it trains"
        ranks.append(RankPhase(node.record.rank, node.record.node_id, beat.step, beat.phase))
    return ranks


def _done_ranks(state: SchedulerState, now_ms: int) -> list[RankPhase] | None:
    """Those that have trained to the end, as far as they say what they have begun in all; None: one of them is about to say it."""
    ranks: list[RankPhase] = []
    for node in state.workers:
        if not node.done:
            continue
        beat = node.newest_beat
        is_told = (
            beat is not None and beat.generation == state.job.generation and beat.step == node.record.step
        )
        if not is_told and now_ms - node.heard_ms <= state.rules.heartbeat_ms_max + PAUSE_MS:
            return None
        if is_told and beat is not None and beat.phase is not None and node.record.rank is not None:
            ranks.append(RankPhase(node.record.rank, node.record.node_id, beat.step, beat.phase))
    return ranks


def _suspect(state: SchedulerState, found: Suspect, now_ms: int) -> list[SchedulerEffect]:
    watch, node = state.hangs, state.nodes[NodeId(found.node_id)]
    effects: list[SchedulerEffect] = []
    known = watch.suspicion
    if known is None or not known.suspect.is_same(found):
        watch.suspicion = known = Suspicion(state.job.generation, found, now_ms)
        effects.append(Persist((_suspected(state, node, found),)))
    # Without recovery nothing is replaced, and the job would end.
    replaces = state.rules.replaces_hung and state.rules.recovery_enabled
    is_long = found.lasting_ms >= _REPLACED_AT * max(known.suspect.limit_ms, state.rules.lease_ms)
    # A limit may have become known when more than that was over.
    if replaces and is_long and now_ms - known.told_ms >= state.rules.lease_ms:
        # Where that was wrong, it is not so soon the next time.
        watch.raise_limits(found._replace(limit_of=known.suspect.limit_of))
        watch.suspicion = None
        reason = (
            f"{found.sentence}, and that was told long enough ago (MS_STEP_TIMEOUT=auto, MS_ON_HANG=replace)"
        )
        _fail(state, reason, found.step, now_ms)
    return effects


def _suspected(state: SchedulerState, node: Node, found: Suspect) -> EventRecord:
    beat = node.newest_beat
    assert beat is not None, "it is judged by it"
    assert beat.phase is not None, "it is judged by it"
    return state.node_event(
        EventKind.HANG_SUSPECTED, node, step=found.step, reason=found.sentence, details=beat.phase.stack
    )


def _fail(state: SchedulerState, reason: str, step: int, now_ms: int) -> None:
    crash_loop = ended_at(state, step, now_ms)
    state.facts.failures.append(Failure(reason, crash_loop=crash_loop, details=NO_STEP))
