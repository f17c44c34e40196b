"""Copies count wherever a look finds them: under a fresh id of their holder's place, and where the scheduler's store is lost."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.copy_records import CopyState
from recovery.core.ids import Rank, RunId
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from tests.core.copiers import RULES, all_copied, copied, held_copies, server, servers, source
from tests.core.desk import Desk, checkpoint
from tests.core.pasts import pass_time, past
from tests.core.pasts import ready as say


def test_copies_of_a_place_are_those_of_the_fresh_id_that_has_it() -> None:
    desk = Desk(RULES)
    first, second = servers(desk)
    [own, other] = all_copied(desk, [first, second], 10)[10]
    for worker in (first, second):
        worker.die()
    desk.at(desk.now + 600)
    fresh = [
        server(desk, f"{old.node_id}.2", replaces=old.node_id, host=f"host of {old.node_id}")
        for old in (first, second)
    ]
    for worker in fresh:
        worker.register()
    desk.at(desk.now + 600)
    zero, one = fresh
    copy = m.HeldCopy(rank=Rank(1), checkpoint=copied(other, first, 1))
    for worker, rank, held, copies in ((zero, 0, (own,), (copy,)), (one, 1, (), ())):
        desk.at(desk.now + 600)
        worker.send(
            m.Ready(
                request_id=worker.request(),
                generation=worker.generation,
                step=0,
                held=held,
                rank=Rank(rank),
                copies=copies,
            )
        )
    assert one.follow().sources == (source(zero),)
    assert held_copies(desk) == [(10, 1, "worker_0.2")]
    assert (10, 1, "worker_0") in held_copies(desk, CopyState.GONE)


def test_copies_of_a_job_whose_store_is_lost_are_taken_up() -> None:
    desk = Desk(Rules(worker_count=2, checkpoint_copies=1, rebuild_store=True))
    zero, one = server(desk, "worker_0"), server(desk, "worker_1")
    for worker in (zero, one):
        worker.register()
    of_zero = m.HeldCopy(rank=Rank(0), checkpoint=checkpoint(10, path="copies/0/10"))
    rolled_back = m.HeldCopy(rank=Rank(0), checkpoint=checkpoint(90, generation=0, path="copies/0/90"))
    known = past(1, 10)
    say(one, msgspec.structs.replace(known, copies=(of_zero, rolled_back)))
    say(zero, None)
    pass_time(desk, 31_000, zero, one)
    assert EventKind.STORE_REBUILT in desk.kinds()
    plan = zero.follow()
    assert (plan.step, plan.sources) == (10, (source(one),))
    assert held_copies(desk)[0][2] == "worker_1"


def test_copies_of_an_older_run_are_not() -> None:
    desk = Desk(Rules(worker_count=2, checkpoint_copies=1, rebuild_store=True))
    zero, one = server(desk, "worker_0"), server(desk, "worker_1")
    for worker in (zero, one):
        worker.register()
    copy = m.HeldCopy(rank=Rank(0), checkpoint=checkpoint(10, path="copies/0/10"))
    say(zero, past(0, 20, run=RunId(2)))
    say(one, past(1, 20, run=RunId(1), copies=(copy,)))
    pass_time(desk, 31_000, zero, one)
    assert held_copies(desk) == []


def test_copies_that_an_earlier_id_of_a_place_has_noted_are_taken_up_too() -> None:
    """The blackout took the scheduler's store as well, and the launcher gives fresh ids."""
    desk = Desk(Rules(worker_count=2, checkpoint_copies=1, rebuild_store=True))
    fresh = server(desk, "worker_1.2", replaces="worker_1", host="host of worker_1")
    zero = server(desk, "worker_0")
    for worker in (zero, fresh):
        worker.register()
    of_zero = m.HeldCopy(rank=Rank(0), checkpoint=checkpoint(10, path="copies/0/10"))
    say(fresh, past(1, 10, copies=(of_zero,), noted_by="worker_1"))
    say(zero, None)
    pass_time(desk, 31_000, zero, fresh)
    plan = zero.follow()
    assert (plan.step, plan.sources) == (10, (source(fresh),))
    assert held_copies(desk) == [(10, 0, "worker_1.2")]
