"""The end of training at a step that all ranks come to: a script asks for it (`session.stop()`), and their loops end there.

The first step is that of the rank that asks, which waits there: where all ask at the same step, that is it. The barrier waits for a rank that is
away, since it ends with its generation at the latest: then the next plan says where training ends. Launchers that ask for the end of the job
meanwhile wait for it, and for the save of that step behind it.
"""

from __future__ import annotations

import msgspec

from recovery.core.barrier_messages import StopTraining, TrainingEnds
from recovery.core.effects import Answer, Persist
from recovery.core.records import EventKind, JobState, TrainingEndRecord
from recovery.core.scheduler import barrier_ends
from recovery.core.scheduler.barrier import Barrier, BarrierState
from recovery.core.scheduler.effects import BarrierTimer, SchedulerEffect, SetTimer
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState

_ASK_AGAIN_MS = 1_000
"""How often a rank is asked again that has not said whether it stops where training ends: it was still fetching what the plan goes back to."""


def on_stop_training(
    state: SchedulerState, node: Node, stop: StopTraining, now_ms: int
) -> list[SchedulerEffect]:
    """A script ends training. It is noted before anything else: what is saved at that step must not lead behind it."""
    is_here = state.job.state in (JobState.RUNNING, JobState.INTERRUPTED)
    is_of_it = node.record.rank is not None and stop.generation == state.job.generation
    if not (is_here and is_of_it) or state.training_end is not None:
        # Said before; or its generation is over, and what follows comes to that step again.
        return []
    why = f"{node.record.node_id}: {stop.reason or 'session.stop()'}"[:1024]
    end = state.training_end = TrainingEndRecord(run=state.job.run, step=stop.step, reason=why)
    effects: list[SchedulerEffect] = [Persist((end,))]
    if state.job.state is not JobState.RUNNING:
        # The next plan says it.
        return effects
    before = barrier_ends.open_one(state)
    if before is not None:
        effects += barrier_ends.give_up(state, before, f"training ends ({why})")
    barrier = barrier_ends.new_barrier(state, why, _ASK_AGAIN_MS, now_ms)
    barrier.ends_training = True
    barrier.move(BarrierState.AGREEING)
    timer = SetTimer(BarrierTimer(), barrier.until_ms)
    return [*effects, timer, barrier.ask(state.workers, stop.step)]


def advance(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Who was away is asked again, and who has not listened; nobody is given up while the generation goes on."""
    barrier = state.barrier
    assert barrier is not None, "it ends training"
    if barrier.state is BarrierState.SAVING:
        return _end_training(state, barrier, now_ms)
    asked, timer = barrier.reconnected(state.workers), list[SchedulerEffect]()
    if now_ms >= barrier.until_ms:
        # Whoever has not answered was not in the generation yet.
        asked = [one for one in state.workers if one in asked or one.record.node_id not in barrier.answers]
        barrier.until_ms = now_ms + _ASK_AGAIN_MS
        timer.append(SetTimer(BarrierTimer(), barrier.until_ms))
    asked = [node for node in asked if node.connection is not None]
    return [*timer, barrier.ask_again(asked)] if asked else timer


def _end_training(state: SchedulerState, barrier: Barrier, now_ms: int) -> list[SchedulerEffect]:
    """All ranks stop at the step, and none of them leaves it but by the end of its loop."""
    assert state.training_end is not None, "it was asked for"
    end = state.training_end = msgspec.structs.replace(state.training_end, step=barrier.step)
    event = state.event(
        EventKind.TRAINING_STOPPED, generation=barrier.generation, step=end.step, reason=end.reason
    )
    # Where a rank had come to the end of its loop before, all do, and stop at no step: nobody says that they have.
    told = () if barrier.last_step else (event,)
    said = training_ends(state, end)
    answers = [Answer(node.connection, said) for node in state.workers if node.connection is not None]
    barrier.end(f"training ends at step {end.step} ({end.reason})", is_done=True)
    follows = _save_last(state, barrier, now_ms) if barrier.ends_job else []
    return [Persist((end, *told), tuple(answers)), *follows]


def _save_last(state: SchedulerState, ended: Barrier, now_ms: int) -> list[SchedulerEffect]:
    """Launchers wait for the end of the job: all ranks come to the step at which training ends, and save it last.

    They are asked all the same: where the loop of one ends before that step, all do, and it is never saved.
    """
    barrier = barrier_ends.new_barrier(state, ended.reason, ended.wait_ms, now_ms)
    barrier.launchers, barrier.last_step = ended.launchers, ended.last_step
    barrier.move(BarrierState.SAVING)
    return barrier_ends.begin(state, barrier, ended.last_step or ended.step)


def agreed_training_end(state: SchedulerState) -> TrainingEndRecord | None:
    """Where training of the current generation ends; None: behind its last epoch, or its ranks are still being asked for a step."""
    barrier = barrier_ends.open_one(state)
    return None if barrier is not None and barrier.ends_training else state.training_end


def training_ends(state: SchedulerState, end: TrainingEndRecord) -> TrainingEnds:
    """What a rank hears of it."""
    return TrainingEnds(generation=state.job.generation, step=end.step, reason=end.reason)


def end_training_no_earlier(state: SchedulerState, step: int) -> tuple[TrainingEndRecord, ...]:
    """The next plan goes to this step, and training ends there at the earliest. Gives the row, if that changes it."""
    end = state.training_end
    if end is None or end.step >= step:
        return ()
    state.training_end = msgspec.structs.replace(end, step=step)
    return (state.training_end,)


def why_training_will_end(state: SchedulerState) -> str:
    """Where training ends, and why, for people; empty: behind its last epoch."""
    end = state.training_end
    return f"training ends at step {end.step} ({end.reason})" if end is not None else ""


def why_training_has_ended(state: SchedulerState, step: int) -> str:
    """Why training has ended at this step, for people; empty: that was its last."""
    end = state.training_end
    return f": its script ended it there ({end.reason})" if end is not None and end.step == step else ""
