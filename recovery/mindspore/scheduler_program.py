"""MindSpore's own scheduler, for one generation: `python -m recovery.mindspore.scheduler_program`.

Rank 0 starts it and holds the other end of its stdin: a line with variables and the arguments of set_ps_context, when the world is to
be formed, and one more when every rank is done. If rank 0 dies or replaces itself instead, stdin ends, and so does this process: none is ever left behind.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import mindspore
from mindspore.communication import init

from recovery.mindspore.init_function import initialize_without_gil

_SHUTDOWN_GRACE_S = 60.0
"""After the job's end: how long workers may take to leave."""


def main() -> None:
    """Serve until every worker of the generation has left."""
    line = sys.stdin.readline()
    # Rank 0 has ended before it knew a world.
    if not line:
        return
    world = json.loads(line)
    threading.Thread(target=_end_with_rank_0, name="rank-0", daemon=True).start()
    for name, value in world["variables"].items():
        os.environ[name] = value  # noqa: TID251 - MindSpore reads them there only
        if not value:
            del os.environ[name]  # noqa: TID251 - as above
    if world["ps_context"]:
        mindspore.set_ps_context(**world["ps_context"])
    # In a scheduler this ends the process when the last worker has left.
    initialize_without_gil()
    init()


def _end_with_rank_0() -> None:
    if sys.stdin.readline():
        threading.Event().wait(_SHUTDOWN_GRACE_S)
    os._exit(0)


if __name__ == "__main__":
    main()
