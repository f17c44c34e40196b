"""A process that ends with its own store's writer at work: `python -m tests.worker.local_store_child PATH`.

However fast the machine is: the writer gets to the disk only once the interpreter has begun to end, and then takes a while.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from recovery import log
from recovery.core.effects import Persist
from recovery.core.ids import NodeId
from recovery.core.records import Record
from recovery.store.repository import WorkerStore
from recovery.worker import local_store
from recovery.worker.local_store import LocalStore
from tests.store import samples

BATCHES = 400
_SLOW_S = 0.5
"""Far above what it takes to end without waiting."""
_CLOSE_S = 120.0
"""How long this process waits for its last rows at its end: it is to wait for all of them, however slow the machine is."""


def _write_only_at_the_end(ending: threading.Event) -> None:
    apply = WorkerStore.apply

    def late(self: WorkerStore, records: Sequence[Record], *, wall_ms: int) -> None:
        ending.wait()
        time.sleep(_SLOW_S)
        apply(self, records, wall_ms=wall_ms)

    # In this process only, which ends with it.
    WorkerStore.apply = late  # type: ignore[method-assign, assignment]


def main() -> None:
    """Submit, and end."""
    log.setup("worker")
    local_store._CLOSE_S = _CLOSE_S
    ending = threading.Event()
    _write_only_at_the_end(ending)
    up, submitted = threading.Event(), threading.Event()
    store = LocalStore(Path(sys.argv[1]), NodeId("w0"), accept_without_wal=False)

    def submit() -> None:
        for step in range(1, BATCHES + 1):
            store.submit(Persist((samples.checkpoint(step),)))
        submitted.set()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        store.attach(
            loop, lambda persist: None, lambda error: print(f"event=store_failed {error}", flush=True)
        )
        store.open()
        loop.call_soon(submit)
        up.set()
        while True:
            await asyncio.sleep(0.01)
            store.submit(Persist((samples.checkpoint(BATCHES + 1),)))

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    assert submitted.wait(60)
    # Runs before all that was registered earlier, the local store's own handler among them.
    atexit.register(ending.set)


if __name__ == "__main__":
    main()
