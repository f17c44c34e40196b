"""Groups of gloo with a collective in them that does not end."""

from __future__ import annotations

import atexit
import builtins
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore, HashStore, Store

from recovery.torch.ended_groups import EndedGroups
from tests.pace import HANG_S, wait_for

_TIMEOUT = timedelta(minutes=10)
"""Of collectives: longer than any test waits."""


def _two_ranks() -> list[Any]:
    store = HashStore()
    made: dict[int, Any] = {}
    threads = [threading.Thread(target=_join, args=(store, rank, made)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[0], made[1]]


def _join(store: Store, rank: int, made: dict[int, Any]) -> None:
    made[rank] = distributed.ProcessGroupGloo(store, rank, 2, timeout=_TIMEOUT)


def _holders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "recovery-ended-groups"]


def test_the_next_world_does_not_wait_for_a_collective_that_goes_on() -> None:
    one, other = _two_ranks()
    one.allreduce([torch.ones(1)])
    before = len(_holders())
    ended = EndedGroups()
    ended.keep([one])
    del one
    ended.let_go()
    # Its thread is in the group's destructor, and this one is not.
    assert len(_holders()) == before + 1
    other.allreduce([torch.ones(1)]).wait()
    wait_for(lambda: len(_holders()) == before, "end of the threads that held the groups")


def test_groups_are_kept_until_the_next_world_begins() -> None:
    one, other = _two_ranks()
    before = len(_holders())
    ended = EndedGroups()
    ended.keep([one, other])
    assert len(_holders()) == before + 1
    ended.let_go()
    wait_for(lambda: len(_holders()) == before, "end of the threads that held the groups")
    ended.keep([])
    assert len(_holders()) == before + 1, "the next one keeps as well"
    ended.let_go()
    wait_for(lambda: len(_holders()) == before, "end of the threads that held the groups")


@pytest.mark.cluster
@pytest.mark.parametrize("case", ["under_way", "let_go_at_exit", "let_go_behind_exit", "left_in_a_cycle"])
def test_a_process_ends_in_order(case: str) -> None:
    ended = subprocess.run([sys.executable, "-m", __name__, case], timeout=HANG_S, check=False)
    assert ended.returncode == 0


@pytest.mark.cluster
@pytest.mark.parametrize("case", ["let_go", "collected", "collected_at_exit"])
def test_a_process_ends_in_order_while_a_thread_is_in_the_destructor_of_a_group(
    case: str, tmp_path: Path
) -> None:
    ended, peer = (
        subprocess.Popen([sys.executable, "-m", __name__, part, str(tmp_path)]) for part in (case, "peer")
    )
    try:
        assert ended.wait(HANG_S) == 0
        assert peer.wait(HANG_S) == 0
    finally:
        for process in (ended, peer):
            process.kill()
            process.wait()


class _FinalizedSlowly:
    """The interpreter is being finalized for a while, in which it needs no GIL: as on a busy machine."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(0.5)


def _end_a_process(case: str) -> None:
    """End with a collective that does not end, or with one whose tensor a thread of gloo lets go of last."""
    setattr(builtins, "_finalized_slowly", _FinalizedSlowly())  # noqa: B010 - torch is gone by then, and this is not
    one, other = _two_ranks()
    one.allreduce([torch.ones(1)])
    ended = EndedGroups()
    if case == "let_go_behind_exit":
        atexit.register(_let_go_late, ended, one, other)
    ended.watch_exit()
    if case != "let_go_behind_exit":
        ended.keep([one, other])
    if case == "left_in_a_cycle":
        setattr(builtins, "_peer", other)  # noqa: B010 - it outlives what is collected
        _Cycle(one)
        del one
        ended.let_go()
        return
    if case == "let_go_at_exit":
        _end_the_collective(other)


class _Cycle:
    """What a world has left: it goes when it is collected."""

    def __init__(self, group: Any) -> None:
        self.group, self.itself = group, self


def _end_in_a_destructor(case: str, place: Path) -> None:
    """End while a thread is in the destructor of a group, whose last collective another process ends as this one is being finalized."""
    setattr(builtins, "_finalized_slowly", _FinalizedSlowly())  # noqa: B010 - as below
    group: Any = distributed.ProcessGroupGloo(FileStore(str(place / "store"), 2), 0, 2, timeout=_TIMEOUT)
    group.allreduce([torch.ones(1)])
    ended = EndedGroups()
    ended.watch_exit()
    ended.keep([group])
    if case != "let_go":
        # In the oldest generation, as what an earlier world has left.
        left, seen, before = _Cycle(group), weakref.ref(group), len(_holders())
        gc.collect()
        del left
    del group
    ended.let_go()
    if case == "collected":
        wait_for(lambda: len(_holders()) < before, "end of the thread that held the group")
        threading.Thread(target=gc.collect, daemon=True).start()
        wait_for(lambda: seen() is None, "collection of the group")
    atexit.register((place / "exits").touch)
    if case == "collected_at_exit":
        # Called behind the exit handler of the groups, as it was registered before.
        atexit.unregister(ended._on_exit)
        begin, done = threading.Event(), threading.Event()
        threading.Thread(target=_collect, args=(begin, done), daemon=True).start()
        atexit.register(_let_collect, begin, done)
        ended.watch_exit()


def _collect(begin: threading.Event, done: threading.Event) -> None:
    begin.wait()
    gc.collect()
    done.set()


def _let_collect(begin: threading.Event, done: threading.Event) -> None:
    begin.set()
    # Where it is in the destructor of the group, only the peer ends it.
    done.wait(1)


def _be_the_peer(place: Path) -> None:
    group: Any = distributed.ProcessGroupGloo(FileStore(str(place / "store"), 2), 1, 2, timeout=_TIMEOUT)
    wait_for((place / "exits").exists, "the other's end")
    time.sleep(0.25)
    group.allreduce([torch.ones(1)]).wait()


def _let_go_late(ended: EndedGroups, one: Any, other: Any) -> None:
    _end_the_collective(other)
    ended.keep([one, other])


def _end_the_collective(other: Any) -> None:
    # From here on no other thread is given the GIL until this one waits for something.
    sys.setswitchinterval(1_000)
    other.allreduce([torch.ones(1)])
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + 0.5:
        pass


if __name__ == "__main__":
    _, part, *places = sys.argv
    if part == "peer":
        _be_the_peer(Path(*places))
    elif places:
        _end_in_a_destructor(part, Path(*places))
    else:
        _end_a_process(part)
