"""What workers know of an old job, and how they report it to a scheduler that does not."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.policy import rebuild
from recovery.core.policy.rebuild import Rebuilt
from tests.core.desk import Desk, Worker, checkpoint

OLD = "the old job"


def past(rank: int, *steps: int, generation: int = 1, **changes: object) -> m.JobHistory:
    """What a rank of a world of two knows of the old job."""
    known = m.JobHistory(
        job=OLD,
        run=RunId(1),
        rank=Rank(rank),
        worker_count=2,
        server_count=0,
        incarnation=Incarnation(3),
        generation=Generation(generation),
        scheduler_incarnation=Incarnation(5),
        began=(began(generation, 0),),
        held=tuple(
            checkpoint(step, generation=generation, path=f"{rank}/{step}")
            for step in sorted(steps, reverse=True)
        ),
        saved_step=max(steps, default=0),
    )
    return msgspec.structs.replace(known, **changes)


def began(generation: int, step: int) -> m.GenerationStart:
    return m.GenerationStart(generation=Generation(generation), step=step, epoch=0, step_in_epoch=0)


def first_after(newest: int) -> int:
    """The number of a desk's first plan once its lost store is built again."""
    return rebuild.first_number_after(Generation(newest), rebuild.thousands_skipped("job"))


def built(*pasts: m.JobHistory) -> Rebuilt:
    found = rebuild.rebuild({NodeId(f"w{one.rank}"): one for one in pasts})
    assert isinstance(found, Rebuilt)
    return found


def ready(worker: Worker, known: m.JobHistory | None, *held: m.HeldCheckpoint) -> list[m.FromScheduler]:
    return worker.send(
        m.Ready(request_id=worker.request(), generation=worker.generation, step=0, held=held, past=known)
    )


def pass_time(desk: Desk, ms: int, *living: Worker) -> None:
    """Time passes, and these are heard."""
    end = desk.now + ms
    while desk.now < end:
        for worker in living:
            worker.beat()
        desk.at(min(end, desk.now + 5_000))


def come(desk: Desk, *pasts: m.JobHistory | None) -> list[Worker]:
    """Both workers register and say what they know."""
    workers = [Worker(desk, f"worker_{number}") for number in range(2)]
    for worker in workers:
        worker.register()
    for worker, known in zip(workers, pasts, strict=True):
        ready(worker, known)
    return workers
