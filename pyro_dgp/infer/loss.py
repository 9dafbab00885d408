"""The interface of a loss."""

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Loss"]


class Loss(Protocol):
    """Pyro's ELBOs and those of this package; Pyro's base class declares neither method."""

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """The negative bound, without gradients."""
        ...

    def loss_and_grads(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """The negative bound; adds the gradient estimate to the parameters' ``.grad``."""
        ...
