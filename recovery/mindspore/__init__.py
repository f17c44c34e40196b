"""MindSpore: a world per generation and process, `Model` that resumes at a step, MindSpore's own checkpoint files as rollback targets.

May import: training and everything below it, mindspore. The only package that knows MindSpore.
Start reading at world.py (how a world is formed, and why a survivor replaces itself), then model.py, then checkpoint_files.py.
The public names are loaded when first used (PEP 562): the launcher's worker proxy uses control_plane.py and must not pay for MindSpore.

In a script it takes two changed lines:

    from recovery.mindspore import Model, init          # for mindspore.communication's init and ms.Model
    ...
    model = Model(net, loss_fn=loss_fn, optimizer=optimizer)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_names import loader

if TYPE_CHECKING:
    from recovery.mindspore.model import Model
    from recovery.mindspore.secure_connections import set_ps_context
    from recovery.mindspore.state import TrainState
    from recovery.mindspore.world import init

__all__ = ["Model", "TrainState", "init", "set_ps_context"]

_HOMES = {
    "Model": "recovery.mindspore.model",
    "TrainState": "recovery.mindspore.state",
    "init": "recovery.mindspore.world",
    "set_ps_context": "recovery.mindspore.secure_connections",
}


# Hidden from type checkers: one that saw it would accept any misspelt name.
if not TYPE_CHECKING:
    __getattr__, __dir__ = loader(__name__, _HOMES)
