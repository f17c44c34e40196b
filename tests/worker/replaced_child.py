"""A process whose interpreter is gone when it wants to replace itself: `PYTHON -m tests.worker.replaced_child`."""

from __future__ import annotations

import sys
from pathlib import Path

from recovery import log
from recovery.core.ids import ResumeToken
from recovery.core.worker.stimuli import Hangs
from recovery.worker.exec_in_place import replace_process


def main() -> None:
    """Remove it, and try."""
    log.setup("worker")
    sys.executable = str(Path(sys.argv[1]) / "python")
    replace_process(ResumeToken("t"), Hangs())


if __name__ == "__main__":
    main()
