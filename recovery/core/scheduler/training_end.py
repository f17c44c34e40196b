"""Where the training of a run ends, as a script has asked by `session.stop()`: what its ranks, its plans and people are told of it.

How the ranks of a running generation come to one step for it says drain.py.
"""

from __future__ import annotations

import msgspec

from recovery.core.handover_messages import TrainingEnds
from recovery.core.records import TrainingEndRecord
from recovery.core.scheduler.state import SchedulerState


def agreed(state: SchedulerState) -> TrainingEndRecord | None:
    """Where training of the current generation ends; None: behind its last epoch, or its ranks are still being asked for a step."""
    drain = state.drain
    is_asked = drain is not None and drain.is_open and drain.ends_training
    return None if is_asked else state.training_end


def message(state: SchedulerState, end: TrainingEndRecord) -> TrainingEnds:
    """What a rank hears of it."""
    return TrainingEnds(generation=state.job.generation, step=end.step, reason=end.reason)


def planned(state: SchedulerState, step: int) -> tuple[TrainingEndRecord, ...]:
    """The next plan goes to this step, and training ends there at the earliest. Gives the row, if that changes it."""
    end = state.training_end
    if end is None or end.step >= step:
        return ()
    state.training_end = msgspec.structs.replace(end, step=step)
    return (state.training_end,)


def of_plan(state: SchedulerState) -> str:
    """Where training ends, and why, for people; empty: behind its last epoch."""
    end = state.training_end
    return f"training ends at step {end.step} ({end.reason})" if end is not None else ""


def of_end(state: SchedulerState, step: int) -> str:
    """Why training has ended at this step, for people; empty: that was its last."""
    end = state.training_end
    return f": its script ended it there ({end.reason})" if end is not None and end.step == step else ""
