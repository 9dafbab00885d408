"""What the laws of likelihoods are tested on: every family, with formulas that SciPy gives."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from scipy import special, stats
from torch.distributions import constraints

from pyro_dgp.gp import likelihoods as lik
from tests.quadrature import expectation, gauss_hermite, log_expectation

MEANS = (-8.0, -1.0, 0.0, 0.4, 3.0, 10.0)
VARIANCES = (1e-8, 1e-4, 1e-2, 0.3, 1.0, 9.0, 25.0)


@dataclass(frozen=True)
class Case:
    """A likelihood of one function.

    :param make: The likelihood, in the default dtype.
    :param y: Targets.
    :param log_prob: log p(y | f) of arrays.
    :param landmarks: Functions of y (and covariates) that say at which f it is narrow or bends.
    :param covariates: One number per target.
    :param loose: Error of the expected log density, where the quadrature knows no better.
    """

    make: Callable[[], lik.Likelihood]
    y: tuple[float, ...]
    log_prob: Callable[..., np.ndarray]
    landmarks: tuple[Callable[..., np.ndarray], ...] = ()
    covariates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    loose: float | None = None

    def grid(self, means=MEANS, variances=VARIANCES, y=None):
        """y [E], loc [J, E], var [J, E] and covariates [E] as tensors, of all combinations."""
        index, m, v = np.meshgrid(np.arange(len(self.y)), means, variances, indexing="ij")
        loc, var = self._functions(m.ravel(), v.ravel())
        given = {k: torch.tensor(values)[index.ravel()] for k, values in self.covariates.items()}
        return torch.tensor(self.y)[index.ravel()], torch.tensor(loc), torch.tensor(var), given

    def _functions(self, m, v):
        return m[None], v[None]

    def _parts(self, y, loc, var, given):
        y, loc, var = (np.asarray(t, dtype=float) for t in (y, loc, var))
        given = {k: np.asarray(t, dtype=float) for k, t in given.items()}
        landmarks = [np.broadcast_to(at(y, **given), y.shape) for at in self.landmarks]
        landmarks = np.stack(landmarks, -1) if landmarks else np.zeros((len(y), 0))

        def log_prob(f, i):
            return self.log_prob(y[i, None], f, **{k: t[i, None] for k, t in given.items()})

        return log_prob, loc, var, landmarks

    def expected(self, y, loc, var, **given):
        """E[log p(y | f)], [E]."""
        log_prob, loc, var, landmarks = self._parts(y, loc, var, given)
        return expectation(log_prob, loc[0], var[0], landmarks)

    def log_marginal(self, y, loc, var, **given):
        """log E[p(y | f)], [E]."""
        log_prob, loc, var, landmarks = self._parts(y, loc, var, given)
        return log_expectation(log_prob, loc[0], var[0], landmarks)


class TwoFunctions(Case):
    """y ~ f + e^(g / 2) noise: g has several means and variances on the grid, too."""

    def _functions(self, m, v):
        # Every third combination has the same mean and variance of g.
        k = np.arange(len(m))
        mean_g, var_g = np.array([-3.0, 0.4, 1.0])[k % 3], np.array([0.3, 1e-4, 4.0, 1.0])[k % 4]
        return np.stack([m, mean_g]), np.stack([v, var_g])


class HeteroscedasticNormal(TwoFunctions):
    def expected(self, y, loc, var):
        y, loc, var = (np.asarray(t, dtype=float) for t in (y, loc, var))
        x, w = (t.numpy() for t in gauss_hermite(80))
        x_f, x_g = x[:, None, None], x[None, :, None]
        f, g = (loc[j] + np.sqrt(var[j]) * x for j, x in enumerate((x_f, x_g)))
        log_p = -0.5 * (np.log(2 * np.pi) + g + np.exp(-g) * (y - f) ** 2)
        return np.einsum("a,b,abe->e", w, w, log_p)

    def log_marginal(self, y, loc, var):
        y, (m, mean_g), (v, var_g) = (np.asarray(t, dtype=float) for t in (y, loc, var))
        y, m, v = y[:, None], m[:, None], v[:, None]

        def log_prob(g, i):
            return stats.norm.logpdf(y[i], m[i], np.sqrt(v[i] + np.exp(g)))

        at = np.log(np.maximum((y - m) ** 2 - v, 1e-3 * v))
        return log_expectation(log_prob, mean_g, var_g, at)


@dataclass(frozen=True)
class Inflated(Case):
    """A value with probability sigma(f_1), or else ``other``'s."""

    other: Case | None = None
    value: float = 0.0

    def _functions(self, m, v):
        loc, var = self.other._functions(m, v)
        k = np.arange(len(m))
        odds, var_odds = np.array([-6.0, 0.3, 2.0])[k % 3], np.array([0.3, 1e-4, 16.0, 1.0])[k % 4]
        return np.concatenate([odds[None], loc]), np.concatenate([var_odds[None], var])

    def _both(self, y, loc, var, integrate, other):
        here = np.isclose(np.asarray(y), self.value)
        sign = np.where(here, 1.0, -1.0)[:, None]
        zero = np.zeros((len(here), 1))
        loc_1, var_1 = np.asarray(loc[0]), np.asarray(var[0])
        found = integrate(lambda f, i: -np.logaddexp(0, -sign[i] * f), loc_1, var_1, zero)
        rest = torch.tensor(np.where(here, 0.5, y))
        return found + np.where(here, 0.0, other(rest, loc[1:], var[1:]))

    def expected(self, y, loc, var):
        return self._both(y, loc, var, expectation, self.other.expected)

    def log_marginal(self, y, loc, var):
        return self._both(y, loc, var, log_expectation, self.other.log_marginal)


class Laplace(lik.Likelihood):
    """What a user writes, as the documentation shows it: a conditional, and nothing else."""

    def __init__(self, event_dim=0):
        super().__init__(event_dim)
        self.scale = PyroParam(torch.tensor(0.7), constraints.positive)

    def conditional(self, f):
        return dist.Laplace(f, self.scale)


class HeteroscedasticLaplace(lik.Likelihood):
    """Another one, of two functions."""

    num_functions = 2

    def conditional(self, f, g):
        return dist.Laplace(f, g.exp())


class NormalCdf(lik.Likelihood):
    """A smooth one of the user's own, with a conditional alone."""

    def conditional(self, f):
        return dist.Normal(f.tanh(), 0.5)


def _absolute(y, m, v):
    """E|y - f|."""
    s = np.sqrt(v)
    z = (y - m) / s
    return s * np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2) + (y - m) * special.erf(z / np.sqrt(2))


class LaplaceCase(Case):
    def expected(self, y, loc, var):
        y, loc, var = (np.asarray(t, dtype=float) for t in (y, loc, var))
        return -np.log(1.4) - _absolute(y, loc[0], var[0]) / 0.7


class HeteroscedasticLaplaceCase(TwoFunctions):
    def _functions(self, m, v):
        k = np.arange(len(m))
        mean_g, var_g = np.array([-1.0, 0.4, 1.0])[k % 3], np.array([0.1, 1e-4, 0.5, 0.3])[k % 4]
        return np.stack([m, mean_g]), np.stack([v, var_g])

    def expected(self, y, loc, var):
        y, (m, mean_g), (v, var_g) = (np.asarray(t, dtype=float) for t in (y, loc, var))
        return -np.log(2) - mean_g - np.exp(0.5 * var_g - mean_g) * _absolute(y, m, v)

    def log_marginal(self, y, loc, var):
        y, (m, mean_g), (v, var_g) = (np.asarray(t, dtype=float) for t in (y, loc, var))
        x, w = (t.numpy() for t in gauss_hermite(24))
        b = np.exp(mean_g + np.sqrt(var_g) * x[:, None])
        parts = [
            log_expectation(
                lambda f, i, b=b_k: stats.laplace.logpdf(y[i, None], f, b[i, None]),
                m,
                v,
                y[:, None],
            )
            for b_k in b
        ]
        return special.logsumexp(np.stack(parts), 0, w[:, None])


def _log_interval(low, high):
    flip = low + high > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    log_low, log_high = special.log_ndtr(low), special.log_ndtr(high)
    return log_high + np.log(-np.expm1(log_low - log_high))


def _student(scale, df):
    return Case(
        lambda: lik.StudentT(scale, df),
        (-50.0, -1.0, 0.0, 0.37, 0.4, 3.1, 1000.0),
        lambda y, f: stats.t.logpdf((y - f) / scale, df) - np.log(scale),
        (lambda y: y,),
    )


_LINKS = {"logit": lambda f: -np.logaddexp(0, -f), "probit": special.log_ndtr}


def _bernoulli(link):
    return Case(
        lambda: lik.Bernoulli(link, 0.3),
        (0.0, 1.0),
        lambda y, f: _LINKS[link]((2 * y - 1) * f),
        (np.zeros_like,),
    )


def _binomial(link):
    def log_prob(y, f, total_count):
        log_ways = -special.betaln(y + 1, total_count - y + 1) - np.log(total_count + 1)
        return log_ways + y * _LINKS[link](f) + (total_count - y) * _LINKS[link](-f)

    return Case(
        lambda: lik.Binomial(link, 0.3),
        (0.0, 1.0, 3.0, 5.0, 0.0, 400.0, 1000.0),
        log_prob,
        (lambda y, total_count: np.zeros_like(y),),
        {"total_count": (1.0, 1.0, 5.0, 5.0, 30.0, 1000.0, 1000.0)},
    )


_COUNTS = (0.0, 1.0, 2.0, 7.0, 40.0, 1000.0)
_EXPOSURE = {"exposure": (0.01, 1.0, 3.0, 0.5, 200.0, 20.0)}


def _poisson(covariates):
    return Case(
        lambda: lik.Poisson(2.0),
        _COUNTS,
        lambda y, f, exposure=1.0: (
            y * (f + np.log(exposure)) - exposure * np.exp(f) - special.gammaln(y + 1)
        ),
        (lambda y, exposure=1.0: np.log((y + 0.5) / exposure),),
        covariates,
    )


def _negative_binomial(r, covariates):
    def log_prob(y, f, exposure=1.0):
        log_odds = f + np.log(exposure) - np.log(r)  # of mu / r
        log_ways = special.gammaln(y + r) - special.gammaln(r) - special.gammaln(y + 1)
        return log_ways - r * np.logaddexp(0, log_odds) - y * np.logaddexp(0, -log_odds)

    return Case(
        lambda: lik.NegativeBinomial(2.0, r),
        _COUNTS,
        log_prob,
        (
            lambda y, exposure=1.0: np.log((y + 0.5) / exposure),
            lambda y, exposure=1.0: np.log(r / exposure) + 0 * y,
        ),
        covariates,
    )


def _gamma(shape):
    return Case(
        lambda: lik.Gamma(2.0, shape),
        (1e-8, 0.05, 1.0, 2.5, 400.0),
        lambda y, f: (
            shape * (np.log(shape) - f) - special.gammaln(shape) + (shape - 1) * np.log(y)
            - shape * y * np.exp(-f)
        ),
        (np.log,),
    )  # fmt: skip


def _beta(phi):
    def log_prob(y, f):
        a, b = phi * special.expit(f), phi * special.expit(-f)
        return (a - 1) * np.log(y) + (b - 1) * np.log1p(-y) - special.betaln(a, b)

    end = np.log1p(phi)
    return Case(
        lambda: lik.Beta(0.3, phi),
        (1e-6, 0.02, 0.3, 0.5, 0.99, 1 - 1e-6),
        log_prob,
        (special.logit, lambda y: end + 0 * y, lambda y: -end + 0 * y),
    )


def _rounded(width, origin, scale, y):
    return Case(
        lambda: lik.Rounded(width, origin, scale),
        y,
        lambda y, f: _log_interval((y - f - width / 2) / scale, (y - f + width / 2) / scale),
        (lambda y: y, lambda y: y - width / 2, lambda y: y + width / 2),
    )


_CUTS = special.ndtri(np.array([0.1, 0.5, 0.8]))
_EDGES = np.array([-np.inf, *_CUTS, np.inf])


def _ordinal_log_prob(y, f):
    y = y.astype(int)
    first, last = special.log_ndtr(_CUTS[0] - f), special.log_ndtr(f - _CUTS[-1])
    low, high = _CUTS[np.clip(y - 1, 0, 1)], _CUTS[np.clip(y, 1, 2)]
    inner = _log_interval(low - f, high - f)
    return np.where(y == 0, first, np.where(y == 3, last, inner))


_GAUSSIAN = Case(
    lambda: lik.GaussianLikelihood(0.04),
    (-30.0, -1.0, 0.0, 0.4, 3.3, 1e4),
    lambda y, f: stats.norm.logpdf(y, f, 0.2),
    (lambda y: y,),
)
_HETEROSCEDASTIC = HeteroscedasticNormal(
    lambda: lik.HeteroscedasticGaussian(0.3),
    (-30.0, -1.0, 0.0, 0.4, 3.3, 1e3),
    lambda y, f, g: stats.norm.logpdf(y, f, np.exp(0.5 * g)),
)

CASES = {
    "gaussian": _GAUSSIAN,
    "heteroscedastic": _HETEROSCEDASTIC,
    "heteroscedastic, noise scale 0.3": HeteroscedasticNormal(
        lambda: lik.HeteroscedasticGaussian(0.3, noise_scale=0.3),
        _HETEROSCEDASTIC.y,
        _HETEROSCEDASTIC.log_prob,
    ),
    "student-t, df 4": _student(0.3, 4.0),
    "student-t, df 1.5, small scale": _student(0.01, 1.5),
    "student-t, df 50": _student(1.0, 50.0),
    "bernoulli, logit": _bernoulli("logit"),
    "bernoulli, probit": _bernoulli("probit"),
    "binomial, logit": _binomial("logit"),
    "binomial, probit": _binomial("probit"),
    "ordinal": Case(
        lambda: lik.Ordinal(4, torch.tensor([0.1, 0.4, 0.3, 0.2])),
        (0.0, 1.0, 2.0, 3.0),
        _ordinal_log_prob,
        tuple(lambda y, c=c: c + 0 * y for c in _CUTS),
    ),
    "poisson": _poisson({}),
    "poisson, exposure": _poisson(_EXPOSURE),
    "negative binomial, r 0.1": _negative_binomial(0.1, {}),
    "negative binomial, r 500": _negative_binomial(500.0, {}),
    "negative binomial, exposure": _negative_binomial(3.0, _EXPOSURE),
    "gamma, shape 0.5": _gamma(0.5),
    "gamma, shape 30": _gamma(30.0),
    "log-normal": Case(
        lambda: lik.LogNormal(2.0, 0.2),
        (1e-8, 0.05, 1.0, 2.5, 400.0),
        lambda y, f: stats.norm.logpdf(np.log(y), f, np.sqrt(0.2)) - np.log(y),
        (np.log,),
    ),
    "beta, concentration 0.5": _beta(0.5),
    "beta, concentration 10": _beta(10.0),
    "beta, concentration 300": _beta(300.0),
    "rounded, small scale": _rounded(1.0, 0.0, 0.05, (-30.0, -1.0, 0.0, 1.0, 10.0, 1000.0)),
    "rounded, width 0.3": _rounded(0.3, 0.1, 0.5, (-29.9, -0.2, 0.1, 0.4, 3.1)),
    "zero-inflated gaussian": Inflated(
        lambda: lik.ZeroInflated(lik.GaussianLikelihood(0.04), probability=0.3),
        (-3.0, 0.0, 0.4, 9.0),
        None,
        other=_GAUSSIAN,
    ),
    "zero-inflated heteroscedastic": Inflated(
        lambda: lik.ZeroInflated(lik.HeteroscedasticGaussian(0.3), 1.0, 0.3),
        (-3.0, 0.0, 1.0, 9.0),
        None,
        other=_HETEROSCEDASTIC,
        value=1.0,
    ),
    "zero-inflated gamma": Inflated(
        lambda: lik.ZeroInflated(lik.Gamma(2.0, 3.0), 0.0, 0.3),
        (0.0, 1e-3, 1.0, 40.0),
        None,
        other=_gamma(3.0),
    ),
    # Their log densities have a kink, which quadrature that does not know where it is resolves to
    # a node's distance.
    "own laplace": LaplaceCase(
        Laplace,
        (-20.0, 0.0, 0.4, 30.0),
        lambda y, f: stats.laplace.logpdf(y, f, 0.7),
        (lambda y: y,),
        loose=0.03,
    ),
    "own heteroscedastic laplace": HeteroscedasticLaplaceCase(
        HeteroscedasticLaplace, (-20.0, 0.0, 0.4, 30.0), None, loose=0.05
    ),
}
