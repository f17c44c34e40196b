"""A rank that is connected and makes no step: its heartbeats come, and its main thread hangs where no collective would notice it.

Which of the ranks that wait for each other hangs shows itself when the generation has ended: its main thread does not come back, and its process
is replaced (`core/worker/hangs.py`).
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.records import JobState
from recovery.core.scheduler.generations import training_messages
from recovery.core.scheduler.node import Node, StepWait
from recovery.core.scheduler.state import SchedulerState

_LATE_MS = 1_000
"""A heartbeat that is later than the longest wait between two by this shows that one of the two processes was paused. That time counts nowhere;
as PAUSE_MS in liveness.py."""


def note(state: SchedulerState, node: Node, beat: m.Heartbeat, now_ms: int) -> None:
    """A heartbeat says at which step its rank is: the generation cannot go on where that is the same for too long.

    Who has made no step at all is not judged: a program that tells nothing of its steps, or one that compiles its first.
    """
    limit_ms = state.rules.step_timeout_ms
    is_training = state.job.state is JobState.RUNNING and beat.generation == state.job.generation
    if not limit_ms or not is_training or not beat.step or node.done or node.is_standby:
        node.step_wait = None
        return
    before = node.step_wait
    if before is None or (before.generation, before.step) != (beat.generation, beat.step):
        node.step_wait = StepWait(beat.generation, beat.step, 0, now_ms)
        return
    passed_ms = min(now_ms - before.heard_ms, state.rules.heartbeat_ms_max + _LATE_MS)
    node.step_wait = before._replace(lasting_ms=before.lasting_ms + passed_ms, heard_ms=now_ms)
    if node.step_wait.lasting_ms >= limit_ms:
        node.step_wait = None
        reason = f"{node.record.node_id} is connected, and has made no step behind step {beat.step} for {limit_ms / 1000:g} s (MS_STEP_TIMEOUT)"
        state.facts.fail(reason, crash_loop=training_messages.ended_at(state, beat.step, now_ms))
