"""A program of its own, between a child's fork and its program: `python -I -S pre_exec.py PARENT CONDITIONS COMMAND ...`.

What a child must do before its program begins cannot be done between fork and exec by a parent with threads: a lock that one of
them holds at the fork is held for ever in the child. So this small program does it, and becomes the child's program by exec.
It imports one file of the engine, by itself: it costs an interpreter's start and little more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

# Last, so that no name there hides one of the standard library's.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 - pathlib costs more than the rest

import end_note  # type: ignore[import-not-found]  # by the directory just added, which no type checker sees
import process_conditions  # type: ignore[import-not-found]  # by the directory just added, which no type checker sees

CANNOT_BE_STARTED = 71
"""The exit code of LAUNCH_FAILED (recovery/errors)."""


def _main(words: Sequence[str]) -> None:
    """Let the kernel kill this process when its parent dies, take up its conditions, and become the command."""
    parent, conditions, *command = words
    process_conditions.wait_for_children()
    for left in process_conditions.restore(json.loads(conditions)):
        os.write(2, f"event=condition_not_restored {left.text}\n".encode(errors="replace"))
    # Behind the conditions, among which is what the parent itself is tied by.
    process_conditions.tie_to(int(parent))
    end_note.note_begun()
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command of the person who started the job
    except OSError as error:
        os.write(2, f"LAUNCH_FAILED: {command[0]} cannot be started ({error.strerror})\n".encode())
        end_note.note_exit(CANNOT_BE_STARTED)
        os._exit(CANNOT_BE_STARTED)


if __name__ == "__main__":
    _main(sys.argv[1:])
