"""A worker whose connection's thread breaks: `PYTHON -m tests.worker.broken_child start|later|stimulus`."""

from __future__ import annotations

import sys
import threading
from typing import Any

from recovery import config, log
from recovery.training import process_end
from recovery.worker.service import WorkerService
from recovery.worker.training_control import Verdict

_SETTINGS = {
    "MS_ROLE": "MS_WORKER",
    "MS_WORKER_NUM": "1",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "1024",
    "MS_NODE_ID": "w0",
    "MS_ABORT_TIMEOUT": "1",
}


def _break(*_: object) -> None:
    message = "a mistake of the program"
    raise ValueError(message)


def main() -> None:
    """`start`: before it is up. `later`: while the main thread hangs in something that nobody wakes. `stimulus`: by what the machine cannot take."""
    log.setup("worker")
    worker = WorkerService(config.load(_SETTINGS))
    if sys.argv[1] == "start":
        worker.local_store.attach = _break  # type: ignore[assignment,method-assign]
        worker.start()
        return
    worker.start()
    if sys.argv[1] == "stimulus":
        nonsense: Any = "no stimulus"
        worker.post(nonsense)
        ended = worker.training_control.next_plan(0)
        assert isinstance(ended, Verdict)
        process_end.leave(ended.exit_code, f"{ended.code}: {ended.reason}")
    worker.training_control.tick = _break  # type: ignore[method-assign]
    print(worker.training_control.verdict(), flush=True)
    worker.post(None)  # type: ignore[arg-type]
    threading.Event().wait()


if __name__ == "__main__":
    main()
