"""Lightning: `Trainer.fit` that goes on after a death, the survivors' processes kept, from the newest common step, in the middle of an epoch.

May import: torch, training and everything below them, lightning. The only package that knows Lightning.
Start reading at trainer.py (what is put in the place of what), then fit_state.py (what decides the next step), then watched_loader.py.
The public names are loaded when first used (PEP 562).

In a script it takes two changed lines:

    from recovery.lightning import Trainer, run    # for lightning's Trainer

    @run
    def main(): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_names import loader

if TYPE_CHECKING:
    from recovery.lightning.trainer import Trainer
    from recovery.training.run import run

__all__ = ["Trainer", "run"]

_HOMES = {"Trainer": "recovery.lightning.trainer", "run": "recovery.training.run"}


# Hidden from type checkers: one that saw it would accept any misspelt name.
if not TYPE_CHECKING:
    __getattr__, __dir__ = loader(__name__, _HOMES)
