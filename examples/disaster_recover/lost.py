"""Print what must be started again, one name a line: nodes that the store calls lost or whose process is gone, and the scheduler.

python lost.py ./recovery/
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from recovery.core.records import JobState, NodeState
from recovery.errors import RecoveryError
from recovery.store.paths import scheduler_path
from recovery.store.reader import read_scheduler

SCRIPTS = ("train.py", "train_mindspore.py")


def main() -> None:
    """Ask the stored node table, and the process table of this machine."""
    path = Path(sys.argv[1]).resolve()
    gone = {note.stem: not runs(note.stem) for note in sorted(Path("device").glob("*.pid"))}
    if not scheduler_path(path).exists() and not all(gone.values()):
        # The job has just begun, and its scheduler has no store yet.
        for name in (name for name, is_gone in gone.items() if is_gone):
            print(name)
        return
    try:
        state = read_scheduler(path)
    except RecoveryError as error:
        sys.exit(str(error))
    if state.job is None or state.job.state is JobState.FINISHED:
        return
    if not runs("sched"):
        print("sched")
    for node in state.nodes:
        if node.state is not NodeState.LEFT and not runs(node.node_id):
            print(node.node_id)


def runs(name: str) -> bool:
    """Is the process that run.sh or recover.sh started last under this name alive?"""
    note = Path("device", f"{name}.pid")
    if not note.exists():
        return False
    try:
        process = psutil.Process(int(note.read_text()))
        return process.status() != psutil.STATUS_ZOMBIE and any(
            Path(word).name in SCRIPTS for word in process.cmdline()
        )
    except (psutil.Error, ValueError):
        return False


if __name__ == "__main__":
    main()
