"""Distributions of y, given a likelihood and the marginals of its functions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.gp.likelihoods.averaged import Averaged
from pyro_dgp.gp.likelihoods.modes import where_modes_are_found
from pyro_dgp.gp.predictive.derived import Composite

if TYPE_CHECKING:
    from pyro_dgp.gp.likelihoods.base import Likelihood

__all__ = ["CollapsedObservation", "Marginal", "Weighted", "drawn"]


class CollapsedObservation(Composite):
    r"""An observation whose f ~ N(loc, var) is integrated under the logarithm.

    ``log_prob`` is :math:`E_f[\log p(y | f)]`; a sample is from the predictive distribution, whose
    density is at least ``exp(log_prob)``.

    :param likelihood: Likelihood with values in place of parameters
        (:func:`~pyro_dgp.gp.fixed.captured`).
    :param torch.Tensor loc: Means of the functions, [J, ..., B] or [J, ..., B, P].
    :param torch.Tensor var: Variances of the functions, of the same shape.
    :param covariates: Covariates by name, broadcastable with [..., B(, P)].
    """

    def __init__(
        self,
        likelihood: "Likelihood",
        loc: Tensor,
        var: Tensor,
        covariates: Mapping[str, Tensor],
        validate_args: bool | None = None,
    ) -> None:
        self.likelihood, self.loc, self.var = likelihood, loc, var
        self.covariates = dict(covariates)
        split = loc.dim() - likelihood.event_dim
        super().__init__(loc.shape[1:split], loc.shape[split:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(self.likelihood.support, self.event_dim)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "CollapsedObservation":
        shape = torch.Size(batch_shape) + self.event_shape
        extra = len(shape) - self.loc.dim() + 1
        loc, var = (
            f.reshape(f.shape[:1] + (1,) * extra + f.shape[1:]).expand(len(f), *shape)
            for f in (self.loc, self.var)
        )
        return CollapsedObservation(self.likelihood, loc, var, self.covariates, False)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with torch.no_grad():
            marginal = self.likelihood.marginal(self.loc, self.var, **self.covariates)
            return marginal.sample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        value = value.to(self.loc.dtype)
        loc, var = _like_value(value, self.loc, self.var)
        found = self.likelihood.expected_log_prob(value, loc, var, **self.covariates)
        return found.sum(-1) if self.event_dim else found


class Weighted(Composite):
    """A distribution whose log density is multiplied by weights.

    :param base: Distribution with batch shape [..., B].
    :param torch.Tensor weight: Weights, broadcastable with the batch shape.
    """

    def __init__(
        self, base: Distribution, weight: Tensor, validate_args: bool | None = None
    ) -> None:
        self.base, self.weight = base, weight
        super().__init__(base.batch_shape, base.event_shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint | None:
        return self.base.support

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "Weighted":
        return Weighted(self.base.expand(torch.Size(batch_shape)), self.weight, False)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base.sample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.weight * self.base.log_prob(value)


class Marginal(Composite):
    """The distribution of y integrated over f, elementwise, by the likelihood's own methods.

    :param likelihood: Likelihood with values in place of parameters.
    :param torch.Tensor loc: Means of the functions, [J, ...].
    :param torch.Tensor var: Variances of the functions, [J, ...].
    :param covariates: Covariates by name, broadcastable with [...].
    """

    def __init__(
        self,
        likelihood: "Likelihood",
        loc: Tensor,
        var: Tensor,
        covariates: Mapping[str, Tensor],
        validate_args: bool | None = None,
    ) -> None:
        self.likelihood = likelihood
        # One tensor per function, so that all parameters have the shape of the batch.
        self.loc, self.var = tuple(loc), tuple(var)
        shape = loc.shape[1:]
        self.covariates = {name: value.expand(shape) for name, value in covariates.items()}
        super().__init__(shape, validate_args=validate_args)

    @property
    def num_nodes(self) -> int:
        """Largest number of values that the quadrature of an element holds at once."""
        return {1: 192, 2: 576}.get(len(self.loc), 1000)

    @property
    def support(self) -> constraints.Constraint:
        return self.likelihood.support

    @property
    def lattice(self) -> tuple[float, float] | None:
        """See :meth:`~pyro_dgp.gp.Likelihood.lattice`."""
        return self.likelihood.lattice()

    def has_mass(self, value: Tensor) -> Tensor:
        """See :meth:`~pyro_dgp.gp.Likelihood.has_mass`."""
        return self.likelihood.has_mass(value)

    def at_mass(self, value: Tensor) -> Tensor:
        """See :meth:`~pyro_dgp.gp.Likelihood.at_mass`."""
        return self.likelihood.at_mass(value)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._evaluate(self.likelihood.log_marginal, value)

    def cdf(self, value: Tensor) -> Tensor:
        infinite = value.isinf()
        if not bool(infinite.any()):
            return self._evaluate(self.likelihood.marginal_cdf, value)
        return torch.where(infinite, value > 0, self.cdf(value.masked_fill(infinite, 0.0)))

    def coarse_cdf(self, value: Tensor) -> Tensor:
        """See :meth:`~pyro_dgp.gp.Likelihood.coarse_cdf`."""
        return self._evaluate(self.likelihood.coarse_cdf, value)

    def averaged(self) -> Averaged | None:
        """The distribution averaged over the first dimension; None for none."""
        # The shared nodes know no covariates, and derivatives by few parameters.
        trained = any(p.requires_grad for p in self.likelihood.parameters())
        if self.likelihood.num_functions > 1 or self.covariates or trained:
            return None
        return Averaged.of(self.likelihood, self.loc[0], self.var[0])

    def log_prob_by_draws(self, value: Tensor, standard: Tensor) -> Tensor:
        """See :meth:`~pyro_dgp.gp.Likelihood.log_marginal_by_draws`."""
        by_draws = partial(self.likelihood.log_marginal_by_draws, standard=standard)
        return self._evaluate(by_draws, value)

    def _evaluate(self, fn: Callable, value: Tensor) -> Tensor:
        """In double precision, which differences of gamma functions of large counts need."""
        with where_modes_are_found():
            value = value.clone().double()
            functions = _like_value(value, *(f.double() for f in self._functions()))
            return fn(value, *functions, **self.covariates).to(self.loc[0].dtype)

    @property
    def mean(self) -> Tensor:
        return self.likelihood.marginal_moments(*self._functions(), **self.covariates)[0]

    @property
    def variance(self) -> Tensor:
        return self.likelihood.marginal_moments(*self._functions(), **self.covariates)[1]

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape
        loc, var = (torch.stack([v.expand(shape) for v in f]) for f in (self.loc, self.var))
        given = {name: value.expand(shape) for name, value in self.covariates.items()}
        with torch.no_grad():
            return self.likelihood.marginal_sample(loc, var, **given)

    def drawn(self, generator: torch.Generator | None = None) -> Distribution:
        """See :meth:`~pyro_dgp.gp.Likelihood.drawn_marginal`; itself where there is none."""
        found = self.likelihood.drawn_marginal(*self._functions(), generator=generator)
        return self if found is None else found

    def _functions(self) -> tuple[Tensor, Tensor]:
        return torch.stack(self.loc), torch.stack(self.var)


def drawn(part: Distribution, generator: torch.Generator | None = None) -> Distribution:
    """Components with closed forms in place of integrals, where there are some."""
    own = getattr(part, "drawn", None)
    return part if own is None else own(generator)


def _like_value(value: Tensor, *functions: Tensor) -> tuple[Tensor, ...]:
    """Functions [J, ...] in the shape that they broadcast to with a value."""
    shape = torch.broadcast_shapes(value.shape, functions[0].shape[1:])
    extra = (1,) * (len(shape) - functions[0].dim() + 1)
    return tuple(f.reshape(len(f), *extra, *f.shape[1:]).expand(-1, *shape) for f in functions)
