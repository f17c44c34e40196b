"""What the machine asks for copies, carried out: brought, let go, listed, and what came of it delivered in the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from recovery.checkpoint import catalogue
from recovery.core.held import HeldCheckpoint, HeldCopy, Source
from recovery.core.ids import Generation, NodeId, Rank, RequestId, RunId
from recovery.core.messages import GenerationStart
from recovery.core.records import CheckpointState, to_record
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Fetch, RetainCopies
from recovery.transport.access import Access
from recovery.transport.job_token import Authenticator
from recovery.worker import copy_work
from recovery.worker.copy_work import CopyWork
from recovery.worker.file_exchange import FileExchange
from recovery.worker.held_copies import Copies
from tests.checkpoint.conftest import Save
from tests.transport.wire import run, until

RUN = RunId(1)


class Node:
    """One node with its copies; `off`: recovery is off."""

    def __init__(self, path: Path, *, off: bool = False) -> None:
        self.copies = Copies(path, "w0")
        self.exchange = FileExchange(self.copies.served, lambda: Authenticator(None), lambda: None)
        self.work = CopyWork(
            None if off else self.copies,
            self.exchange,
            world_size=2,
            access=Access(),
            host=lambda: "127.0.0.1",
            still_owns_rank=lambda: True,
        )
        self.own = Save(path / "own")("train-1_7.ckpt", b"own", rank=1, step=7)
        self.delivered: list[s.WorkerStimulus] = []

    def source(self) -> Source:
        return Source(node_id=NodeId("a"), address=self.work.address())

    def held(self) -> HeldCheckpoint:
        (held,) = catalogue.scan(self.own.parent, None, job="job-a", run=1, rank=1)
        return held

    def carry_out(self, effect: Fetch | RetainCopies) -> None:
        self.work.carry_out(effect, lambda: RequestId("r"), self.delivered.append)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    with contextlib.ExitStack() as stack:

        def made(name: str, *, off: bool = False) -> Node:
            node = Node(tmp_path / name, off=off)
            stack.callback(node.exchange.close)
            return node

        yield made


def fetch_of(node: Node, *sources: Source) -> Fetch:
    return Fetch(3, "job-a", Rank(1), node.held(), sources, for_plan=True)


def test_what_a_node_has_saved_is_brought_to_another(make: Callable[..., Node]) -> None:
    owner, holder = make("a"), make("b")
    held = owner.held()
    owner.work.note_saved([to_record(Rank(1), held, CheckpointState.PUBLISHED)])

    async def main() -> None:
        source = await asyncio.to_thread(owner.source)
        holder.carry_out(fetch_of(owner, source))
        await until(lambda: holder.delivered, "the outcome")

    run(main())
    path = str(holder.copies.directory("job-a", RUN, Rank(1)) / "train-1_7.ckpt")
    copy = msgspec.structs.replace(held, path=path)
    assert holder.delivered == [s.Fetched(RequestId("r"), 3, copy)]
    assert holder.work.held("job-a", RUN, Rank(0), ()) == (HeldCopy(rank=Rank(1), checkpoint=copy),)
    assert holder.work.held("job-a", RUN, Rank(1), ()) == (), "what is its own is no copy"


def test_the_name_of_the_host_is_looked_up_until_it_is_known_and_no_more(
    make: Callable[..., Node], tmp_path: Path
) -> None:
    names, asked = ["", "127.0.0.1"], list[str]()

    def host() -> str:
        asked.append(names[len(asked)])
        return asked[-1]

    node = make("a")
    work = CopyWork(
        node.copies, node.exchange, world_size=2, access=Access(), host=host, still_owns_rank=lambda: True
    )
    assert work.address() == ""
    assert work.address() == work.address() == node.exchange.address("")
    assert asked == names


def test_what_does_not_come_names_each_source(make: Callable[..., Node]) -> None:
    owner, holder = make("a"), make("b")

    async def main() -> Source:
        source = await asyncio.to_thread(owner.source)
        holder.carry_out(fetch_of(owner, source))
        await until(lambda: holder.delivered, "the outcome")
        return source

    source = run(main())
    (failed,) = holder.delivered
    assert isinstance(failed, s.FetchFailed)
    assert [(one.source, one.damaged) for one in failed.failures] == [(source, True)]


def test_a_node_that_keeps_nothing_says_so(make: Callable[..., Node]) -> None:
    node = make("a", off=True)

    async def main() -> None:
        node.carry_out(fetch_of(node))
        node.carry_out(RetainCopies("job-a", RUN, 0, ()))

    run(main())
    (failed,) = node.delivered
    assert isinstance(failed, s.FetchFailed)
    assert "MS_RECOVERY_PATH" in failed.reason
    assert node.work.address() == ""
    assert node.work.held("job-a", RUN, Rank(0), ()) == ()


def test_what_no_plan_can_need_goes(make: Callable[..., Node]) -> None:
    node = make("a")
    directory = node.copies.directory("job-a", RUN, Rank(1))
    for step, generation in ((5, 1), (7, 1), (9, 1), (8, 2)):
        Save(directory)(f"train-1_{step}.ckpt", b"x", rank=1, step=step, generation=generation)
    began = GenerationStart(generation=Generation(2), step=7, epoch=1, step_in_epoch=7)

    async def main() -> None:
        node.carry_out(RetainCopies("job-a", RUN, 7, (began,)))
        await until(lambda: len(list(directory.glob("*.json"))) == 2, "the removal")

    run(main())
    steps = [one.checkpoint.step for one in node.work.held("job-a", RUN, Rank(0), ())]
    assert steps == [8, 7], "9 was rolled back, 5 is older than what is needed"


def test_what_a_plan_can_need_is_kept_and_nothing_else(make: Callable[..., Node]) -> None:
    node = make("a")
    save = Save(node.copies.directory("job-a", RUN, Rank(1)))
    for step, generation in ((5, 1), (7, 1), (9, 1), (8, 2)):
        save(f"train-1_{step}.ckpt", b"x", rank=1, step=step, generation=generation)
    began = GenerationStart(generation=Generation(2), step=7, epoch=1, step_in_epoch=7)

    copy_work._retain(node.copies, RetainCopies("job-a", RUN, 7, (began,)))

    assert [one.checkpoint.step for one in node.work.held("job-a", RUN, Rank(0), ())] == [8, 7]


def test_what_is_left_of_a_copy_that_no_plan_can_need_goes(make: Callable[..., Node]) -> None:
    node = make("a")
    directory = node.copies.directory("job-a", RUN, Rank(1))
    for step in (5, 7, 9):
        Save(directory).set(f"train-1_{step}.ckpt", {f"train-1_{step}.side": b"x"}, rank=1, step=step)
        (directory / f"train-1_{step}.ckpt").unlink()
    of_rank_0 = Save(directory).set("train-1_4.ckpt", {"train-1_4.side": b"x"}, rank=0, step=4)
    of_rank_0.unlink()

    async def main() -> None:
        node.carry_out(RetainCopies("job-a", RUN, 7, ()))
        await until(lambda: not (directory / "train-1_5.json").exists(), "the removal")

    run(main())
    there = {path.name for path in directory.iterdir()}
    assert there == {f"train-1_{step}.{suffix}" for step in (4, 7, 9) for suffix in ("side", "json")}
