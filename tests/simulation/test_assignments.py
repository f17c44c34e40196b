"""The model lets a job end for want of readable files only where no way of giving out its ranks would have helped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from recovery.core.ids import Rank
from recovery.core.messages import Role
from recovery.core.records import CheckpointRecord, CheckpointState, NodeRecord, NodeState, to_record
from recovery.core.scheduler.job_states import new_job
from tests.core.desk import checkpoint
from tests.simulation.assignments import nobody_could
from tests.simulation.files import Saved
from tests.simulation.shape import Spares, shape_of
from tests.simulation.world import World
from tests.store.any_records import node


def ended(saved_by: tuple[str, ...], *, hosts: int = 2, shared: bool = False, here: tuple[str, ...]) -> World:
    """A job of as many ranks as there are savers, each of which has saved step 10 under that id; w0 and w2 are on host 0."""
    spares = Spares(hosts=hosts, shared_files=shared)
    world = World(0, shape_of(0, ("kill",), workers=len(saved_by), spares=spares))
    job = new_job("job", world.rules)
    rows: list[NodeRecord | CheckpointRecord] = [
        node(name, role=Role.WORKER, rank=None, state=NodeState.LIVE) for name in here
    ]
    for rank, name in enumerate(saved_by):
        held = checkpoint(10, path=f"{name}/10")
        world.disk[name][10] = Saved(held=held, content=(), rank=rank)
        rows.append(to_record(Rank(rank), held, CheckpointState.COMMITTED))
    world.store.rows = {(type(one), str(number)): one for number, one in enumerate(rows)}
    world.store.rows[type(job),] = job
    return world


@pytest.mark.parametrize(
    ("saved_by", "here", "nobody"),
    [
        (("w0", "w1"), ("w0", "w1"), False),
        # Each can have the other's rank.
        (("w0.2", "w1.2"), ("w1", "w0"), False),
        # Both files lie on one host, and one process runs there.
        (("w0", "w0.2"), ("w0", "w1"), True),
        # A process whose place is empty now is started again.
        (("w0", "w0.2", "w1"), ("w0", "w1"), False),
        # Two of one place are connected, and both read it.
        (("w0", "w0.2"), ("w0", "w0.2", "w1"), False),
    ],
)
def test_who_could_have_read_which_file(
    saved_by: tuple[str, ...], here: tuple[str, ...], nobody: bool
) -> None:
    assert nobody_could(ended(saved_by, here=here)) is nobody


def test_where_every_host_reads_every_file_there_is_always_a_way() -> None:
    assert not nobody_could(ended(("w0", "w0.2"), here=("w0", "w1"), shared=True))


@pytest.mark.parametrize("lost", [{"gone": True}, {"fault": "cut short"}, {"rank": 1}])
def test_a_step_of_which_a_file_is_lost_is_no_way_and_an_older_whole_one_is(lost: dict[str, Any]) -> None:
    world = ended(("w0", "w1"), here=("w0", "w1"))
    world.disk["w0"][10] = msgspec.structs.replace(world.disk["w0"][10], **lost)
    assert nobody_could(world)
    for rank, name in enumerate(("w0", "w1")):
        held = checkpoint(5, path=f"{name}/5")
        world.disk[name][5] = Saved(held=held, content=(), rank=rank)
        world.store.rows[CheckpointRecord, f"older {rank}"] = to_record(
            Rank(rank), held, CheckpointState.COMMITTED
        )
    assert not nobody_could(world)


def test_a_job_that_never_had_a_step_in_common_can_always_begin_again() -> None:
    assert not nobody_could(ended((), here=("w0", "w1")))
