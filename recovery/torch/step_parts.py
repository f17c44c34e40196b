"""Tells a session's clock of phases what only torch knows.

Where a rank's own gradients are there, where an optimizer's step ends, that a model is evaluated, that something is compiled, how many collectives
were begun.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import distributed
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from recovery.core.phases import Phase
from recovery.torch import module_names
from recovery.torch.state import TrainState
from recovery.training import current
from recovery.training.session import Session


class StepParts:
    """One per process, as torch's hooks are."""

    def __init__(self) -> None:
        """Nothing is hooked yet."""
        self._sees_optimizers = self._sees_compiler = False
        self._before_compiling = Phase.COMPUTE
        self._gradients: list[RemovableHandle] | None = None
        """Of the entry's models: hooks of the parameters whose gradients come last. None: their first optimizer's step has not ended yet."""

    def enter(self, session: Session) -> None:
        """An entry begins."""
        session.phases.models = lambda: _models(session)
        session.phases.collectives = collectives_begun
        self.leave()
        if not self._sees_optimizers:
            self._sees_optimizers = True
            register_optimizer_step_post_hook(self._behind_step)
        self._watch_compiler()

    def _watch_compiler(self) -> None:
        # To import it takes a second, which nothing that is not compiled needs.
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and not self._sees_compiler:
            self._sees_compiler = True
            dynamo.callback.on_compile_start(self._compiles)
            dynamo.callback.on_compile_end(self._has_compiled)

    def _behind_step(self, *_: object) -> None:
        """An optimizer's step has ended. What follows is the script's own, or the next optimizer's part."""
        if not self._sees_compiler:
            # Whoever compiles has it by its first step.
            self._watch_compiler()
        session = current.current_session()
        if session is None:
            return
        session.phases.computed()
        if self._gradients is None:
            self._watch_gradients(session)

    def leave(self) -> None:
        """The models are looked at no more."""
        for handle in self._gradients or ():
            handle.remove()
        self._gradients = None

    def _watch_gradients(self, session: Session) -> None:
        """Hook the first parameter of each model: backward passes come to it last, and behind it a rank waits for the gradients of others.

        Only where the first step is done: what is built, wrapped or compiled until then finds parameters without hooks.
        """
        times = session.phases.times
        models = (model for model in session.phases.models() if isinstance(model, torch.nn.Module))
        firsts = (next(filter(_gets_gradient, model.parameters()), None) for model in models)
        self._gradients = [
            first.register_post_accumulate_grad_hook(lambda _: times.has_gradients())  # type: ignore[no-untyped-call]  # torch ships it without types
            for first in firsts
            if first is not None
        ]

    def _compiles(self, *_: object) -> None:
        if (session := current.current_session()) is not None:
            self._before_compiling = session.phases.enter(Phase.COMPILE)

    def _has_compiled(self, *_: object) -> None:
        if (session := current.current_session()) is not None:
            session.phases.enter(self._before_compiling)


def _models(session: Session) -> list[Any]:
    state = session.state
    return [module_names.bare(model) for model in state.models] if isinstance(state, TrainState) else []


def _gets_gradient(parameter: torch.nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.is_leaf


def collectives_begun() -> int:
    """How many collectives this rank has begun in its world; 0: it is in none, or a backend does not count them. Any thread."""
    world: Any = distributed.group.WORLD
    if world is None:
        return 0
    try:
        return int(world._get_sequence_number_for_group())  # noqa: SLF001 - torch tells it in no other way
    except RuntimeError:
        return 0


step_parts = StepParts()
