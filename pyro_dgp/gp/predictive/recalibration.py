"""Predictive distributions that are recalibrated by one parameter."""

import functools
import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Normal, constraints

from pyro_dgp.gp.likelihoods.special import log_ndtr
from pyro_dgp.gp.predictive.crps import evenly, integrated_crps, interval, rising, summed_crps
from pyro_dgp.gp.predictive.derived import Derived
from pyro_dgp.gp.predictive.mixture import _MOST_LATTICE_POINTS, _TAIL, PredictiveMixture
from pyro_dgp.gp.predictive.parts import at_mass
from pyro_dgp.gp.predictive.quantiles import bracket, invert, invert_on_lattice
from pyro_dgp.gp.predictive.transformed import transformed_moments

__all__ = ["Recalibrated", "best_exponent", "moments_about"]

# Rows that are processed at once, with hundreds of points per row.
_ROWS = 512
# Elements of a temporary array of scores.
_CHUNK = 2**20
# Moments and samples neglect the tails beyond quantiles of this probability.
_MOMENT_TAIL = 1e-9
# Smallest distance of F from 0 and 1 in the search for tails.
_SAFE_TAIL = 1e-12
# Share of a tail below which a probability is proportional to the slope of G, to that accuracy.
_SMALL = 1e-9
# Number of refinements of the points for moments and samples.
_ROUNDS = 3
# A quadrature rule with a larger error for known moments is not used for others.
_OFF_MOMENTS = 1e-5
# Tolerance of the probabilities of samples.
_SAMPLE_TOLERANCE = 1e-6
# Largest distance of a value from a lattice point, in steps.
_OFF = 0.1


class Recalibrated(Derived[PredictiveMixture]):
    r"""A predictive distribution F with another distribution function, G(F(y)).

    .. math:: G(u) = \frac{u^k}{u^k + (1 - u)^k}, \qquad \mathrm{logit}\,G(u) = k\,\mathrm{logit}\,u

    k > 1 sharpens a forecast that is too wide, as a mixture of calibrated forecasts is; k < 1
    widens one. The median stays. The computations are in double precision.

    Source: Ranjan and Gneiting (2010), "Combining probability forecasts", for the recalibrated
    pool, there by a beta distribution function; Platt (1999) for this one, of which density and
    inverse are closed, without his intercept.

    :param PredictiveMixture base: Predictive distribution F, with one target per row: batch shape
        [N], ``event_dim=0``.
    :param float exponent: Exponent k.
    :raises ValueError: If targets have a dimension of outputs, or k is not positive and finite.
    """

    def __init__(
        self, base: PredictiveMixture, exponent: float, validate_args: bool | None = None
    ) -> None:
        if base.event_dim:
            raise ValueError(
                f"base needs one target per row, but its event shape is {tuple(base.event_shape)}."
            )
        if not 0 < exponent < math.inf:
            raise ValueError(f"exponent must be positive and finite, but it is {exponent}.")
        self.exponent = float(exponent)
        super().__init__(base, validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return self.base.support

    @property
    def lattice(self) -> tuple[float, float] | None:
        """Origin and step, if targets lie on origin + step k and have probabilities; else None."""
        return self.base.lattice

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> "Recalibrated":
        """The distribution of loc + scale y.

        :param loc: Shift, a number.
        :param scale: Factor, a positive number.
        """
        return self._with(self.base.affine(loc, scale))

    @property
    def mean(self) -> Tensor:
        """Mean of the targets, [N]; see :attr:`variance`."""
        return self._moments[0]

    @property
    def variance(self) -> Tensor:
        """Variance of the targets, [N].

        Like the mean, it is a sum over the lattice, or an integral by Gauss's or Simpson's rule.
        For smooth F and k >= 0.5 the errors of the mean and of the standard deviation are below
        1e-3 standard deviations, and mostly far below. The tails beyond 1e-9 are neglected.
        """
        return self._moments[1]

    def cdf(self, value: Tensor) -> Tensor:
        """P(target <= value), G(F(value)); the shape of ``value``.

        :param torch.Tensor value: Values of the target, [..., N].
        """
        base = self._exact
        return self._like_base(_recalibrated(base.cdf(value), self.exponent))

    def icdf(self, value: Tensor) -> Tensor:
        """Inverse of :meth:`cdf`: the smallest y with P(target <= y) >= value.

        :param torch.Tensor value: Probabilities in (0, 1), broadcastable to [..., N].
        :returns: The broadcast shape.
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        base = self._exact
        p = base._tensor(value)
        if not bool(((p > 0) & (p < 1)).all()):
            raise ValueError("Probabilities must lie strictly between 0 and 1.")
        u = _recalibrated(p, 1 / self.exponent)
        # Rounding may have made it 0 or 1.
        u = u.clamp(torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2)
        return self._like_base(base.icdf(u))

    def quantile(self, q: Tensor | float) -> Tensor:
        """Quantiles.

        :param q: Probability, or a tensor of probabilities of any shape.
        :returns: ``q.shape`` + [N].
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        q = self._exact._tensor(q)
        return self.icdf(q.reshape(q.shape + (1,) * len(self.batch_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log density, or log probability on a lattice and of a value that has one.

        .. math:: \log p(y) + \log k + (k - 1) (\log u + \log(1 - u))
            - 2 \log\!\big(u^k + (1 - u)^k\big), \qquad u = F(y)

        For normal components, u and 1 - u are exact even far in the tails; for others they are at
        least half of a double's epsilon. If there is a lattice, a value off it has the log
        probability of the base.

        :param torch.Tensor value: Targets, [..., N].
        :returns: Log densities or log probabilities, [..., N].
        """
        if self._validate_args:
            self._validate_sample(value)
        base = self._exact
        y = base._tensor(value)
        if self.lattice is not None:
            return self._like_base(self._log_probability(base, y, *self.lattice))
        log_p = base.log_prob(y)
        found, has_mass = log_p + _log_slope(*_log_tails(base, y), self.exponent), base.has_mass(y)
        found = torch.where(log_p == -torch.inf, log_p, found)
        if bool(has_mass.any()):
            up_to = base.cdf(y)
            found = torch.where(has_mass, self._log_rise(log_p, up_to - log_p.exp(), up_to), found)
        return self._like_base(found)

    def has_mass(self, value: Tensor) -> Tensor:
        """Whether ``log_prob`` at a value is the logarithm of a probability, not of a density."""
        return self.base.has_mass(value)

    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score; smaller is better.

        It is computed by an integral over the distribution function, or by a sum on a lattice.

        :param torch.Tensor value: Targets, [..., N].
        :returns: Scores, [..., N], in units of ``value``.
        """
        if self._validate_args:
            self._validate_sample(value)
        exact = self._with(self._exact)
        y = exact.base._tensor(value)
        y = y.expand(torch.broadcast_shapes(y.shape, self.batch_shape))
        return self._like_base(exact._by_rows(_crps, y))

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, ``sample_shape`` + [N]: quantiles of uniform numbers, exact to 1e-6."""
        shape = torch.Size(sample_shape) + self.batch_shape
        p = torch.rand(shape, dtype=torch.float64).to(self.base._tensor(0.0).device)
        found = self._with(self._exact)._by_rows(_quantiles, p)
        return self._like_base(at_mass(self._exact.parts[0], found))

    @property
    def _exact(self) -> PredictiveMixture:
        """The base in double precision, because G magnifies errors of F near 1."""
        like = self.base._tensor(0.0)
        double = like.dtype == torch.float64
        return self.base if double else self.base.to(torch.float64, like.device)

    def _like_base(self, value: Tensor) -> Tensor:
        return value.to(self.base._tensor(0.0).dtype)

    def _with(self, base: PredictiveMixture) -> "Recalibrated":
        return Recalibrated(base, self.exponent, validate_args=False)

    def _score_cdf(self, value: Tensor) -> Tensor:
        """:meth:`cdf`, by the base's coarser one if it has that."""
        return _recalibrated(self.base._score_cdf(value), self.exponent)

    def _log_probability(
        self, base: PredictiveMixture, y: Tensor, origin: float, step: float
    ) -> Tensor:
        """log(G(F(y)) - G(F(y - step))) for y on the lattice."""
        log_p = base.log_prob(y)
        # Half a step from the lattice points, where rounding does not matter.
        found = self._log_rise(log_p, base.cdf(y - 0.5 * step), base.cdf(y + 0.5 * step))
        k = (y - origin) / step
        return torch.where((k - k.round()).abs() > _OFF, log_p, found)

    def _log_rise(self, log_p: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """log(G(high) - G(low)), where the rise of F from low to high is the probability p."""
        # In the upper half with 1 - F in place of F, for which G is the same function: the tail
        # beyond y, without and with the probability of y.
        beyond = torch.where(high > 0.5, 1 - high, low).clamp_min(0)
        p = _recalibrated(beyond + log_p.exp(), self.exponent)
        p = p - _recalibrated(beyond, self.exponent)
        # Where this underflows, the first point has nearly all of the tail, and probability p^k.
        tiny = torch.finfo(log_p.dtype).tiny
        found = torch.where(p > tiny, p.clamp_min(tiny).log(), self.exponent * log_p)
        # Between modes, where it is small beside the tail, the difference would cancel.
        small = (log_p.exp() < _SMALL * beyond) & (beyond > _SAFE_TAIL)
        tail = beyond.clamp_min(tiny)
        by_slope = log_p + _log_slope(tail.log(), (-tail).log1p(), self.exponent)
        return torch.where(small, by_slope, found)

    @cached_property
    def _moments(self) -> Tensor:
        """Mean and variance, [2, N]."""
        return self._like_base(self._with(self._exact)._by_rows(lambda d, _: _moments(d)))

    def _by_rows(self, fn: Callable[..., Tensor], value: Tensor | None = None) -> Tensor:
        """``fn`` of this distribution and of a value [..., N], a few rows at a time."""
        if value is not None and not value.numel():
            return value
        if len(self.batch_shape) != 1 or self.batch_shape[0] <= _ROWS:
            return fn(self, value)
        found = []
        for first in range(0, self.batch_shape[0], _ROWS):
            rows = slice(first, first + _ROWS)
            found.append(fn(self[rows], None if value is None else value[..., rows]))
        return torch.cat(found, -1)


def best_exponent(
    cdf: Tensor, observed: Tensor, width: Tensor, candidates: Sequence[float] | None = None
) -> float:
    r"""The exponent with the smallest mean CRPS of held-out rows.

    The CRPS is :math:`\sum_g w_g (G(F_{ng}) - 1\{y_n \le x_g\})^2`. The exponent is 1 unless
    another exponent's is smaller by more than the standard error of the mean difference over rows.

    :param torch.Tensor cdf: Values of F of n rows at points :math:`x_g`, [n, G].
    :param torch.Tensor observed: Indicators of :math:`y_n \le x_g`, [n, G].
    :param torch.Tensor width: Quadrature weights w, [G], or [n, G] if they differ between rows.
    :param candidates: Exponents to compare; None for 25 from 0.5 to 2.5, evenly spaced in their
        logarithms.
    :returns: The exponent.
    :raises ValueError: If shapes do not agree, there are no rows, or F is not between 0 and 1.
    """
    if (
        cdf.dim() != 2
        or cdf.shape != observed.shape
        or width.shape not in (cdf.shape[1:], cdf.shape)
    ):
        raise ValueError(
            "cdf, observed and width need the shapes [n, G], [n, G] and [G] or [n, G], but have "
            f"{tuple(cdf.shape)}, {tuple(observed.shape)} and {tuple(width.shape)}."
        )
    if not len(cdf) or not bool(((cdf > -1e-6) & (cdf < 1 + 1e-6)).all()):
        raise ValueError("cdf needs at least one row, and numbers from 0 to 1.")
    if candidates is None:
        candidates = torch.linspace(math.log(0.5), math.log(2.5), 25).exp().tolist()
    exponents = [1.0, *candidates]
    found = []
    step = max(1, _CHUNK // max(1, cdf.shape[1]))
    parts = (t.split(step) for t in (cdf, observed, width.expand(cdf.shape)))
    for F, H, w in zip(*parts, strict=True):
        F, H, w = F.double(), H.double(), w.double()
        scores = ((w * (_recalibrated(F, k) - H).square()).sum(1) for k in exponents)
        found.append(torch.stack(list(scores)))
    scores = torch.cat(found, 1)
    best = int(scores.mean(1).argmin())
    gain = scores[0] - scores[best]
    # A single row has no standard error: NaN, so that the exponent stays 1.
    error = gain.std() / math.sqrt(len(gain)) if len(gain) > 1 else math.nan
    return float(exponents[best]) if bool(gain.mean() > error) else 1.0


def _recalibrated(u: Tensor, exponent: float) -> Tensor:
    """G(u), by the odds of the smaller of u and 1 - u, which cannot overflow."""
    # By rounding, a sum that should be 1 may be slightly more.
    u = u.clamp(0, 1)
    smaller = torch.minimum(u, 1 - u)
    odds = (smaller / (1 - smaller)).pow(exponent)
    return torch.where(u < 0.5, odds, 1.0) / (1 + odds)


def _log_slope(below: Tensor, above: Tensor, exponent: float) -> Tensor:
    """log G'(u), of log u and log(1 - u)."""
    log_slope = math.log(exponent) + (exponent - 1) * (below + above)
    return log_slope - 2 * torch.logaddexp(exponent * below, exponent * above)


def _log_tails(base: PredictiveMixture, y: Tensor) -> tuple[Tensor, Tensor]:
    """log F(y) and log(1 - F(y)), finite."""
    normal = base._normal
    if normal is None:
        # In both tails, most distribution functions have the rounding error of a number near 1.
        F, least = base.cdf(y), 0.5 * torch.finfo(y.dtype).eps
        return F.clamp_min(least).log(), (1 - F).clamp_min(least).log()
    value, dim = base._beside_components(y), -1 - len(base.batch_shape)

    def summed(p: Normal) -> Tensor:
        z = (value - p.loc) / p.scale
        return torch.stack([log_ndtr(signed).logsumexp(dim) for signed in (z, -z)])

    chunks = map(summed, base._chunks([normal], value.numel()))
    below, above = functools.reduce(torch.logaddexp, chunks) - math.log(base.num_components)
    return below, above


def _ends(d: Recalibrated, tail: float) -> tuple[Tensor, Tensor]:
    """Lower and upper ends with a probability ``tail`` beyond each, [N] and [N]."""
    u = d.base._tensor(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    u = _recalibrated(u, 1 / d.exponent).clamp(_SAFE_TAIL, 1 - _SAFE_TAIL)
    p = u.reshape(2, *[1] * len(d.batch_shape)).expand(2, *d.batch_shape)
    normal = d.base._normal
    low, high = bracket(d.base._score_cdf, p) if normal is None else d.base._ends(normal, p)
    return low[0], high[1]


def _lattice_ends(
    lattice: tuple[float, float], low: Tensor, high: Tensor
) -> tuple[int, int] | None:
    """The first and the last k, or None if they are too far apart, or there are no rows."""
    if not low.numel():
        return None
    origin, step = lattice
    first = math.floor((low.min() - origin) / step)
    last = math.ceil((high.max() - origin) / step)
    return (first, last) if last - first <= _MOST_LATTICE_POINTS else None


def _crps(d: Recalibrated, y: Tensor) -> Tensor:
    low, high = _ends(d, _TAIL)
    if d.lattice is not None:
        least, most = torch.minimum(low.min(), y.min()), torch.maximum(high.max(), y.max())
        ends = _lattice_ends(d.lattice, least, most)
        if ends is not None:
            return summed_crps(d._score_cdf, d.lattice, ends, y, d.batch_shape)
    return integrated_crps(d._score_cdf, evenly(low, high), y)


def _points(d: Recalibrated) -> tuple[Tensor, Tensor]:
    """Points and the distribution function there, [G, N] and [G, N].

    Their density is that of the cube root of the probability density, which is best for squared
    errors. Source: Panter and Dite (1951).
    """
    x = evenly(*_ends(d, _MOMENT_TAIL))
    G = d._score_cdf(x)
    for _ in range(_ROUNDS):
        rise = G.diff(dim=0).clamp_min(0).pow(1 / 3) * x.diff(dim=0).pow(2 / 3)
        new = rising(x, torch.cat([torch.zeros_like(rise[:1]), rise.cumsum(0)]))
        x, order = torch.cat([x, new]).sort(0)
        G = torch.cat([G, d._score_cdf(new)]).gather(0, order)
    return x, G.cummax(0).values


def _moments(d: Recalibrated) -> Tensor:
    """Mean and variance, [2, N]."""
    if d.lattice is not None:
        ends = _lattice_ends(d.lattice, *_ends(d, _MOMENT_TAIL))
        if ends is not None:
            return _moments_on_lattice(d, d.lattice, ends)
    normal = d.base._normal
    if normal is None:
        return _moments_by_rounds(d)
    # Both F and G(F) are negligible outside.
    low, high = _ends(Recalibrated(d.base, min(d.exponent, 1.0), False), _MOMENT_TAIL)
    found, off = transformed_moments(normal, lambda F: _recalibrated(F, d.exponent), low, high)
    rough = ~(off < _OFF_MOMENTS)
    if bool(rough.any()):
        found[:, rough] = _moments_by_rounds(d[rough])
    return found


def _moments_on_lattice(
    d: Recalibrated, lattice: tuple[float, float], ends: tuple[int, int]
) -> Tensor:
    """Sums over the points between two ends, [2, N]."""
    (origin, step), (first, last) = lattice, ends
    k = torch.arange(first, last + 1, device=d.base._tensor(0.0).device)
    x = origin + step * k.double().reshape(-1, *[1] * len(d.batch_shape))
    G = d._score_cdf((x + 0.5 * step).expand(-1, *d.batch_shape))
    G[-1] = 1
    p = G.diff(dim=0, prepend=torch.zeros_like(G[:1]))
    mean = (p * x).sum(0)
    return torch.stack([mean, (p * (x - mean).square()).sum(0)])


def _moments_by_rounds(d: Recalibrated) -> Tensor:
    """Mean and variance, [2, N], by Simpson's rule between refined points."""
    c, first, second = moments_about(d, lambda x: (x, 1.0))
    return torch.stack([c + first, second - first.square()])


def moments_about(
    d: Recalibrated, h: Callable[[Tensor], tuple[Tensor, Tensor | float]]
) -> tuple[Tensor, Tensor, Tensor]:
    r"""First and second moments of a function h of y - c, about a point c near the median.

    .. math:: E[h(y - c)] = \int h'(x - c) (1\{x \ge c\} - G(x)) dx, \qquad
        E[h(y - c)^2] = \int 2 h h'(x - c) (1\{x \ge c\} - G(x)) dx, \qquad h(0) = 0,

    where integrals of G below and of 1 - G above do not cancel.

    :param Recalibrated d: Distribution with batch shape [N].
    :param h: Function that returns the values and the derivatives of h.
    :returns: c and the two moments, [N] each.
    """
    x, G = _points(d)
    i = (G < 0.5).sum(0, keepdim=True).clamp_max(len(x) - 1)
    above = torch.arange(len(x) - 1, device=x.device).reshape(-1, *[1] * (x.dim() - 1)) >= i
    c, middle, width = x.gather(0, i), 0.5 * (x[1:] + x[:-1]), x.diff(dim=0)
    first = second = torch.zeros_like(c[0])
    for at, G_at, weight in (
        (x[:-1], G[:-1], 1),
        (middle, d._score_cdf(middle), 4),
        (x[1:], G[1:], 1),
    ):
        value, slope = h(at - c)
        part = weight / 6 * width * slope * (above.to(G) - G_at)
        first, second = first + part.sum(0), second + (2 * value * part).sum(0)
    return c[0], first, second


def _quantiles(d: Recalibrated, p: Tensor) -> Tensor:
    """Many quantiles of each row, [..., N], starting from a table of G."""
    x, G = _points(d)
    p = torch.minimum(torch.maximum(p, G[0]), G[-1])
    _, low, high, _, _ = interval(G, x, G, p.reshape(-1, *d.batch_shape))
    low, high = low.reshape(p.shape), high.reshape(p.shape)
    if d.lattice is not None:
        return invert_on_lattice(d._score_cdf, d.lattice, p, low, high)
    return invert(d._score_cdf, p, low, high, _SAMPLE_TOLERANCE)
