"""The scheduler notices the end of a process of its own host, and of no other."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from recovery import process_identity
from recovery.core.ids import Incarnation, NodeId
from recovery.core.scheduler.effects import WatchProcess
from recovery.core.scheduler.stimuli import ProcessGone
from recovery.scheduler.process_watch import ProcessWatch, when_gone
from tests.transport.wire import run, until

NODE = NodeId("worker_0")
GONE = ProcessGone(NODE, Incarnation(3))


class Watching:
    """A watch, what it has said, and the processes of a test."""

    def __init__(self) -> None:
        self.said: list[ProcessGone] = []
        self.watch = ProcessWatch(self.said.append)
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self) -> WatchProcess:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        self.children.append(child)
        identity = process_identity.of(child.pid)
        assert identity is not None
        return WatchProcess(NODE, GONE.incarnation, child.pid, identity)

    def kill(self) -> None:
        self.children[-1].kill()


@asynccontextmanager
async def watching() -> AsyncIterator[Watching]:
    made, before = Watching(), descriptors()
    try:
        yield made
    finally:
        made.watch.stop()
        for child in made.children:
            child.kill()
            child.wait(60)
    assert descriptors() == before, "no descriptor is left"


def descriptors() -> int:
    """How many processes are watched by one."""
    links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.exists())
    return sum(str(link) == "anon_inode:[pidfd]" for link in links)


async def nothing_more(made: Watching) -> None:
    """What is under way in the loop, and two looks of a watch that polls."""
    await asyncio.sleep(0.12)
    assert made.said == []


@pytest.mark.parametrize("has_pidfd", [True, False], ids=["pidfd", "polling"])
def test_the_end_is_noticed_as_soon_as_it_comes(monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool) -> None:
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", no_descriptor)

    async def main() -> None:
        async with watching() as made:
            made.watch.begin(made.start())
            await nothing_more(made)
            # Not waited for: a zombie has ended.
            made.kill()
            await until(lambda: made.said == [GONE], "the end")

    run(main())


@pytest.mark.parametrize("ended_before", [True, False])
@pytest.mark.parametrize("knows", ["pidfd", "proc", "numbers"])
def test_who_ends_with_a_process_ends_with_it_and_not_before(
    monkeypatch: pytest.MonkeyPatch, knows: str, *, ended_before: bool
) -> None:
    if knows != "pidfd":
        monkeypatch.setattr(os, "pidfd_open", no_descriptor)

    async def main() -> None:
        gone: list[int] = []
        async with watching() as made:
            pid = made.start().pid
            if ended_before:
                made.kill()
                made.children[-1].wait(60)
            if knows == "numbers":
                monkeypatch.setattr(process_identity, "of", lambda pid: None)
            when_gone(pid, lambda: gone.append(pid))
            if not ended_before:
                await nothing_more(made)
                assert gone == []
                made.kill()
                made.children[-1].wait(60)
            await until(lambda: gone == [pid], "the end")

    run(main())


def no_descriptor(pid: int, flags: int = 0) -> int:
    raise OSError(38, f"Function not implemented: {pid} {flags}")


def test_who_has_ended_already_is_reported_but_not_from_inside_the_call() -> None:
    async def main() -> None:
        async with watching() as made:
            watched = made.start()
            made.kill()
            made.children[-1].wait(60)
            made.watch.begin(watched)
            assert made.said == []
            await until(lambda: made.said == [GONE], "the end")

    run(main())


def test_a_process_that_got_the_number_afterwards_does_not_stand_in_for_the_first() -> None:
    async def main() -> None:
        async with watching() as made:
            watched = made.start()
            earlier = msgspec.structs.replace(watched.process, start_ticks=watched.process.start_ticks - 1)
            made.watch.begin(msgspec.structs.replace(watched, process=earlier))
            await until(lambda: made.said == [GONE], "the end of the first")

    run(main())


def test_a_process_of_another_host_is_not_watched() -> None:
    async def main() -> None:
        async with watching() as made:
            watched = made.start()
            elsewhere = msgspec.structs.replace(watched.process, boot_id="another")
            before = descriptors()
            made.watch.begin(msgspec.structs.replace(watched, process=elsewhere))
            made.watch.begin(msgspec.structs.replace(watched, pid=2**40))
            assert descriptors() == before
            made.kill()
            await nothing_more(made)

    run(main())


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("127.0.0.1", True),
        ("::1", True),
        ("a-name", True),
        ("", True),
    ],
)
def test_a_process_that_was_seen_elsewhere_proves_nothing_whatever_it_says_of_its_boot(
    host: str, *, is_here: bool
) -> None:
    """A machine that was copied while it ran: the same boot, the same numbers, and another process that has ended here."""

    async def main() -> None:
        async with watching() as made:
            watched = msgspec.structs.replace(made.start(), host=host)
            made.kill()
            made.children[-1].wait(60)
            made.watch.begin(watched)
            if is_here:
                await until(lambda: made.said == [GONE], "the end")
            else:
                await nothing_more(made)

    run(main())


def test_where_no_descriptor_is_left_nothing_is_proven_by_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        async with watching() as made:
            watched = msgspec.structs.replace(made.start(), host="127.0.0.1")
            made.kill()
            made.children[-1].wait(60)
            with monkeypatch.context() as none_left:
                none_left.setattr(socket, "socket", refuse)
                made.watch.begin(watched)
            await nothing_more(made)

    run(main())


@pytest.mark.parametrize("dead_before", [True, False])
def test_nothing_is_said_of_who_is_watched_no_more(*, dead_before: bool) -> None:
    async def main() -> None:
        async with watching() as made:
            watched = made.start()
            if dead_before:
                made.kill()
                made.children[-1].wait(60)
            made.watch.begin(watched)
            made.watch.end(NODE)
            made.kill()
            await nothing_more(made)

    run(main())


def test_a_later_process_of_the_node_takes_the_place_of_the_earlier() -> None:
    async def main() -> None:
        async with watching() as made:
            made.watch.begin(made.start())
            made.watch.begin(made.start())
            made.children[0].kill()
            await nothing_more(made)
            made.children[1].kill()
            await until(lambda: made.said == [GONE], "the end of the later")

    run(main())


def test_a_descriptor_that_tells_of_a_process_that_runs_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_up = {"ended": False}
    ended, answer = os.pipe()
    os.close(answer)
    monkeypatch.setattr(process_identity, "has_ended", lambda identity, pid: made_up["ended"])
    monkeypatch.setattr(os, "pidfd_open", lambda pid: os.dup(ended))

    async def main() -> None:
        async with watching() as made:
            identity = process_identity.own()
            assert identity is not None
            made.watch.begin(WatchProcess(NODE, GONE.incarnation, os.getpid(), identity))
            await nothing_more(made)
            made_up["ended"] = True
            await until(lambda: made.said == [GONE], "the end")

    run(main())
    os.close(ended)
