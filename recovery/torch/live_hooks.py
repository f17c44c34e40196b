"""What tells whether this process's weights are still those of the last boundary: hooks of optimizers and of wrapped models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from recovery.torch.live_parts import LiveParts, Wrapped


class Hooks:
    """Watches from the moment it is made until `close`.

    Attributes:
        torn: an optimizer has begun to change the state since `settled` was called; which one, in words, else empty.
        stepped: an optimizer of the state has begun a step since then.
    """

    def __init__(self, parts: LiveParts, before_first_step: Callable[[], None]) -> None:
        """Watch these parts: an optimizer that trains any of their parameters counts.

        `before_first_step` is called in the main thread before the first of their optimizers begins the first step behind a boundary. Where it
        raises, nothing is torn.
        """
        self._ids = {id(parameter) for parameter in parts.parameters.values()}
        self._before_first_step = before_first_step
        self._wrapped = list(parts.wrapped)
        self._alone: dict[str, bool] = {}
        self.torn, self.stepped = "", False
        self._handles: list[RemovableHandle] = [register_optimizer_step_pre_hook(self._step_begins)]
        for optimizer in parts.optimizers.values():
            self._handles.append(optimizer.register_load_state_dict_pre_hook(self._load_begins))
        for wrapped in self._wrapped:
            wrapper = wrapped.wrapper()
            if wrapper is not None and not wrapped.compiled:
                self._handles.append(wrapper.register_forward_pre_hook(self._watch_forward(wrapped)))

    def settled(self) -> None:
        """A boundary: what stands now is the state."""
        self.torn, self.stepped = "", False

    def close(self) -> None:
        """Watch no more."""
        while self._handles:
            self._handles.pop().remove()

    @property
    def of_this_rank_alone(self) -> str:
        """A model whose gradients, if there are any, were not added over the ranks: its name; else empty."""
        for wrapped in self._wrapped:
            wrapper = wrapped.wrapper()
            if wrapper is None:
                continue
            if wrapped.compiled:
                # A hook would be traced with the model. This also holds behind a forward pass without gradients (an evaluation).
                if not wrapper.require_forward_param_sync:
                    return wrapped.name
            elif self._alone.get(wrapped.name, False):
                return wrapped.name
        return ""

    @functools.cached_property
    def divided_in_buckets(self) -> str:
        """A model whose gradients lie in buckets, in a world whose size is no power of two: its name; else empty.

        What lies there is divided by the number of ranks; what is put there from elsewhere is multiplied by one over it (torch 2.13). So
        gradients that were carried to a new wrapper would come out with other last bits, if the next backward pass adds to them.
        """
        if not distributed.is_initialized():
            return ""
        size = distributed.get_world_size()
        if size & (size - 1) == 0:
            return ""
        wrappers = [(wrapped.name, wrapped.wrapper()) for wrapped in self._wrapped]
        return next((name for name, wrapper in wrappers if wrapper and wrapper.gradient_as_bucket_view), "")

    def _step_begins(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        if not self._is_ours(optimizer):
            return
        if not self.stepped:
            self._before_first_step()
        self.stepped = True
        self.torn = self.torn or f"{type(optimizer).__name__} had begun its step"

    def _load_begins(self, optimizer: Optimizer, state: Any) -> None:
        self.torn = self.torn or f"{type(optimizer).__name__} was given another state"

    def _is_ours(self, optimizer: Optimizer) -> bool:
        ids = self._ids
        return any(id(parameter) in ids for group in optimizer.param_groups for parameter in group["params"])

    def _watch_forward(self, wrapped: Wrapped) -> Callable[[DistributedDataParallel, Any], None]:
        def forward_begins(wrapper: DistributedDataParallel, arguments: Any) -> None:
            if torch.is_grad_enabled():
                self._alone[wrapped.name] = not wrapper.require_backward_grad_sync

        return forward_begins
