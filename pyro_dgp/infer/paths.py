r"""The paths on which a gradient reaches the parameters of the guide.

A local draw z = z(noise; phi) is used in three places: by the densities, by the guide's program,
which draws other sites given z, and by log q of those sites. The ordinary gradient treats these
paths alike. The doubly reparameterised one distinguishes them: the gradient from the densities is
multiplied by a weight on its way to the sampler, the gradient through the sampler of a later site
has been multiplied already, and log q depends on its draws but not on phi. Therefore

- densities use *copies* of z whose gradient is multiplied (:func:`weighted_copy`);
- the guide's program uses z through a *gate* (:class:`Gates`), which blocks gradients while the
  partial derivatives of log q by each z are taken.
"""

from collections.abc import Callable, Iterable

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from pyro_dgp.infer.graph import nodes
from pyro_dgp.infer.sites import is_drawn, is_random
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["Gates", "reaches", "refuse_tracing", "weighted_copy"]


class Gates(Messenger):
    """Passes each reparameterised local draw to the guide's program through a gate.

    A trace outside this handler records the draw itself. Deltas, which draw nothing, have no gate.

    :param Roles roles: The roles of the sites.
    """

    def __init__(self, roles: Roles) -> None:
        super().__init__()
        self.roles = roles
        #: The values that the program was given, by site.
        self.values: dict[str, Tensor] = {}
        self._pass = _Pass()

    def _pyro_post_sample(self, msg: Message) -> None:
        if is_random(msg) and is_drawn(msg):
            value = msg["value"]
            if value.requires_grad and self.roles.is_local(msg):
                # A second view, so that the derivative by the program's value is not blocked.
                inside = weighted_copy(value, self._pass)
                self.values[msg["name"]] = msg["value"] = inside.view_as(inside)

    def partials(self, total: Tensor, inputs: list[Tensor]) -> list[Tensor | None]:
        """Derivatives of ``total`` with all gates shut, so none of them through a later draw."""
        self._pass.shut = True
        try:
            return list(torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True))
        finally:
            self._pass.shut = False


class _Pass:
    """The hook of a gate: passes a gradient on, or blocks it."""

    shut = False

    def __call__(self, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient) if self.shut else gradient


def weighted_copy(z: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of z whose gradient is transformed by ``weigh`` on its way to z."""
    copy = z.view_as(z)
    copy.register_hook(weigh)
    return copy


def refuse_tracing() -> None:
    """Refuses ``torch.jit.trace``, which records neither hooks nor derivatives taken on the way.

    :raises NotImplementedError: If a function is being traced.
    """
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise NotImplementedError(
            "torch.jit.trace would give this loss another gradient, as it does not record hooks. "
            "Trace a PartiallyCollapsedIWELBO without piwae and chunk_size, or do not trace."
        )


def reaches(tensors: Iterable[Tensor], gates: Gates) -> tuple[bool, bool]:
    """Whether tensors depend on gated draws, and whether on other tensors with a gradient."""
    doors = {value.grad_fn for value in gates.values.values()}
    gated = other = False
    for node in nodes(tensors, doors):
        gated |= node in doors
        other |= hasattr(node, "variable")
    return gated, other
