"""MindSpore's own scheduler, for one generation: `python -m recovery.mindspore.scheduler_process PARENT`, its ps_context on stdin.

It dies with rank 0, which started it, so that none is ever left behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Serve until every worker of the generation has left."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)
    arguments = json.loads(sys.stdin.read())

    import mindspore  # noqa: PLC0415 - a second: rank 0 may die meanwhile, and this process with it
    from mindspore.communication import init  # noqa: PLC0415 - as above

    if arguments:
        mindspore.set_ps_context(**arguments)
    init()  # in a scheduler it returns, or ends the process, when the last worker has left


if __name__ == "__main__":
    main()
