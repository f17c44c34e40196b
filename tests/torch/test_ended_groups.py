"""Groups of gloo with a collective in them that does not end."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore, Store

from recovery.torch.ended_groups import EndedGroups
from tests.pace import wait_for

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
def test_a_process_ends_that_has_begun_a_collective_which_does_not() -> None:
    ended = subprocess.run([sys.executable, "-m", __name__], timeout=60, check=False)
    assert ended.returncode == 0


if __name__ == "__main__":
    one, other = _two_ranks()
    one.allreduce([torch.ones(1)])
    EndedGroups().keep([one])
    del one
