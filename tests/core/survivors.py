"""Workers that are told by hand what they have in their memory after a loss."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.core import messages as m
from recovery.core.held import LiveState
from recovery.core.ids import Generation, RunId
from recovery.core.records import EventKind
from tests.core.desk import Desk, Worker, running_workers

STRUCTURE = "0f" * 32


def in_memory(step: int, *, generation: int = 1, run: int = 1, structure: str = STRUCTURE) -> LiveState:
    """The whole state of a step; ten steps are an epoch."""
    return LiveState(
        run=RunId(run),
        generation=Generation(generation),
        step=step,
        epoch=(step - 1) // 10 + 1,
        step_in_epoch=(step - 1) % 10 + 1,
        structure=structure,
    )


def ready_with(
    worker: Worker, live: LiveState | None, *held: m.HeldCheckpoint, not_live: str = ""
) -> list[m.FromScheduler]:
    """A rank has stopped; it says what is in its memory, and which checkpoints it holds."""
    return worker.send(
        m.Ready(
            request_id=worker.request(),
            generation=worker.generation,
            step=live.step if live is not None else 0,
            held=held,
            live=live,
            not_live=not_live,
        )
    )


def lose(desk: Desk, worker: Worker) -> Worker:
    """A worker dies, and a process with nothing in its memory comes under its id."""
    worker.die()
    desk.at(desk.now + 1_000)
    again = Worker(desk, worker.node_id)
    assert isinstance(again.register(), m.Admitted)
    return again


def took(worker: Worker, content: str = "the same") -> list[m.FromScheduler]:
    """It has taken the state of its plan from a rank's memory."""
    plan = worker.desk.machine.state.generations[-1]
    return worker.send(m.StateLoaded(generation=plan.generation, step=plan.step, content=content))


def could_not(worker: Worker, reason: str = "a parameter was changed since") -> list[m.FromScheduler]:
    """It could not give, or take, the state of its plan."""
    plan = worker.last(m.Rollback)
    return worker.send(
        m.CheckpointInvalid(
            request_id=worker.request(),
            generation=plan.generation,
            step=plan.step,
            path=f"live:{plan.live_rank}",
            reason=reason,
        )
    )


def follow(workers: Sequence[Worker]) -> m.Rollback:
    """All follow the newest plan; rank 0's, which is everybody's but for the rank's own place."""
    for worker in workers:
        worker.follow()
    return workers[0].last(m.Rollback)


def reasons(desk: Desk, kind: EventKind = EventKind.PLAN_MADE) -> list[str]:
    """Why each plan goes where it goes; or the reasons of other events."""
    return [event.reason for event in desk.events if event.kind is kind]


def live_generation(desk: Desk, step: int = 25) -> list[Worker]:
    """The last of three workers died; all follow the plan to the memory of rank 0."""
    first, second, third = running_workers(desk, "worker_0", "worker_1", "worker_2")
    third = lose(desk, third)
    ready_with(first, in_memory(step))
    ready_with(second, in_memory(step))
    ready_with(third, None)
    workers = [first, second, third]
    assert follow(workers).live_rank == 0
    return workers
