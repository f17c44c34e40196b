"""A worker's process whose machine is given what it cannot take: `PYTHON -m tests.worker.broken_child`. It waits for a plan, as `recovery.run` does."""

from __future__ import annotations

from typing import Any

from recovery import log
from recovery.config import load
from recovery.training import process_end
from recovery.worker.service import WorkerService
from recovery.worker.training_control import Verdict


def main() -> None:
    """Break it, and wait."""
    log.setup("worker")
    service = WorkerService(load())
    service.start()
    nonsense: Any = "no stimulus"
    service.post(nonsense)
    ended = service.training_control.next_plan(0)
    assert isinstance(ended, Verdict)
    process_end.leave(process_end.code_of(ended), f"{ended.code}: {ended.reason}")


if __name__ == "__main__":
    main()
