"""MindSpore's own scheduler, for one generation: `python -m recovery.mindspore.scheduler_process`.

Rank 0 starts it and holds the other end of its stdin: a line with the arguments of set_ps_context, and when every rank is done, one
more. If rank 0 dies or replaces itself instead, stdin ends, and so does this process: none is ever left behind.
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
    arguments = json.loads(sys.stdin.readline() or "{}")
    threading.Thread(target=_end_with_rank_0, name="rank-0", daemon=True).start()
    if arguments:
        mindspore.set_ps_context(**arguments)
    initialize_without_gil()  # in a scheduler this ends the process when the last worker has left
    init()


def _end_with_rank_0() -> None:
    if sys.stdin.readline():
        threading.Event().wait(_FAREWELL_S)
    os._exit(0)


if __name__ == "__main__":
    main()
