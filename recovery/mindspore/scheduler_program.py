"""MindSpore's own scheduler, for one generation: `python -m recovery.mindspore.scheduler_program`.

Rank 0 starts it and holds the other end of its stdin: a line with variables and the arguments of set_ps_context, when the world is to
be formed, and one more when every rank is done: it ends once no worker is connected any longer. If rank 0 dies or replaces itself
instead, stdin ends, and so does this process: none is ever left behind.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import mindspore
import psutil
from mindspore.communication import init

from recovery import clock
from recovery.mindspore.init_function import initialize_without_gil

_SHUTDOWN_GRACE_MS = 60_000
"""After the job's end: how long workers may take to leave."""
_POLL_S = 0.1


def main() -> None:
    """Serve until the generation is over. Never returns once a world is asked for: the process ends."""
    line = sys.stdin.readline()
    # Rank 0 has ended before it knew a world.
    if not line:
        return
    world = json.loads(line)
    port = int(world["variables"]["MS_SCHED_PORT"])
    end = threading.Thread(target=_end_with_rank_0, args=(port,), name="rank-0", daemon=True)
    end.start()
    for name, value in world["variables"].items():
        os.environ[name] = value  # noqa: TID251 - MindSpore reads them there only
        if not value:
            del os.environ[name]  # noqa: TID251 - as above
    if world["ps_context"]:
        mindspore.set_ps_context(**world["ps_context"])
    initialize_without_gil()
    init()
    # MindSpore's own end would wait for workers to sign off, and they do not (world.py, fact 6).
    end.join()


def _end_with_rank_0(port: int) -> None:
    if sys.stdin.readline():
        pause, give_up_ms = threading.Event(), clock.monotonic_ms() + _SHUTDOWN_GRACE_MS
        while _serves(port) and clock.monotonic_ms() < give_up_ms:
            pause.wait(_POLL_S)
    os._exit(0)


def _serves(port: int) -> bool:
    """Is a worker connected?"""
    return any(
        connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port
        for connection in psutil.Process().net_connections(kind="tcp")
    )


if __name__ == "__main__":
    main()
