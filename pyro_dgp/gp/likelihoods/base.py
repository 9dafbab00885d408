r"""The base class of likelihoods p(y | f), integrated over f ~ N(mean, var).

Here f ~ N(mean, var) is the last layer's marginal. The bound needs :math:`E_f[\log p(y|f)]`, not
:math:`\log E_f[p(y|f)]`: with the second inside the sum over data and the KL of q(f) outside, the
sum is no lower bound. A prediction needs the second.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import pyro
import torch
from pyro.contrib.gp import likelihoods as pyro_likelihoods
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from pyro_dgp.gp.fixed import captured
from pyro_dgp.gp.layers.base import in_mode
from pyro_dgp.gp.likelihoods.collapsed import CollapsedObservation, Marginal, Weighted
from pyro_dgp.gp.likelihoods.quadrature import Bends, expected, log_expected
from pyro_dgp.gp.likelihoods.special import log_mean_exp

__all__ = ["Likelihood", "check_likelihood"]

R = TypeVar("R")


def _with_own_covariates(method: Callable[..., R]) -> Callable[..., R]:
    """Tells type checkers that overrides list their own covariates in place of ``**covariates``."""
    return method


class Likelihood(pyro_likelihoods.Likelihood):
    r"""p(y | f) of each target given J functions of its row, the outputs of the last layer.

    A new likelihood needs :meth:`conditional` alone, whose distribution has ``log_prob``,
    ``sample``, ``cdf``, ``mean`` and ``variance``. The expected log density and the predictive
    distribution are then computed by quadrature over f, for up to three functions:

    >>> class Laplace(Likelihood):
    ...     def __init__(self, event_dim=0):
    ...         super().__init__(event_dim)
    ...         self.scale = PyroParam(torch.tensor(0.1), constraints.positive)
    ...
    ...     def conditional(self, f):
    ...         return dist.Laplace(f, self.scale)

    A likelihood overrides other methods if they have a closed form, or if log p(y | f) changes its
    slope within less than the functions' standard deviations (see
    :mod:`~pyro_dgp.gp.likelihoods.quadrature`). All methods are elementwise over targets, with
    functions first: ``loc`` and ``var`` are [J, ..., B], or [J, ..., B, P] with ``event_dim=1``,
    where the P targets of a row are independent given f.

    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :param torch.Tensor intercept: Initial values of trained constants that are added to the
        functions, [J], or [J, P] with ``event_dim=1``; None for no constants.
    """

    event_dim: int
    intercept: Tensor | None
    #: Number of functions J per target.
    num_functions: int = 1
    #: True if targets are discrete, with probabilities in place of densities.
    discrete: bool = False
    #: True if :meth:`marginal` has a closed form.
    closed_marginal: bool = False
    #: Constraint of the possible targets.
    support: constraints.Constraint = constraints.real
    #: The same in words, for messages.
    accepts: str = "real numbers"
    #: Names of the covariates that the likelihood takes per row, and of those that it requires.
    covariates: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    #: Names of the constructor's arguments, other than ``event_dim``, that training does not
    #: change; attributes of the same names hold their values.
    fixed: tuple[str, ...] = ()

    def __init__(self, event_dim: int = 0, intercept: Tensor | None = None) -> None:
        super().__init__()
        if event_dim not in (0, 1):
            raise ValueError(f"event_dim must be 0 or 1, but it is {event_dim}.")
        self.event_dim = event_dim
        self.intercept = None if intercept is None else nn.Parameter(intercept.detach().clone())

    @classmethod
    def for_targets(cls, y: Tensor) -> "Likelihood":
        """A likelihood with initial values from training targets.

        :param torch.Tensor y: Training targets, [N] or [N, P].
        :raises ValueError: If the likelihood does not accept them.
        """
        return cls(event_dim=y.dim() - 1)

    def settings(self) -> dict:
        """Constructor arguments that, with the parameters' values, determine the likelihood."""
        return {name: getattr(self, name) for name in ("event_dim", *self.fixed)}

    # Methods that a likelihood may override

    @_with_own_covariates
    def conditional(self, *f: Tensor, **covariates: Tensor) -> Distribution:
        """p(y | f), a distribution of the functions' shape.

        :param f: Functions, J tensors of the same shape, [..., B] or [..., B, P].
        :param covariates: Given covariates, broadcastable with f.
        """
        raise NotImplementedError(
            f"{type(self).__name__} needs a method conditional(f), the distribution of y given f."
        )

    @_with_own_covariates
    def conditional_log_prob(self, y: Tensor, *f: Tensor, **covariates: Tensor) -> Tensor:
        """log p(y | f)."""
        p = self.conditional(*f, **covariates)
        p._validate_args = False  # y has been checked, and nodes may be far from all data
        return p.log_prob(y.to(f[0].dtype))

    def functions(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """The functions' means and variances, given those of the last layer's outputs.

        :param torch.Tensor loc: Means, [J, ..., B, P] for any ``event_dim``.
        :param torch.Tensor var: Variances, of the same shape.
        """
        if self.intercept is None:
            return loc, var
        c = self.intercept.reshape(len(loc), -1)
        return loc + c.reshape(len(loc), *[1] * (loc.dim() - 2), c.shape[1]), var

    @_with_own_covariates
    def bends(self, y: Tensor, **covariates: Tensor) -> Bends | None:
        """Where the slope of log p(y | f) in f changes; None for Gauss-Hermite quadrature."""

    @_with_own_covariates
    def expected_log_prob(
        self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor
    ) -> Tensor:
        """E[log p(y | f)] for f_j ~ N(loc_j, var_j).

        :param torch.Tensor y: Targets, broadcastable with [..., B] or [..., B, P].
        :param torch.Tensor loc: Means of the functions, [J, ..., B(, P)].
        :param torch.Tensor var: Variances of the functions, [J, ..., B(, P)].
        :param covariates: Given covariates, broadcastable with y.
        :returns: Expected log densities, [..., B(, P)].
        """
        bends = None if self.num_functions > 1 else self.bends(y, **covariates)
        return expected(lambda *f: self.conditional_log_prob(y, *f, **covariates), loc, var, bends)

    @_with_own_covariates
    def collapsed(self, loc: Tensor, var: Tensor, **covariates: Tensor) -> Distribution:
        """:meth:`expected_log_prob` as the ``log_prob`` of a distribution."""
        return CollapsedObservation(captured(self), loc, var, covariates)

    @_with_own_covariates
    def marginal(self, loc: Tensor, var: Tensor, **covariates: Tensor) -> Distribution:
        """The distribution of y integrated over f, elementwise over targets: batch shape of f."""
        return Marginal(self, loc, var, covariates)

    @_with_own_covariates
    def log_marginal(self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        """log E[p(y | f)], for :meth:`marginal`."""
        bends = None if self.num_functions > 1 else self.bends(y, **covariates)
        return log_expected(
            lambda *f: self.conditional_log_prob(y, *f, **covariates), loc, var, bends=bends
        )

    @_with_own_covariates
    def log_marginal_by_draws(
        self, y: Tensor, loc: Tensor, var: Tensor, standard: Tensor, **covariates: Tensor
    ) -> Tensor:
        """:meth:`log_marginal` if it is closed; else the logarithm of the mean of p(y | f) over
        draws of f, an estimate for many (loc, var) that are averaged later.

        :param torch.Tensor standard: Standardised functions, [M, J, ...], broadcastable.
        """
        if self.closed_marginal:
            return self.marginal(loc, var, **covariates).log_prob(y)
        try:
            log_p = [
                self.conditional_log_prob(y, *(loc + var.sqrt() * e), **covariates)
                for e in standard
            ]
        except NotImplementedError:  # a likelihood without p(y | f), but integrals of its own
            return self.log_marginal(y, loc, var, **covariates)
        return log_mean_exp(torch.stack(log_p))

    def drawn_marginal(
        self, loc: Tensor, var: Tensor, generator: torch.Generator | None = None
    ) -> Distribution | None:
        """A closed-form distribution whose average over draws is the marginal; None for none.

        There is one draw per sample, the same for all rows: with many samples it replaces
        quadrature.

        :param torch.Tensor loc: Means of the functions, [J, S, N(, P)].
        :param torch.Tensor var: Variances of the functions, of the same shape.
        :param torch.Generator generator: Source of the draws; None for torch's global generator.
        """

    @_with_own_covariates
    def marginal_cdf(self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        """P(target <= y), for :meth:`marginal`; needs a conditional with ``cdf``."""
        bends = None if self.num_functions > 1 else self.bends(y, **covariates)
        return expected(lambda *f: self._conditional_cdf(y, *f, **covariates), loc, var, bends)

    @_with_own_covariates
    def coarse_cdf(self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        """:meth:`marginal_cdf` with few nodes, for scores of mixtures of many (loc, var).

        If y is nearly a function of f, the distribution function by five Gauss-Hermite nodes has
        five steps; in a mixture of a hundred components the steps are averaged out.
        """
        return expected(
            lambda *f: self._conditional_cdf(y, *f, **covariates), loc, var, num_hermite=5
        )

    def _conditional_cdf(self, y: Tensor, *f: Tensor, **covariates: Tensor) -> Tensor:
        p = self.conditional(*f, **covariates)
        try:
            return p.cdf(y)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{type(self).__name__} does not know P(target <= y), which quantiles and the CRPS "
                f"need: give its conditional, a {type(p).__name__}, a cdf, or the likelihood "
                "a marginal_cdf."
            ) from error

    def narrowest(self, highest: Tensor) -> Tensor | None:
        """The smallest standard deviation of P(target <= y | f) as a function of one f, for any y.

        With it, averages over many (loc, var) are much faster; None to average after the integral.

        :param torch.Tensor highest: The largest f that matters, [...].
        """

    @_with_own_covariates
    def marginal_moments(
        self, loc: Tensor, var: Tensor, **covariates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of y, for :meth:`marginal`; needs a conditional with both."""

        def moment(fn: Callable[[Distribution], Tensor]) -> Tensor:
            return expected(lambda *f: fn(self.conditional(*f, **covariates)), loc, var)

        mean = moment(lambda p: p.mean)
        return mean, moment(lambda p: p.variance + (p.mean - mean).square())

    @_with_own_covariates
    def marginal_sample(self, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        """A draw of y for each element, for :meth:`marginal`."""
        f = loc + var.sqrt() * torch.randn_like(loc)
        return self.conditional(*f, **covariates).sample()

    def has_mass(self, y: Tensor) -> Tensor:
        """Whether :meth:`log_marginal` at y is the logarithm of a probability, not of a density."""
        return torch.full_like(y, self.discrete, dtype=torch.bool)

    def at_mass(self, y: Tensor) -> Tensor:
        """y, with the value that has a probability in place of those that :meth:`has_mass` takes
        for it."""
        return y

    def lattice(self) -> tuple[float, float] | None:
        """Origin and step, if targets lie on origin + step k, for quantiles and CRPS; else None."""
        return (0.0, 1.0) if self.discrete else None

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The encoder's input for targets, of about unit scale: [B] or [B, E].

        :param torch.Tensor y: Targets, [B] or [B, P].
        :param torch.dtype dtype: Dtype of the result.
        """
        return y.to(dtype)

    @_with_own_covariates
    def check_targets(self, y: Tensor, **covariates: Tensor) -> None:
        """
        :raises ValueError: If a target is not possible.
        """
        self.refuse(y, ~self.support.check(y), self.accepts)

    # Methods that the model calls

    def output_dim(self, num_targets: int) -> int:
        """Number of outputs of the last layer for P targets, J P: first all first functions."""
        return self.num_functions * num_targets

    def check_output_dim(self, output_dim: int) -> None:
        """
        :raises ValueError: If a last layer of that width fits no targets of this ``event_dim``.
        """
        J = self.num_functions
        if self.event_dim == 0 and output_dim != J:
            hint = ": use event_dim=1 for targets [N, P]" if output_dim % J == 0 else ""
            raise ValueError(
                f"The last layer has {output_dim} outputs{hint}, where {type(self).__name__} for "
                f"targets [N] needs {J}."
            )
        if output_dim % J:
            raise ValueError(
                f"The last layer has {output_dim} outputs, but {type(self).__name__} needs {J} for "
                "each target."
            )
        if self.intercept is not None and self.intercept.numel() not in (J, output_dim):
            raise ValueError(
                f"{type(self).__name__} has initial values for {self.intercept.numel() // J} "
                f"targets, but the last layer has functions for {output_dim // J}."
            )

    def check_shape(self, y: Tensor, output_dim: int) -> None:
        """
        :raises ValueError: If targets y do not have the shape that ``output_dim`` functions give.
        """
        P = output_dim // self.num_functions
        if y.dim() - 1 != self.event_dim or (self.event_dim and y.shape[1] != P):
            expected_shape = f"[B, {P}]" if self.event_dim else "[B]"
            raise ValueError(
                f"y has shape {tuple(y.shape)}, but the model expects {expected_shape}."
            )

    def check_covariates(self, covariates: Mapping[str, Tensor]) -> None:
        """
        :raises TypeError: If one is unknown, or missing.
        :raises ValueError: If one has a wrong shape, or a weight is negative.
        """
        for name in self.needed:
            if name not in covariates:
                raise TypeError(
                    f"{type(self).__name__} needs {name!r} per row: pass {name}=... beside X."
                )
        for name, value in covariates.items():
            if name not in (*self.covariates, "weight"):
                raise TypeError(
                    f"{type(self).__name__} takes no {name!r}; per row it takes "
                    f"{', '.join((*self.covariates, 'weight'))}."
                )
            most = 2 if self.event_dim and name != "weight" else 1
            if value.dim() > most:
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}, but needs "
                    f"{'[B] or [B, P]' if most == 2 else '[B]'}."
                )
            if name == "weight" and bool((value < 0).any()):
                raise ValueError(f"weight must not be negative, but has {value.min()}.")

    def model(self) -> None:
        """Global sites of the prior: parameters that have one."""
        with in_mode(self, "model"):
            self._load_pyro_samples()

    def guide(self) -> None:
        """Global sites of the guide."""
        with in_mode(self, "guide"):
            self._load_pyro_samples()

    def forward(
        self,
        f_loc: Tensor,
        f_var: Tensor,
        y: Tensor | None = None,
        weight: Tensor | None = None,
        **covariates: Tensor,
    ) -> Tensor:
        """The observation site ``y``, to be called inside the data plate.

        :param torch.Tensor f_loc: Means of the last layer, [..., B, J P].
        :param torch.Tensor f_var: Variances of the last layer, [..., B, J P].
        :param torch.Tensor y: Targets, [B] or [B, P], or None to draw them.
        :param torch.Tensor weight: Factors of the rows' log densities, [B]; None for 1.
        :param covariates: Covariates of the likelihood per row, [B] or [B, P].
        :returns: y, or a draw from the predictive distribution.
        """
        y_dist = self.observation(f_loc, f_var, **covariates)
        if weight is not None:
            y_dist = Weighted(y_dist, weight)
        return pyro.sample(self._pyro_get_fullname("y"), y_dist, obs=y)

    def observation(self, f_loc: Tensor, f_var: Tensor, **covariates: Tensor) -> Distribution:
        """The distribution of the observation site, for a larger model with its own site.

        :param torch.Tensor f_loc: Means of the last layer, [..., B, J P].
        :param torch.Tensor f_var: Variances of the last layer, [..., B, J P].
        :param covariates: Covariates of the likelihood per row, [B] or [B, P].
        :returns: Batch shape [..., B], event shape [] or [P]; ``log_prob`` is the expected one.
        """
        return self.collapsed(*self._split(f_loc, f_var), **self._by_target(covariates))

    def predictive(self, f_loc: Tensor, f_var: Tensor, **covariates: Tensor) -> Distribution:
        """The distribution of y integrated over f.

        :param torch.Tensor f_loc: Means of the last layer, [..., B, J P].
        :param torch.Tensor f_var: Variances of the last layer, [..., B, J P].
        :param covariates: Covariates of the likelihood per row, [B] or [B, P].
        :returns: Elementwise over targets: batch shape [..., B] or [..., B, P].
        """
        return self.marginal(*self._split(f_loc, f_var), **self._by_target(covariates))

    def integral(self, f_loc: Tensor, f_var: Tensor, **covariates: Tensor) -> Marginal:
        """:meth:`predictive` as an integral that has not been taken yet."""
        return Marginal(self, *self._split(f_loc, f_var), self._by_target(covariates))

    def _by_target(self, covariates: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Covariates [B] as [B, 1], if targets are [B, P]."""
        one = self.event_dim == 1
        return {n: v.unsqueeze(-1) if one and v.dim() == 1 else v for n, v in covariates.items()}

    def _split(self, f_loc: Tensor, f_var: Tensor) -> tuple[Tensor, Tensor]:
        """[..., B, J P] as functions, [J, ..., B] or [J, ..., B, P]."""
        J = self.num_functions
        outputs = (f.unflatten(-1, (J, -1)).movedim(-2, 0) for f in (f_loc, f_var))
        loc, var = self.functions(*outputs)
        return (loc, var) if self.event_dim else (loc.squeeze(-1), var.squeeze(-1))

    def refuse(self, y: Tensor, bad: Tensor, accepts: str) -> None:
        """Raises one error for all impossible targets, for :meth:`check_targets`.

        :param torch.Tensor y: Targets.
        :param torch.Tensor bad: Mask of the impossible ones, of the shape of y.
        :param str accepts: Description of the possible ones.
        :raises ValueError: If a target is impossible.
        """
        if bool(bad.any()):
            raise ValueError(
                f"{type(self).__name__} takes {accepts}, but {int(bad.sum())} of {y.numel()} "
                f"targets are not, the first {y[bad][0].item():g}."
            )


_INSTEAD = {
    "Gaussian": "GaussianLikelihood", "Binary": "Bernoulli", "MultiClass": "Categorical",
    "Poisson": "Poisson",
}  # fmt: skip


def check_likelihood(likelihood: Likelihood) -> None:
    """
    :raises TypeError: If it is no :class:`Likelihood`, but for instance one of Pyro's own.
    """
    if isinstance(likelihood, Likelihood):
        return
    kind = type(likelihood).__name__
    found = f"likelihood is a {kind}, no pyro_dgp.gp.Likelihood"
    if isinstance(likelihood, pyro_likelihoods.Likelihood):
        found += (
            ". Pyro's own compare f [B, 1] with y [B] in all pairs, and compute log E[p(y | f)], "
            "which is no lower bound"
        )
    use = _INSTEAD.get(kind)
    hint = f"Use pyro_dgp.gp.likelihoods.{use}" if use else "Derive it from pyro_dgp.gp.Likelihood"
    raise TypeError(f"{found}. {hint}.")
