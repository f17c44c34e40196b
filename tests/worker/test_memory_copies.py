"""Copies of what other ranks have in memory lie in this host's memory, within a bound, and are given like those on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from recovery.checkpoint import catalogue, memory_tier
from recovery.config import MemorySettings
from recovery.core.held import HeldCheckpoint
from recovery.core.ids import Generation, Rank, RunId
from recovery.core.tiers import Tier, tier_of
from recovery.errors import CheckpointWriteError
from recovery.worker import memory_tier_hold
from recovery.worker.held_copies import Copies, Ordered
from tests.checkpoint.conftest import Save

RUN, OTHER, OWN = RunId(1), Rank(1), Rank(0)
BYTES = 1_000


@pytest.fixture(autouse=True)
def _leave_memory() -> Iterator[None]:
    """What a process holds until its end, a test lets go of at its own."""
    yield
    while memory_tier_hold._homes:
        memory_tier_hold._homes.popitem()[1].home.leave(job_is_over=True)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


def copies(base: Path, *, place: str = "w0", every_steps: int = 2, bytes_max: int = 10 * BYTES) -> Copies:
    """The copies of one process of a host."""
    settings = MemorySettings(base=base, every_steps=every_steps, bytes_max=bytes_max)
    made = Copies(base.parent / "recovery", place)
    made.use_memory(settings, lambda: True)
    return made


def order(step: int = 4, *, size: int = BYTES, job: str = "job-a", rank: Rank = OTHER) -> Ordered:
    """A copy of what its owner has in memory."""
    held = HeldCheckpoint(
        run=RUN,
        generation=Generation(1),
        step=step,
        epoch=1,
        step_in_epoch=step,
        path=f"/dev/shm/recovery-memory-0-job-a/run-1-rank-{rank}/t-1_{step}.ckpt",
        digest="d",
        file_bytes=size,
    )
    return Ordered(job, rank, held)


def arrive(copies: Copies, ordered: Ordered) -> HeldCheckpoint:
    """The copy is there; as it lies here."""
    step, directory = ordered.checkpoint.step, copies.directory_for(ordered)
    content = b"x" * ordered.checkpoint.file_bytes
    Save(directory)(f"t-1_{step}.ckpt", content, rank=ordered.rank, step=step)
    found = catalogue.scan(directory, None, job="job-a", run=RUN, rank=ordered.rank)
    return next(one for one in found if one.step == step)


def test_a_copy_lies_on_what_its_original_lies_on(base: Path) -> None:
    here = copies(base)
    in_memory = order()
    on_disk = Ordered("job-a", OTHER, msgspec.structs.replace(in_memory.checkpoint, path="/disk/t-1_4.ckpt"))
    assert here.directory_for(on_disk) == here.directory("job-a", RUN, OTHER)
    held = arrive(here, in_memory)
    assert tier_of(held.path) is Tier.MEMORY
    assert Path(held.path).is_relative_to(base)


def test_the_next_process_of_the_place_finds_and_gives_it(base: Path) -> None:
    held = arrive(copies(base), order())
    again = copies(base)
    assert again.held("job-a", RUN) == ((OTHER, held),)
    served = again.served(held.digest)
    assert served is not None
    assert [str(path) for path in served.files] == [held.path]
    assert again.directories("job-a", RUN, OTHER)[1:] == (Path(held.path).parent,)
    assert copies(base, place="w1").held("job-a", RUN) == (), "another place of the host has its own"
    assert again.held("job-a", RunId(2)) == ()


def test_what_stands_beside_them_is_not_looked_at(base: Path) -> None:
    here = copies(base)
    held = arrive(here, order())
    beside = Path(held.path).parent.parent
    for name in ("w0.copies.run-1.rank-x", "w0.copies.run-1.rank-01", "run-1-rank-1"):
        (beside / name).mkdir()
    assert here.held("job-a", RUN) == ((OTHER, held),)


def test_what_is_not_needed_goes_by_its_tier(base: Path) -> None:
    here = copies(base)
    for step in (2, 4):
        arrive(here, order(step))
    Save(here.directory("job-a", RUN, OTHER))("t-1_3.ckpt", b"x", rank=1, step=3)
    here.keep_only("job-a", RUN, lambda _, one: one.step >= 4 or tier_of(one.path) is Tier.DISK)
    assert [one.step for _, one in here.held("job-a", RUN)] == [4, 3]


def test_what_an_earlier_process_has_left_half_fetched_goes(base: Path) -> None:
    held = arrive(copies(base), order())
    left = Path(held.path).with_name(".t-1_6.ckpt.1234-aa.tmp")
    left.write_bytes(b"half")
    copies(base).sweep("job-a")
    assert not left.exists()
    assert Path(held.path).exists()


@pytest.mark.parametrize("bytes_max", [2 * BYTES + BYTES // 2, 0])
def test_copies_take_no_more_than_their_bound(base: Path, bytes_max: int) -> None:
    here = copies(base, bytes_max=bytes_max)
    arrive(here, order(2))
    arrive(here, order(4))
    size = BYTES if bytes_max else memory_tier.free_bytes(base)
    with pytest.raises(CheckpointWriteError, match="MS_MEMORY_CHECKPOINT_BYTES") as refused:
        here.directory_for(order(6, size=size))
    assert f"it takes {size} bytes, and {2 * BYTES} of the" in str(refused.value)
    assert here.directory_for(order(4)).exists(), "what is there already takes no more"


@pytest.mark.parametrize("given", [False, True])
def test_without_checkpoints_in_memory_none_is_copied_there(base: Path, *, given: bool) -> None:
    here = copies(base, every_steps=0) if given else Copies(base.parent / "recovery", "w0")
    with pytest.raises(CheckpointWriteError, match="MS_MEMORY_CHECKPOINT_STEPS"):
        here.directory_for(order())
    assert here.held("job-a", RUN) == ()
    assert here.directories("job-a", RUN, OWN) == (here.directory("job-a", RUN, OWN),)
    assert list(base.iterdir()) == []


def test_a_host_without_the_tmpfs_says_why(base: Path) -> None:
    here = copies(base / "not there")
    here.sweep("job-a")
    assert here.held("job-a", RUN) == ()
    with pytest.raises(CheckpointWriteError, match="No such file"):
        here.directory_for(order())


def test_a_job_whose_name_leads_elsewhere_stays_here(base: Path) -> None:
    directory = copies(base).directory_for(order(job="../../elsewhere"))
    assert directory.parent.parent == base
    assert os.fspath(directory.parent.name).startswith("recovery-memory-")


def test_the_end_of_the_job_leaves_nothing(base: Path) -> None:
    arrive(copies(base), order())
    memory_tier_hold._homes.popitem()[1].home.leave(job_is_over=True)
    assert list(base.iterdir()) == []
