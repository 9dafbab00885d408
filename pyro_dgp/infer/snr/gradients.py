r"""Independent draws of a stochastic gradient, many at once.

If parameters phi reach the loss only through the distributions from which the guide draws its local
sites, as in an amortised guide, one run gives many draws: its particles are the samples of Q draws,
and each draw has its own copy of the parameters t = t(phi) of the distributions. One backward pass
gives all gradients by these copies, [Q, ...], and their products with dt/dphi are the gradients by
phi, as of Q evaluations of the loss. Gradients by all other parameters are drawn in a loop.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.distributions import (
    Independent,
    MultivariateNormal,
    TorchDistribution,
    TransformedDistribution,  # pyright: ignore[reportAttributeAccessIssue]
)
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor
from torch.distributions import TransformedDistribution as Transformed

from pyro_dgp.infer.engine import ImportanceWeightedELBO
from pyro_dgp.infer.graph import nodes
from pyro_dgp.infer.loss import Loss
from pyro_dgp.infer.sites import (
    is_drawn,
    is_random,
    random_sites,
    subsample_sites,
    tensors_of,
    unconstrained_parameters,
)
from pyro_dgp.infer.structure.inspection import Structure
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["GradientDraws"]


class GradientDraws:
    """Draws of the gradient of a loss by the parameters of a model and guide.

    The minibatch is the same in every draw: plates that subsample keep the rows of the first run.
    The ``.grad`` of parameters is left unchanged.

    :param model: The model, as for :class:`~pyro.infer.SVI`.
    :param guide: The guide, as for :class:`~pyro.infer.SVI`.
    :param ~pyro.infer.ELBO loss: Any ELBO of Pyro; those of this package can be batched.
    :param tuple args: Arguments of model and guide.
    :param dict kwargs: Keyword arguments of model and guide.
    :raises ValueError: If model and guide have no parameters in Pyro's param store.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        loss: Loss,
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.loss, self.args, self.kwargs = loss, args, kwargs or {}
        self._structure: Structure | None = None  # of batches
        self.model, self.guide = _with_one_minibatch(model, guide, self.args, self.kwargs)
        with poutine.trace(param_only=True) as capture:
            self.loss.loss(self.model, self.guide, *self.args, **self.kwargs)
        #: Unconstrained parameters by their names in the param store.
        self.parameters: dict[str, Tensor] = {
            name: p
            for name, p in unconstrained_parameters(capture.trace).items()
            if p.requires_grad
        }
        if not self.parameters:
            raise ValueError(
                "Model and guide have no parameters in the param store, so there are no gradients "
                "to draw."
            )

    @property
    def rows_per_draw(self) -> int:
        """Number of samples times data of one draw, if the loss reports its weights; else 1."""
        weights = getattr(self.loss, "_log_weights", None)
        return 1 if weights is None else max(1, weights.numel())

    def looped(self, names: list[str]) -> dict[str, Tensor]:
        """One draw: the gradient by each parameter, zero where it has none."""
        parameters = self.parameters.values()
        before = [p.grad for p in parameters]
        try:
            for p in parameters:
                p.grad = None
            self.loss.loss_and_grads(self.model, self.guide, *self.args, **self.kwargs)
            drawn = {name: self.parameters[name] for name in names}
            return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in drawn.items()}
        finally:
            for p, grad in zip(parameters, before, strict=True):
                p.grad = grad

    def can_batch(self) -> set[str]:
        """The parameters whose gradient :meth:`batched` can draw."""
        loss = self.loss
        if (
            not isinstance(loss, ImportanceWeightedELBO)
            or not loss.vectorize_particles
            or (loss.piwae and loss.num_particles > 1)  # samples of all sets share a weight
        ):
            return set()
        roles = self._roles(loss)
        # The draws of a batch would share sites that are not local, on which log w depends.
        if roles.averaged or len(loss._chunks(roles)) > 1:
            return set()
        try:
            total, copies = self._evaluate(loss, 2)
            gradients = self._gradients(total, copies, list(self.parameters))
        except (_CannotCopyError, RuntimeError):  # for instance an operation without vmap support
            return set()
        seen = set(nodes([total], ()))
        # A global draw on which log w depends, or dropout, would be shared by all draws of a batch.
        if not all(v.requires_grad and v.grad_fn not in seen for v in copies.global_values):
            return set()
        if self._guide_is_random():
            return set()
        directly = {id(node.variable) for node in seen if hasattr(node, "variable")}
        return {name for name in gradients if id(self.parameters[name]) not in directly}

    def _guide_is_random(self, num_runs: int = 10) -> bool:
        """Whether the guide's local distributions differ between runs with the same draws."""
        arguments = []
        with poutine.block(), torch.no_grad():
            trace = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
            for _ in range(num_runs):
                replay = poutine.replay(self.guide, trace=trace)
                again = poutine.trace(replay).get_trace(*self.args, **self.kwargs)
                sites = random_sites(again).values()
                arguments.append([a for s in sites for a in tensors_of(s["fn"])])
        return any(
            not torch.equal(one, other)
            for other_run in arguments[1:]
            for one, other in zip(arguments[0], other_run, strict=True)
        )

    def batched(self, names: list[str], num_draws: int) -> dict[str, Tensor]:
        """Many draws [num_draws, ...] of the gradients that :meth:`can_batch` names.

        :raises TypeError: If the loss is none of this package; :meth:`can_batch` is empty then.
        """
        if not isinstance(self.loss, ImportanceWeightedELBO):
            raise TypeError(f"The gradient of {type(self.loss).__name__} is drawn in a loop only.")
        return self._gradients(*self._evaluate(self.loss, num_draws), names)

    def _roles(self, loss: ImportanceWeightedELBO) -> Roles:
        return loss._get_structure(self.model, self.guide, self.args, self.kwargs).roles

    def _evaluate(self, of_one: ImportanceWeightedELBO, num_draws: int) -> tuple[Tensor, "_Copies"]:
        """The mean loss of some draws, and their copies of the guide's distributions.

        :param of_one: The loss of a single draw.
        """
        loss = copy.copy(of_one)
        loss.num_particles = num_draws * of_one.num_particles
        copies = _Copies(self._roles(of_one), num_draws, of_one.num_particles * of_one.K)
        guide = copies(self.guide)
        if self._structure is None:
            copies.enabled = False
            self._structure = loss._get_structure(self.model, guide, self.args, self.kwargs)
            copies.enabled = True
            copies.global_values.clear()
        else:  # the structure is that of the guide without copies
            loss._structure = replace(self._structure, guide=lambda: guide)
        return loss.differentiable_loss(self.model, guide, *self.args, **self.kwargs), copies

    def _gradients(self, total: Tensor, copies: "_Copies", names: list[str]) -> dict[str, Tensor]:
        num_draws = copies.num_draws
        parameters = {name: self.parameters[name] for name in names}
        none = {n: p.new_zeros(num_draws, *p.shape) for n, p in parameters.items()}
        if not copies.values:
            return none
        by_copies = torch.autograd.grad(
            total, copies.values, materialize_grads=True, retain_graph=True
        )
        found = torch.autograd.grad(
            copies.originals,
            list(parameters.values()),
            # The total is a mean over draws.
            [num_draws * g for g in by_copies],
            is_grads_batched=True,
            allow_unused=True,
        )
        return {n: none[n] if g is None else g for n, g in zip(names, found, strict=True)}


def _with_one_minibatch(
    model: Callable, guide: Callable, args: tuple, kwargs: dict
) -> tuple[Callable, Callable]:
    """Model and guide with the subsampled rows of one run."""
    with poutine.block(), torch.no_grad():
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replay = poutine.replay(model, trace=guide_trace)
        model_trace = poutine.trace(replay).get_trace(*args, **kwargs)
    rows = Trace()
    for trace in (guide_trace, model_trace):
        rows.nodes.update(subsample_sites(trace))
    return poutine.replay(model, trace=rows), poutine.replay(guide, trace=rows)


class _CannotCopyError(Exception):
    """A distribution that cannot be rebuilt from its arguments."""


class _Copies(Messenger):
    """Gives each draw its own copy of the parameters of the guide's local distributions.

    The handler is inside the particle plate, so the distributions that it sees have no particles.

    :param Roles roles: The roles of the sites.
    :param int num_draws: Number Q of draws.
    :param int size: Number of samples per draw, M K.
    """

    enabled = True

    def __init__(self, roles: Roles, num_draws: int, size: int) -> None:
        super().__init__()
        self.roles, self.nesting = roles, roles.nesting
        self.num_draws, self.size = num_draws, size
        #: The parameters t and their copies, [num_draws, ...].
        self.originals: list[Tensor] = []
        self.values: list[Tensor] = []
        self.global_values: list[Tensor] = []

    def _pyro_sample(self, msg: Message) -> None:
        if not self.enabled or not is_random(msg) or not is_drawn(msg):
            return
        fn = msg["fn"]
        # A distribution that depends on other local draws already has one row per sample.
        if self.roles.is_local(msg) and len(fn.batch_shape) <= self.nesting:
            msg["fn"] = self._copy(fn, self.nesting - len(fn.batch_shape))

    def _pyro_post_sample(self, msg: Message) -> None:
        if is_random(msg) and not msg["is_observed"] and not self.roles.is_local(msg):
            self.global_values.append(msg["value"])

    def _copy(self, fn: TorchDistribution, padding: int) -> TorchDistribution:
        if isinstance(fn, Independent):
            return Independent(self._copy(fn.base_dist, padding), fn.reinterpreted_batch_ndims)
        if type(fn) is TransformedDistribution and isinstance(fn, Transformed):
            return TransformedDistribution(self._copy(fn.base_dist, padding), fn.transforms)
        names = _ARGUMENTS.get(type(fn), tuple(fn.arg_constraints))
        arguments = {name: getattr(fn, name) for name in names}
        if not all(isinstance(value, Tensor) for value in arguments.values()):
            raise _CannotCopyError
        if not any(value.requires_grad for value in arguments.values()):
            return fn
        return self._rebuilt(type(fn), arguments, padding)

    def _rebuilt(
        self, kind: Callable[..., TorchDistribution], arguments: dict[str, Tensor], padding: int
    ) -> TorchDistribution:
        try:
            return kind(**{n: self._copies_of(v, padding) for n, v in arguments.items()})
        except (TypeError, ValueError) as error:  # ValueError: both probs and logits
            raise _CannotCopyError from error

    def _copies_of(self, t: Tensor, padding: int) -> Tensor:
        t = t.reshape((1,) * padding + t.shape)
        if not t.requires_grad:
            return t
        value = t.detach().expand(self.num_draws, *t.shape).clone().requires_grad_()
        self.originals.append(t)
        self.values.append(value)
        samples = value.unsqueeze(1).expand(self.num_draws, self.size, *t.shape)
        return samples.reshape(-1, *t.shape)


_ARGUMENTS: dict[type[TorchDistribution], tuple[str, ...]] = {
    MultivariateNormal: ("loc", "scale_tril")
}
