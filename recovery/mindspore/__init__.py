"""MindSpore: a world per generation and process, `Model` that resumes at a step, MindSpore's own checkpoint files as rollback targets.

May import: training and everything below it, mindspore. The only room that knows MindSpore.
Start reading at world.py (how a world is formed, and why a survivor replaces itself), then model.py, then published.py.

In a script it takes two changed lines:

    from recovery.mindspore import Model, init          # for mindspore.communication's init and ms.Model
    ...
    model = Model(net, loss_fn=loss_fn, optimizer=optimizer)
"""

from __future__ import annotations

from recovery.mindspore.model import Model
from recovery.mindspore.ps_context import set_ps_context
from recovery.mindspore.state import TrainState
from recovery.mindspore.world import init

__all__ = ["Model", "TrainState", "init", "set_ps_context"]
