"""What a process finds of its checkpoints, in its own directory and in those that it knows or is told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from recovery.core import messages as m
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import FindCheckpoints
from tests.simulation.notes import past_known

if TYPE_CHECKING:
    from tests.simulation.process import Process


def found(process: Process, find: FindCheckpoints) -> None:
    """Tell the machine what lies where it was told to look."""
    if not process.alive:
        return
    world, name = process.world, process.name
    notes, looked_for = world.notes[name], None
    places = {name, *notes.places, *world.exchange.own(process, find.rank)}
    if find.offer is not None:
        looked_for, past = find.rank, None
        # What another node still fetches lies nowhere yet.
        said = {held.path.rpartition("/")[0] for held in find.offer.held} - {""}
        theirs = world.notes[find.offer.replaced].places
        places |= {*said, str(find.offer.replaced), *theirs}
        process.offered[find.offer.rank] = places - {name}
    else:
        past = past_known(process, find)
        if past is not None:
            ids = world.names_of_place(name, str(process.identity.replaces))
            notes.places |= set(ids).union(*(world.notes[one].places for one in ids)) - {name}
            places |= notes.places
    held, passed_over = _look(process, places, find.job, find.run, find.rank)
    if past is not None:
        of_past, _ = _look(process, places, past.job, past.run, past.rank)
        of_job = FindCheckpoints(find.search_id, past.job, past.run, past.rank)
        past = msgspec.structs.replace(past, held=of_past, copies=world.exchange.held(process, of_job))
    copies = world.exchange.held(process, find)
    process.handle(
        s.CheckpointsFound(process.request(), find.search_id, held, passed_over, past, looked_for, copies)
    )


def _look(
    process: Process, places: set[str], job: str, run: int, rank: int | None
) -> tuple[tuple[m.HeldCheckpoint, ...], tuple[m.Skipped, ...]]:
    held, passed_over = process.world.disk.look(process.name, places, job=job, run=run, rank=rank)
    process.clock.seen["a file was passed over"] += len(passed_over)
    return held, passed_over
