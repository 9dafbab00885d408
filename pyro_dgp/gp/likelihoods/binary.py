"""Two outcomes: Bernoulli, and the binomial for several trials."""

import math
from collections.abc import Mapping

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid

from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.quadrature import Bends, expected, log_expected
from pyro_dgp.gp.likelihoods.special import incomplete_beta, log_ndtr

__all__ = ["Bernoulli", "Binomial"]

# By link: log P(1 | f), which is log P(0 | -f), and the width of its bend at 0.
_LINKS = {"logit": (logsigmoid, math.pi), "probit": (log_ndtr, 2.0)}


class _Binary(Likelihood):
    """Outcomes of probability sigma(f) or Phi(f)."""

    discrete = True
    fixed = ("link",)

    def __init__(
        self, link: str = "logit", probability: float | Tensor = 0.5, event_dim: int = 0
    ) -> None:
        if link not in _LINKS:
            raise ValueError(f"link must be one of {', '.join(_LINKS)}, but it is '{link}'.")
        p = torch.as_tensor(probability, dtype=torch.get_default_dtype())
        if p.dim() > event_dim or not bool(((p > 0) & (p < 1)).all()):
            raise ValueError(f"probability must lie between 0 and 1, but it is {probability}.")
        inverse = torch.logit if link == "logit" else torch.special.ndtri
        super().__init__(event_dim, inverse(p).unsqueeze(0))
        self.link = link

    def _log_cdf(self, f: Tensor) -> Tensor:
        return _LINKS[self.link][0](f)

    def _logits(self, f: Tensor) -> Tensor:
        return self._log_cdf(f) - self._log_cdf(-f)


class Bernoulli(_Binary):
    r"""y is 1 with probability sigma(f) (``link="logit"``) or Phi(f) (``link="probit"``), else 0.

    With the probit link the predictive probability is closed, :math:`\Phi(m / \sqrt{1 + v})`.

    :param str link: "logit" or "probit".
    :param probability: Initial probability of a 1; one, or with ``event_dim=1`` one per output [P].
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If the link is unknown, or the probability is not between 0 and 1.
    """

    support = constraints.boolean
    accepts = "targets 0 and 1"

    def __init__(
        self, link: str = "logit", probability: float | Tensor = 0.5, event_dim: int = 0
    ) -> None:
        super().__init__(link, probability, event_dim)
        self.closed_marginal = link == "probit"

    @classmethod
    def for_targets(cls, y: Tensor) -> "Bernoulli":
        """Starts from the share of ones."""
        cls().check_targets(y)
        share = y.to(torch.get_default_dtype()).mean(0).clamp(0.01, 0.99)
        return cls(probability=share, event_dim=y.dim() - 1)

    def conditional(self, f: Tensor) -> Distribution:
        """Bernoulli(sigma(f)) or Bernoulli(Phi(f))."""
        return dist.Bernoulli(logits=self._logits(f), validate_args=False)

    def conditional_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self._log_cdf((2 * y.to(f.dtype) - 1) * f)

    def bends(self, y: Tensor) -> Bends:
        """At 0."""
        return Bends((0.0,), _LINKS[self.link][1])

    def marginal(self, loc: Tensor, var: Tensor) -> Distribution:
        """Bernoulli, by its logits."""
        if self.link == "probit":
            logits = self._logits(loc[0] / (1 + var[0]).sqrt())
        else:
            logits = log_expected(self._log_cdf, loc, var) - log_expected(
                lambda f: self._log_cdf(-f), loc, var
            )
        return _Bernoulli(logits=logits, validate_args=False)


class Binomial(_Binary):
    """Number of ones in ``total_count`` trials, a required covariate [N]; links as in Bernoulli.

    :param str link: "logit" or "probit".
    :param probability: Initial probability of a 1; one, or with ``event_dim=1`` one per output [P].
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If the link is unknown, or the probability is not between 0 and 1.
    """

    support = constraints.nonnegative_integer
    accepts = "counts 0, 1, 2, ..."
    covariates = ("total_count",)
    needed = ("total_count",)

    @classmethod
    def for_targets(cls, y: Tensor) -> "Binomial":
        """Starts from probability 1/2, because the numbers of trials are not known here."""
        return cls(event_dim=y.dim() - 1)

    def check_covariates(self, covariates: Mapping[str, Tensor]) -> None:
        """
        :raises TypeError: If there is no ``total_count``.
        :raises ValueError: If it holds no counts.
        """
        super().check_covariates(covariates)
        if not bool(constraints.nonnegative_integer.check(covariates["total_count"]).all()):
            raise ValueError("total_count must hold counts 0, 1, 2, ....")

    def check_targets(self, y: Tensor, total_count: Tensor | None = None) -> None:
        """
        :raises ValueError: If y holds no counts, or more than ``total_count``.
        """
        super().check_targets(y)
        if total_count is not None:
            self.refuse(y, y > total_count, "counts of at most total_count")

    def conditional(self, f: Tensor, total_count: Tensor) -> Distribution:
        """Binomial(total_count, sigma(f)) or Binomial(total_count, Phi(f))."""
        return _Binomial(total_count.to(f.dtype), logits=self._logits(f), validate_args=False)

    def conditional_log_prob(self, y: Tensor, f: Tensor, total_count: Tensor) -> Tensor:
        n, y = total_count.to(f.dtype), y.to(f.dtype)
        log_ways = (n + 1).lgamma() - (y + 1).lgamma() - (n - y + 1).lgamma()
        return log_ways + y * self._log_cdf(f) + (n - y) * self._log_cdf(-f)

    def bends(self, y: Tensor, total_count: Tensor) -> Bends:
        """At 0."""
        return Bends((0.0,), _LINKS[self.link][1])

    def marginal_moments(
        self, loc: Tensor, var: Tensor, total_count: Tensor
    ) -> tuple[Tensor, Tensor]:
        n, bends = total_count.to(loc.dtype), Bends((0.0,), 2.0)
        p = expected(lambda f: self._log_cdf(f).exp(), loc, var, bends)
        square = expected(lambda f: (2 * self._log_cdf(f)).exp(), loc, var, bends)
        return n * p, n * (p - square) + n.square() * (square - p.square())

    def log_marginal(self, y: Tensor, loc: Tensor, var: Tensor, total_count: Tensor) -> Tensor:
        log_prob, steps = self.conditional_log_prob, self._steps(y, total_count, loc.dtype)
        return log_expected(lambda f: log_prob(y, f, total_count), loc, var, bends=steps)

    def marginal_cdf(self, y: Tensor, loc: Tensor, var: Tensor, total_count: Tensor) -> Tensor:
        conditional, steps = self.conditional, self._steps(y, total_count, loc.dtype)
        return expected(lambda f: conditional(f, total_count).cdf(y), loc, var, steps)

    def _steps(self, y: Tensor, total_count: Tensor, dtype: torch.dtype) -> Bends:
        """Where probabilities rise and fall with f: at y / n, the faster the more trials."""
        n = total_count.to(dtype)
        share = (y + 0.5).clamp_min(0.25) / (n + 1).clamp_min(1)
        share = share.clamp(1e-6, 1 - 1e-6)
        at = share.logit() if self.link == "logit" else torch.special.ndtri(share)
        width = ((n + 1) * share * (1 - share)).rsqrt().clamp_max(2.0)
        return Bends((at,), width)

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """log(1 + y)."""
        return y.to(dtype).log1p()


class _Bernoulli(dist.Bernoulli):
    lattice = 0.0, 1.0

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value.to(self.logits.dtype))

    def cdf(self, value: Tensor) -> Tensor:
        return torch.where(value < 0, 0.0, torch.where(value < 1, (-self.logits).sigmoid(), 1.0))


class _Binomial(dist.Binomial):
    def cdf(self, value: Tensor) -> Tensor:
        k, n = value.floor(), self.total_count
        share = (-self.logits).sigmoid()
        inside = incomplete_beta((n - k).clamp_min(1e-9), k.clamp_min(0) + 1, share)
        return torch.where(k < 0, 0.0, torch.where(k >= n, 1.0, inside))
