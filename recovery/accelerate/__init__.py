"""Accelerate: the world joined before it looks for one, its states made again at every entry, and an `Accelerator` that goes on mid-epoch.

May import: torch (ours) and everything below it, accelerate. Start reading at joined_world.py, then accelerator.py.
The public names are loaded when first used (PEP 562): Accelerate costs seconds.

In a script it takes four lines:

    from recovery.accelerate import Accelerator, run      # for accelerate's

    @run
    def main():
        ...
        for epoch in accelerator.epochs(3):              # for range(3)
            for step, batch in accelerator.steps(loader):    # for enumerate(loader)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_names import loader

if TYPE_CHECKING:
    from recovery.accelerate.accelerator import Accelerator
    from recovery.accelerate.joined_world import run
    from recovery.training.current import current_session

__all__ = ["Accelerator", "current_session", "run"]

_HOMES = {
    "Accelerator": "recovery.accelerate.accelerator",
    "current_session": "recovery.training.current",
    "run": "recovery.accelerate.joined_world",
}


# Hidden from type checkers: one that saw it would accept any misspelt name.
if not TYPE_CHECKING:
    __getattr__, __dir__ = loader(__name__, _HOMES)
