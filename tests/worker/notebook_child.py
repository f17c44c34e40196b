"""A process that ends with its own store's writer at work: `python -m tests.worker.notebook_child PATH`."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from recovery import log
from recovery.core.effects import Persist
from recovery.core.ids import NodeId
from recovery.worker.notebook import Notebook
from tests.store import samples

BATCHES = 400


def main() -> None:
    """Submit, and end."""
    log.setup("worker")
    up, submitted = threading.Event(), threading.Event()
    notebook = Notebook(Path(sys.argv[1]), NodeId("w0"), accept_without_wal=False)

    def submit() -> None:
        for step in range(1, BATCHES + 1):
            notebook.submit(Persist((samples.checkpoint(step),)))
        submitted.set()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        notebook.attach(
            loop, lambda persist: None, lambda error: print(f"event=store_failed {error}", flush=True)
        )
        notebook.open()
        loop.call_soon(submit)
        up.set()
        while True:
            await asyncio.sleep(0.01)
            notebook.submit(Persist((samples.checkpoint(BATCHES + 1),)))

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    assert submitted.wait(60)


if __name__ == "__main__":
    main()
