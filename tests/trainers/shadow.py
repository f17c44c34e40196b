"""An average of weights by hand, as scripts keep one."""

from __future__ import annotations

from torch import nn


class Shadow:
    """What the steps change beside a model."""

    def __init__(self, net: nn.Module) -> None:
        """Begin with the model's weights."""
        self.weights = {name: one.detach().clone() for name, one in net.named_parameters()}

    def update(self, net: nn.Module) -> None:
        """Half of the way to them."""
        for name, one in net.named_parameters():
            self.weights[name].lerp_(one.detach(), 0.5)
