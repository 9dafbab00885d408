"""The distributions of y that a likelihood makes of its functions' marginals."""

from collections.abc import Callable

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = ["CollapsedObservation", "Marginal", "Weighted"]


class CollapsedObservation(dist.TorchDistribution):
    r"""An observation whose f ~ N(loc, var) is integrated under the logarithm.

    ``log_prob`` is :math:`E_f[\log p(y | f)]`; a sample is one of the predictive distribution,
    whose density lies above ``exp(log_prob)``.

    :param likelihood: A :class:`~pyro_dgp.gp.Likelihood`, with its parameters' values
        (:func:`~pyro_dgp.gp.fixed.captured`).
    :param torch.Tensor loc: [J, ..., B] or [J, ..., B, P].
    :param torch.Tensor var: The same shape.
    :param covariates: By name, broadcastable with [..., B(, P)].
    """

    arg_constraints = {}

    def __init__(self, likelihood, loc, var, covariates, validate_args=None):
        self.likelihood, self.loc, self.var = likelihood, loc, var
        self.covariates = dict(covariates)
        split = loc.dim() - likelihood.event_dim
        super().__init__(loc.shape[1:split], loc.shape[split:], validate_args=validate_args)

    @property
    def support(self):
        return constraints.independent(self.likelihood.support, self.event_dim)

    def expand(self, batch_shape, _instance=None):
        shape = torch.Size(batch_shape) + self.event_shape
        extra = len(shape) - self.loc.dim() + 1
        loc, var = (
            f.reshape(f.shape[:1] + (1,) * extra + f.shape[1:]).expand(len(f), *shape)
            for f in (self.loc, self.var)
        )
        return CollapsedObservation(self.likelihood, loc, var, self.covariates, False)

    def sample(self, sample_shape=()):
        with torch.no_grad():
            marginal = self.likelihood.marginal(self.loc, self.var, **self.covariates)
            return marginal.sample(torch.Size(sample_shape))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        value = value.to(self.loc.dtype)
        loc, var = _like_value(value, self.loc, self.var)
        found = self.likelihood.expected_log_prob(value, loc, var, **self.covariates)
        return found.sum(-1) if self.event_dim else found


class Weighted(dist.TorchDistribution):
    """A distribution whose log density is multiplied by weights."""

    arg_constraints = {}

    def __init__(self, base, weight, validate_args=None):
        self.base, self.weight = base, weight
        super().__init__(base.batch_shape, base.event_shape, validate_args=validate_args)

    @property
    def support(self):
        return self.base.support

    def expand(self, batch_shape, _instance=None):
        return Weighted(self.base.expand(batch_shape), self.weight, False)

    def sample(self, sample_shape=()):
        return self.base.sample(sample_shape)

    def log_prob(self, value):
        return self.weight * self.base.log_prob(value)


class Marginal(dist.TorchDistribution):
    """y with f integrated, elementwise: what a likelihood's methods on marginals say.

    :param likelihood: A :class:`~pyro_dgp.gp.Likelihood` whose parameters are plain values.
    :param torch.Tensor loc: [J, ...].
    :param torch.Tensor var: [J, ...].
    :param covariates: By name, broadcastable with [...].
    """

    arg_constraints = {}

    def __init__(self, likelihood, loc, var, covariates, validate_args=None):
        self.likelihood = likelihood
        # One tensor a function, so that whoever takes a part of the batch finds its shape in all.
        self.loc, self.var = tuple(loc), tuple(var)
        shape = loc.shape[1:]
        self.covariates = {name: value.expand(shape) for name, value in covariates.items()}
        super().__init__(shape, validate_args=validate_args)

    @property
    def num_nodes(self) -> int:
        """Values at a time that an element's quadrature takes, at most."""
        return {1: 192, 2: 576}.get(len(self.loc), 1000)

    @property
    def support(self):
        return self.likelihood.support

    @property
    def lattice(self) -> tuple[float, float] | None:
        """See :meth:`~pyro_dgp.gp.Likelihood.lattice`."""
        return self.likelihood.lattice()

    def has_mass(self, value: Tensor) -> Tensor:
        """See :meth:`~pyro_dgp.gp.Likelihood.has_mass`."""
        return self.likelihood.has_mass(value)

    def log_prob(self, value):
        return self._evaluate(self.likelihood.log_marginal, value)

    def cdf(self, value):
        return self._evaluate(self.likelihood.marginal_cdf, value)

    def coarse_cdf(self, value):
        """See :meth:`~pyro_dgp.gp.Likelihood.coarse_cdf`."""
        return self._evaluate(self.likelihood.coarse_cdf, value)

    def _evaluate(self, fn: Callable, value: Tensor) -> Tensor:
        """In double precision: what cancels, such as gamma functions of large counts, needs it."""
        # The search for a mode differentiates, which inference mode would not let it.
        with torch.inference_mode(False), torch.no_grad():
            value = value.clone().double()
            functions = _like_value(value, *(f.double() for f in self._functions()))
            return fn(value, *functions, **self.covariates).to(self.loc[0].dtype)

    @property
    def mean(self):
        return self.likelihood.marginal_moments(*self._functions(), **self.covariates)[0]

    @property
    def variance(self):
        return self.likelihood.marginal_moments(*self._functions(), **self.covariates)[1]

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        loc, var = (torch.stack([v.expand(shape) for v in f]) for f in (self.loc, self.var))
        given = {name: value.expand(shape) for name, value in self.covariates.items()}
        with torch.no_grad():
            return self.likelihood.marginal_sample(loc, var, **given)

    def drawn(self, generator: torch.Generator | None = None) -> dist.Distribution:
        """See :meth:`~pyro_dgp.gp.Likelihood.drawn_marginal`; itself where there is none."""
        found = self.likelihood.drawn_marginal(*self._functions(), generator=generator)
        return self if found is None else found

    def _functions(self) -> tuple[Tensor, Tensor]:
        return torch.stack(self.loc), torch.stack(self.var)


def _like_value(value: Tensor, *functions: Tensor) -> tuple[Tensor, ...]:
    """Functions [J, ...] in the shape that they broadcast to with a value."""
    shape = torch.broadcast_shapes(value.shape, functions[0].shape[1:])
    extra = (1,) * (len(shape) - functions[0].dim() + 1)
    return tuple(f.reshape(len(f), *extra, *f.shape[1:]).expand(-1, *shape) for f in functions)
