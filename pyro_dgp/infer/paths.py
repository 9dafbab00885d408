r"""The ways by which a gradient reaches the guide's parameters.

A local draw z = z(noise; phi) has three kinds of readers: the densities, the guide's program that
draws other sites from it, and log q of those sites. The ordinary gradient treats them alike. The
doubly reparameterised one needs them apart: what comes from the densities is multiplied by a weight
on its way to the sampler, what comes through the sampler of a later site has been multiplied
already, and log q depends on its draws but not on phi. So

- densities see *copies* of z whose gradient is multiplied (:func:`weighted_copy`);
- the guide's program sees z through a *gate* (:class:`Gates`), which can be shut for as long as the
  partial derivatives of log q by each z are taken.
"""

from collections.abc import Callable, Iterable

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from pyro_dgp.infer.graph import nodes
from pyro_dgp.infer.roles import Roles
from pyro_dgp.infer.sites import is_drawn, is_random

__all__ = ["Gates", "reaches", "weighted_copy"]


class Gates(Messenger):
    """Handles a guide so that its program sees each reparameterised local draw through a gate.

    A trace outside this handler has the draw itself. Deltas, which draw nothing, have no gate.

    :param Roles roles: Says which sites are local.
    """

    def __init__(self, roles: Roles) -> None:
        super().__init__()
        self.roles = roles
        #: What the program saw, by site.
        self.values: dict[str, Tensor] = {}
        self._pass = _Pass()

    def _pyro_post_sample(self, msg: Message) -> None:
        if is_random(msg) and is_drawn(msg):
            value = msg["value"]
            if value.requires_grad and self.roles.is_local(msg):
                # In two steps, so that the derivative by what the program sees is not stopped.
                inside = weighted_copy(value, self._pass)
                self.values[msg["name"]] = msg["value"] = inside.view_as(inside)

    def partials(self, total: Tensor, inputs: list[Tensor]) -> list[Tensor | None]:
        """Derivatives of ``total`` with all gates shut, so that none goes through a later draw."""
        self._pass.shut = True
        try:
            return list(torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True))
        finally:
            self._pass.shut = False


class _Pass:
    """What a gate does with a gradient."""

    shut = False

    def __call__(self, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient) if self.shut else gradient


def weighted_copy(z: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of z whose gradient goes through ``weigh`` on its way to z."""
    copy = z.view_as(z)
    copy.register_hook(weigh)
    return copy


def reaches(tensors: Iterable[Tensor], gates: Gates) -> tuple[bool, bool]:
    """Whether tensors depend on gated draws, and whether on anything else that has a gradient."""
    doors = {value.grad_fn for value in gates.values.values()}
    gated = other = False
    for node in nodes(tensors, doors):
        gated |= node in doors
        other |= hasattr(node, "variable")
    return gated, other
