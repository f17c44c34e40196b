"""Processes that replace themselves under gloo's living threads: `python -m tests.torch.exec_under_gloo WORLDS`.

Each world has two ranks: one hangs in a lock, the other in a collective. Prints how many of them came through exec, and ended well
with no descriptor left over.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import NoReturn

from recovery.core.ids import ResumeToken
from recovery.core.worker.stimuli import Hangs
from recovery.worker import exec_in_place


def _after_exec() -> NoReturn:
    """The program that followed: nothing is open but what listing it needs."""
    left = [entry for entry in Path("/proc/self/fd").iterdir() if int(entry.name) > 2]
    os._exit(0 if len(left) == 1 else 3)


def _rank(directory: str, rank: int) -> NoReturn:
    import torch
    from torch import distributed
    from torch._C._distributed_c10d import FileStore

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = FileStore(f"{directory}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    tensor = torch.ones(1_000)
    distributed.all_reduce(tensor)
    threading.Thread(
        target=lambda: exec_in_place.replace_process(ResumeToken("t"), Hangs()), daemon=True
    ).start()
    if rank:
        with contextlib.suppress(RuntimeError):
            distributed.all_reduce(tensor)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    os._exit(4)


def main() -> None:
    """World after world."""
    import torch.distributed  # noqa: F401 - once, for every fork

    codes: Counter[int] = Counter()
    for _ in range(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as directory:
            ranks = []
            for rank in (0, 1):
                pid = os.fork()
                if not pid:
                    _rank(directory, rank)
                ranks.append(pid)
            for pid in ranks:
                codes[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])] += 1
    print(f"{codes[0]} of {codes.total()} well", {code: count for code, count in codes.items() if code})


if exec_in_place.TOKEN_VARIABLE in os.environ:
    _after_exec()
if __name__ == "__main__":
    main()
