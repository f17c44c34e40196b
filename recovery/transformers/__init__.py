"""The Trainer of transformers, made recoverable: it saves and loads as it always does, and goes on at the step that all ranks hold.

May import: accelerate and torch (ours) and everything below them, transformers. Start reading at trainer.py.
The public names are loaded when first used (PEP 562): transformers costs seconds.

In a script it takes two lines:

    from recovery.transformers import Trainer, TrainingArguments, run    # for transformers'

    @run
    def main():
        ...
        trainer.train()

A Trainer of one's own takes `class MyTrainer(Recovered, SomeTrainer)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_names import loader

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from recovery.accelerate.joined_world import run
    from recovery.training.current import current_session
    from recovery.transformers.trainer import Recovered, Trainer

__all__ = ["Recovered", "Trainer", "TrainingArguments", "current_session", "run"]

_HOMES = {
    "Recovered": "recovery.transformers.trainer",
    "Trainer": "recovery.transformers.trainer",
    "TrainingArguments": "transformers",
    "current_session": "recovery.training.current",
    "run": "recovery.accelerate.joined_world",
}


# Hidden from type checkers: one that saw it would accept any misspelt name.
if not TYPE_CHECKING:
    __getattr__, __dir__ = loader(__name__, _HOMES)
