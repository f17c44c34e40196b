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

_FAREWELL_S = 60.0
"""After the job's end: how long workers may take to leave."""


def main() -> None:
    """Serve until every worker of the generation has left."""
    line = sys.stdin.readline()
    if not line:  # rank 0 is gone before it knew a world
        return
    told = json.loads(line)
    threading.Thread(target=_end_with_rank_0, name="rank-0", daemon=True).start()
    for name, value in told["variables"].items():
        os.environ[name] = value  # noqa: TID251 - MindSpore's only way to be told
        if not value:
            del os.environ[name]  # noqa: TID251 - as above
    if told["ps_context"]:
        mindspore.set_ps_context(**told["ps_context"])
    initialize_without_gil()  # in a scheduler this ends the process when the last worker has left
    init()


def _end_with_rank_0() -> None:
    if sys.stdin.readline():
        threading.Event().wait(_FAREWELL_S)
    os._exit(0)


if __name__ == "__main__":
    main()
