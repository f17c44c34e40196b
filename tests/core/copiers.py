"""A desk whose workers serve their files, each on its own host: what tests of copies begin with."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.copy_messages import CopyFailed, CopyOrder, CopyReport, FetchFault
from recovery.core.copy_records import CopyRecord, CopyState
from recovery.core.held import Source
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.rules import Rules
from recovery.core.tiers import MEMORY_DIRECTORY_PREFIX, Tier, tier_of
from tests.core.desk import Desk, Worker, begin

RULES = Rules(worker_count=2, checkpoint_copies=1, rejoin_window_ms=0)


def server(desk: Desk, name: str, host: str = "", **fields: object) -> Worker:
    """A worker that serves its files."""
    return Worker(desk, name, host=host or f"host of {name}", serves=f"{name}:1", **fields)


def servers(desk: Desk, *names: str) -> list[Worker]:
    """Workers that train, each on a host of its own."""
    found = [server(desk, name) for name in names or ("worker_0", "worker_1")]
    begin(found)
    return found


def orders(worker: Worker) -> list[CopyOrder]:
    """What it was ordered to copy on its connection."""
    return [one for one in worker.desk.tray[worker.connection] if isinstance(one, CopyOrder)]


def copied(held: m.HeldCheckpoint, holder: Worker, rank: int) -> m.HeldCheckpoint:
    """A contribution as it lies on its holder: in memory if the original does."""
    where = f"{holder.node_id}/copies/{rank}/{held.step}"
    if tier_of(held.path) is Tier.MEMORY:
        where = f"/dev/shm/{MEMORY_DIRECTORY_PREFIX}1000-abc/{holder.node_id}.copies.run-1.rank-{rank}/{held.step}"
    return msgspec.structs.replace(held, path=where)


def reports(holder: Worker, order: CopyOrder) -> m.HeldCheckpoint:
    """The copy is there."""
    held = copied(order.checkpoint, holder, order.rank)
    holder.send(CopyReport(request_id=holder.request(), rank=order.rank, checkpoint=held))
    return held


def fails(
    holder: Worker,
    order: CopyOrder,
    *,
    damaged: bool = False,
    gives_up: bool = True,
    run: int = 1,
    reason: str = "",
) -> None:
    """The copy did not come from any source; `reason`: there is no place for it here."""
    faults = tuple(FetchFault(source=one, reason="it is cut", damaged=damaged) for one in order.sources)
    checkpoint = order.checkpoint
    holder.send(
        CopyFailed(
            request_id=holder.request(),
            run=RunId(run),
            rank=order.rank,
            step=checkpoint.step,
            digest=checkpoint.digest,
            failures=() if reason else faults,
            gives_up=gives_up,
            reason=reason,
        )
    )


def not_fetched(
    worker: Worker, plan: m.Rollback, *, damaged: bool = False, reason: str = "", **changes: object
) -> None:
    """What a plan goes back to did not come."""
    faults = tuple(FetchFault(source=one, reason="it is cut", damaged=damaged) for one in plan.sources)
    failed = CopyFailed(
        request_id=worker.request(),
        run=plan.run,
        rank=plan.rank,
        step=plan.step,
        digest=plan.digest,
        failures=() if reason else faults,
        generation=plan.generation,
        reason=reason,
    )
    worker.send(msgspec.structs.replace(failed, **changes))


def all_copied(desk: Desk, workers: list[Worker], *steps: int) -> dict[int, list[m.HeldCheckpoint]]:
    """Everybody saves, and every copy is made; the files by step."""
    saved = {}
    for step in steps:
        saved[step] = [worker.save(step) for worker in workers]
        for worker in workers:
            for order in orders(worker):
                if order.checkpoint.step == step:
                    reports(worker, order)
    return saved


def held_copies(desk: Desk, state: CopyState = CopyState.HELD) -> list[tuple[int, int, str]]:
    """(step, rank, holder) of the copies that are stored so."""
    return [(one.step, one.rank, one.node_id) for one in desk.row(CopyRecord) if one.state is state]


def ready(
    worker: Worker, *held: m.HeldCheckpoint, copies: dict[int, list[m.HeldCheckpoint]] | None = None
) -> None:
    """It waits for a plan, and says what it holds.

    Args:
        worker: who.
        held: of its own rank.
        copies: of others, by rank.
    """
    of_others = tuple(
        m.HeldCopy(rank=Rank(rank), checkpoint=copied(one, worker, rank))
        for rank, files in (copies or {}).items()
        for one in files
    )
    worker.send(
        m.Ready(
            request_id=worker.request(), generation=worker.generation, step=0, held=held, copies=of_others
        )
    )


def source(worker: Worker) -> Source:
    """Where it serves."""
    return Source(node_id=worker.node_id, address=f"{worker.node_id}:1")


def is_restarting(worker: Worker) -> Worker:
    """The next process of an id, on an empty disk."""
    desk = worker.desk
    worker.die()
    desk.at(desk.now + 600)
    again = server(desk, str(worker.node_id))
    assert isinstance(again.register(), m.Admitted)
    again.generation = Generation(0)
    return again
