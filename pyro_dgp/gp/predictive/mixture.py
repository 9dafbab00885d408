"""The predictive distribution of a latent-variable deep GP: an equal mixture over draws."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from pyro_dgp.gp.likelihoods.averaged import Averaged
from pyro_dgp.gp.likelihoods.collapsed import drawn
from pyro_dgp.gp.predictive.batches import converted, held, mapped
from pyro_dgp.gp.predictive.crps import (
    evenly,
    expected_abs,
    integrated_crps,
    mean_distance,
    summed_crps,
)
from pyro_dgp.gp.predictive.derived import Composite
from pyro_dgp.gp.predictive.parts import (
    AffineAverage,
    at_mass,
    averaged,
    has_mass,
    is_possible,
    one_output,
    rescaled,
)
from pyro_dgp.gp.predictive.quantiles import bracket, invert, invert_on_lattice, invert_smooth

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PredictiveMixture"]

D = TypeVar("D", bound=Distribution)

# Elements of a temporary array: 2^17 doubles are 1 MiB, which fit a core's cache.
_CHUNK = 2**17
# Rows whose quantiles are computed at once.
_ROWS = 512
# A sum over more lattice points than this is replaced by an integral.
_MOST_LATTICE_POINTS = 4096
# From this number of components on, few quadrature nodes per component are enough.
_MANY = 100
# Smallest size of a sample from which quantiles start.
_SAMPLE = 256
# The golden ratio, whose multiples modulo 1 are spread most evenly.
_GOLDEN = (math.sqrt(5) - 1) / 2
# The CRPS neglects the tails beyond quantiles of this probability.
_TAIL = 1e-5


class PredictiveMixture(Composite):
    r"""Equal mixture :math:`\frac1S \sum_s p_s(y)` of S components.

    ``log_prob`` is the joint density of a target; ``cdf``, ``icdf``, ``quantile`` and ``crps`` are
    those of each output's marginal. All process the components in chunks, so that no temporary
    array is much larger than the components' parameters.

    A method that a component does not have (such as the ``cdf`` of classes) raises
    NotImplementedError.

    :param components: Components, a distribution with batch shape [S, N], or [S, N, P] with
        ``event_dim=1``, elementwise over outputs; or several, which together have S components.
    :param int event_dim: 0 for batch shape [N]; 1 for batch shape [N] and event shape [P].
    :raises ValueError: If there is no dimension of components.
    """

    has_rsample = False

    def __init__(
        self,
        components: Distribution | Sequence[Distribution],
        event_dim: int = 0,
        validate_args: bool | None = None,
    ) -> None:
        given = [components] if isinstance(components, Distribution) else components
        parts: list[Distribution] = list(given)
        shape = parts[0].batch_shape
        if len(shape) < 1 + event_dim or any(p.batch_shape[1:] != shape[1:] for p in parts):
            raise ValueError(
                f"components have the batch shapes {[tuple(p.batch_shape) for p in parts]}, but "
                f"need [num_components, ...] with {event_dim} dimensions of outputs, the same but "
                "for num_components."
            )
        normals = [p for p in parts if isinstance(p, Normal)]
        if len(normals) == len(parts) > 1:
            loc = torch.cat([p.loc for p in normals])
            scale = torch.cat([p.scale for p in normals])
            parts = [dist.Normal(loc, scale, validate_args=False)]
        self.parts = parts
        split = len(shape) - event_dim
        super().__init__(shape[1:split], shape[split:], validate_args=validate_args)

    @property
    def components(self) -> Distribution:
        """The components as one distribution.

        :raises ValueError: If there are several distributions, as with priors on hyperparameters.
        """
        if len(self.parts) > 1:
            raise ValueError(f"The components are {len(self.parts)} distributions: see `parts`.")
        return self.parts[0]

    @property
    def num_components(self) -> int:
        """Number of components S."""
        return sum(part.batch_shape[0] for part in self.parts)

    @property
    def support(self) -> constraints.Constraint:
        support = self.parts[0].support or constraints.real
        # Without outputs, torch's independent constraint fails where there are no rows.
        return constraints.independent(support, self.event_dim) if self.event_dim else support

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "Self":
        old, new = len(self.batch_shape), torch.Size(batch_shape)

        def wide(t: Tensor) -> Tensor:
            t = t.reshape(len(t), *[1] * (len(new) - old), *t.shape[1:])
            return t.expand(len(t), *new, *t.shape[1 + len(new) :])

        return self._with([mapped(part, wide) for part in self.parts])

    def __getitem__(self, rows: slice | Sequence[int] | Tensor) -> "Self":
        """The distribution of some rows of the batch.

        :param rows: Index into the first batch dimension: a slice, a list or a tensor.
        """
        return self._with([mapped(part, lambda t: t[:, rows]) for part in self.parts])

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> "Self":
        """The distribution of loc + scale y.

        :param loc: Shift, a number, or one per output [P].
        :param scale: Positive factor, a number, or one per output [P].
        """
        return self._with([rescaled(part, loc, scale) for part in self.parts])

    def marginal(self, output: int) -> "PredictiveMixture":
        """The distribution of one of several outputs: batch shape [N], no event shape.

        :param int output: Index of the output, from 0 to P - 1.
        :raises ValueError: If targets have no dimension of outputs, or there is no such output.
        """
        if not self.event_dim:
            raise ValueError("A distribution of one output has no other marginal than itself.")
        if not 0 <= output < self.event_shape[-1]:
            raise ValueError(
                f"output must be from 0 to {self.event_shape[-1] - 1}, but it is {output}."
            )
        return PredictiveMixture([one_output(p, output) for p in self.parts], validate_args=False)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Self":
        """The mixture in another dtype and on another device."""
        return self._with([converted(part, dtype, torch.device(device)) for part in self.parts])

    def drawn(self, generator: torch.Generator | None = None) -> "Self":
        """The mixture with closed-form components in place of integrals, by draws, where possible.

        With many components it is as good an estimate, and its methods are much faster.

        :param torch.Generator generator: Source of the draws; None for torch's global generator.
        """
        return self._with([drawn(part, generator) for part in self.parts])

    @property
    def mean(self) -> Tensor:
        """Mean of the targets, [N] or [N, P]."""
        return self._total(lambda p: p.mean) / self.num_components

    @property
    def variance(self) -> Tensor:
        """Variance of the targets, [N] or [N, P], by the law of total variance."""
        mean = self.mean
        total = self._total(lambda p: p.variance + (p.mean - mean).square())
        return total / self.num_components

    @property
    def probs(self) -> Tensor:
        """Probabilities of the classes, [N, C], or of a 1, [N]."""
        given = [getattr(part, "probs", None) for part in self.parts]
        found = [p.sum(0) for p in given if p is not None]
        if len(found) < len(given):
            raise NotImplementedError("Only classes have probabilities.")
        return _sum(found) / self.num_components

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, ``sample_shape`` + [N] or [N, P]; a target's outputs share their component."""
        shape = torch.Size(sample_shape) + self.batch_shape
        index = torch.randint(self.num_components, shape)
        batch = torch.meshgrid(*map(torch.arange, self.batch_shape), indexing="ij")
        first, found = 0, torch.empty(())
        for part in self.parts:
            last = first + part.batch_shape[0]
            mine = (index >= first) & (index < last)
            places = (index - first).clamp(0, last - first - 1), *batch
            draws = mapped(part, lambda t, places=places: t[places]).sample()
            mine = mine.reshape(mine.shape + (1,) * self.event_dim).to(draws.device)
            found = torch.where(mine, draws, found) if first else draws
            first = last
        return found

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density (or log probability) of a target, -inf where none is possible.

        :param torch.Tensor value: Targets, [..., N] or [..., N, P].
        :returns: Log densities, [..., N].
        :raises ValueError: If a target is not possible and arguments are validated, which is
            torch's default, but not that of mixtures made of another one.
        """
        if self._validate_args:
            self._validate_sample(value)
        one_target = not self.event_dim and len(self.batch_shape) == 1
        # Where averages are not exact, they may have no derivatives by the value.
        if one_target and value.numel() and not value.requires_grad and self._averages:
            return self._log_prob_by_averages(value)
        return self._log_prob(value)

    def _log_prob_by_averages(self, value: Tensor) -> Tensor:
        """:meth:`log_prob`, by averages over components except where these are not exact."""
        y = value.double().expand(torch.broadcast_shapes(value.shape, self.batch_shape))
        shares, averages = zip(*self._averages, strict=True)
        parts, exact = zip(*(a.log_prob_where_exact(y) for a in averages), strict=True)
        weighted = [math.log(share) + log_p for share, log_p in zip(shares, parts, strict=True)]
        found = torch.stack(weighted).logsumexp(0)
        sure = torch.stack(exact).all(0) & is_possible(self.parts[0], y)
        others = (~sure).nonzero(as_tuple=True)
        for where in zip(*(i.split(_ROWS) for i in others), strict=True):
            found[where] = self[where[-1]]._log_prob(y[where]).double()
        return found.to(self._tensor(0.0).dtype)

    def _log_prob(self, value: Tensor) -> Tensor:
        """:meth:`log_prob`, component by component."""
        dim, y = -1 - len(self.batch_shape), self._beside_components(value)

        def summed(part: Distribution) -> Tensor:
            log_prob = torch.where(is_possible(part, y), part.log_prob(y), -torch.inf)
            return (log_prob.sum(-1) if self.event_dim else log_prob).logsumexp(dim)

        chunks = map(summed, self._chunks(self.parts, y.numel()))
        return functools.reduce(torch.logaddexp, chunks) - math.log(self.num_components)

    def cdf(self, value: Tensor) -> Tensor:
        """P(y <= value) for each output's marginal; the shape of ``value``."""
        value = self._tensor(value)
        normal = self._normal
        if normal is not None:
            return 0.5 + 0.5 * self._average([normal], value, _normal_erf)
        if self._averages:
            return _sum(share * average.cdf(value) for share, average in self._averages)
        return self._average(self.parts, value, lambda part, y: part.cdf(y))

    def icdf(self, value: Tensor) -> Tensor:
        """Inverse of :meth:`cdf`: the smallest y with P(target <= y) >= value.

        :param torch.Tensor value: Probabilities in (0, 1), broadcastable to [..., N(, P)].
        :returns: The broadcast shape.
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        p = self._tensor(value)
        if not bool(((p > 0) & (p < 1)).all()):
            raise ValueError("Probabilities must lie strictly between 0 and 1.")
        p = p.expand(torch.broadcast_shapes(p.shape, self.batch_shape + self.event_shape))
        if not p.numel():
            return p
        with torch.no_grad():
            x = self._inverted(p)
        given = [p, *(t for part in self.parts for t in held(part))]
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in given)):
            return x
        # The implicit function's derivatives, F'(x) dx = dp - dF(x); none where F has a step.
        off = p - self.cdf(x)
        slope = self._average(self.parts, x, lambda part, y: part.log_prob(y).exp()).detach()
        slope = torch.where(self.has_mass(x), torch.inf, slope)
        return x + (off - off.detach()) / slope.clamp_min(torch.finfo(x.dtype).tiny)

    def _inverted(self, p: Tensor) -> Tensor:
        """:meth:`icdf`, without derivatives."""
        normal = self._normal
        if normal is not None:
            if len(self.batch_shape) != 1 or self.batch_shape[0] <= _ROWS:
                return self._normal_icdf(normal, p)
            dim = -1 - self.event_dim
            parts = (slice(i, i + _ROWS) for i in range(0, self.batch_shape[0], _ROWS))
            found = zip(parts, p.split(_ROWS, dim), strict=True)
            return torch.cat([self[rows]._inverted(p_rows) for rows, p_rows in found], dim)
        if not self._is_coarse:
            return at_mass(self.parts[0], self._inverse(self.cdf, p, *bracket(self.cdf, p)))
        # First with few nodes per component, to a relative error of 1e-3, then exactly from there.
        x = self._inverse(self._score_cdf, p, *bracket(self._score_cdf, p), 1e-3)
        width = 1e-3 * x.abs() + (1e-6 if self.lattice is None else self.lattice[1])
        x = self._inverse(self.cdf, p, *bracket(self.cdf, p, x, width))
        return at_mass(self.parts[0], x)

    def has_mass(self, value: Tensor) -> Tensor:
        """Whether ``log_prob`` at a value is the logarithm of a probability, not of a density."""
        return has_mass(self.parts[0], value) | (self.lattice is not None)

    def quantile(self, q: Tensor | float) -> Tensor:
        """Quantiles of each output's marginal.

        :param q: Probability, or a tensor of probabilities of any shape.
        :returns: ``q.shape`` + [N] or [N, P].
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        q = self._tensor(q)
        return self.icdf(q.reshape(q.shape + (1,) * len(self.batch_shape + self.event_shape)))

    def crps(self, value: Tensor) -> Tensor:
        r"""Continuous ranked probability score of each output's marginal; smaller is better.

        For normal components in closed form, by all pairs of them or by enough (see
        :mod:`~pyro_dgp.gp.predictive.crps`); for other components by an integral over the
        distribution function; for targets on a lattice, such as counts, by a sum.

        :param torch.Tensor value: Targets, [..., N] or [..., N, P].
        :returns: Scores, of the shape and in the units of ``value``.
        """
        if self._validate_args:
            self._validate_sample(value)
        value = self._tensor(value)
        if not value.numel():
            return value
        p = self._normal
        if p is not None:
            to_value = self._average([p], value, lambda p, y: expected_abs(p.loc - y, p.scale))
            return to_value - 0.5 * mean_distance(p.loc, p.scale, _CHUNK)
        shape = self.batch_shape + self.event_shape
        ends = value.new_tensor([_TAIL, 1 - _TAIL]).reshape(2, *[1] * len(shape))
        low, high = bracket(self._score_cdf, ends.expand(2, *shape))
        low, high = low[0], high[1]
        if self.lattice is not None:
            origin, step = self.lattice
            first = math.floor((min(low.min(), value.min()) - origin) / step)
            last = math.ceil((max(high.max(), value.max()) - origin) / step)
            if last - first <= _MOST_LATTICE_POINTS:
                return summed_crps(self._score_cdf, self.lattice, (first, last), value, shape)
        return integrated_crps(self._score_cdf, evenly(low, high), value)

    @property
    def _normal(self) -> Normal | None:
        """The components, if they are normal."""
        part = self.parts[0]
        return part if isinstance(part, Normal) and len(self.parts) == 1 else None

    @property
    def lattice(self) -> tuple[float, float] | None:
        """Origin and step, if targets lie on origin + step k and have probabilities; else None."""
        part = self.parts[0]
        integers = part.support is not None and part.support.is_discrete
        return getattr(part, "lattice", (0.0, 1.0) if integers else None)

    def _tensor(self, value: Tensor | float) -> Tensor:
        like = next(held(self.parts[0]))
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)

    def _with(self, parts: list[Distribution]) -> "Self":
        return type(self)(parts, self.event_dim, validate_args=False)

    def _beside_components(self, value: Tensor) -> Tensor:
        """The value with a dimension of 1 where components have theirs."""
        shape = self.batch_shape + self.event_shape
        value = value.reshape((1,) * (len(shape) - value.dim()) + value.shape)
        return value.unsqueeze(-1 - len(shape))

    def _chunks(self, parts: Sequence[D], size: int = 0) -> Iterator[D]:
        """A few components at a time, so that an array of them by ``size`` elements is small."""
        size = max(size, (self.batch_shape + self.event_shape).numel())
        for part in parts:
            nodes = getattr(part, "num_nodes", 1)
            step, S = max(1, _CHUNK // max(1, size * nodes)), part.batch_shape[0]
            for start in range(0, S, step):
                some = slice(start, start + step)
                yield part if step >= S else mapped(part, lambda t, some=some: t[some])

    def _total(self, fn: Callable[[Distribution], Tensor]) -> Tensor:
        return _sum(fn(part).sum(0) for part in self._chunks(self.parts))

    def _average(
        self, parts: Sequence[D], value: Tensor, fn: Callable[[D, Tensor], Tensor]
    ) -> Tensor:
        shape = self.batch_shape + self.event_shape
        size = value.numel() * getattr(parts[0], "num_nodes", 1)
        if value.dim() > len(shape) and len(value) > 1 and size > _CHUNK:
            some = max(1, len(value) * _CHUNK // size)
            return torch.cat([self._average(parts, v, fn) for v in value.split(some)])
        y = self._beside_components(value)
        chunks = self._chunks(parts, y.numel())
        return _sum(fn(part, y).sum(-1 - len(shape)) for part in chunks) / self.num_components

    @property
    def _is_coarse(self) -> bool:
        """Whether there are so many components that a few nodes in each are enough."""
        some = self.num_components >= _MANY and not self._averages
        return some and hasattr(self.parts[0], "coarse_cdf")

    @functools.cached_property
    def _averages(self) -> list[tuple[float, Averaged | AffineAverage]]:
        """Averages over the components of each part, and their shares; none if a part has none."""
        if any(t.requires_grad for part in self.parts for t in held(part)):
            return []  # an average's nodes are constants
        averages = [averaged(part) for part in self.parts]
        shares = [part.batch_shape[0] / self.num_components for part in self.parts]
        found = [(s, a) for s, a in zip(shares, averages, strict=True) if a is not None]
        return found if len(found) == len(self.parts) else []

    def _score_cdf(self, value: Tensor) -> Tensor:
        """:meth:`cdf`, coarser in each of many components, for scores, which need many points."""
        if not self._is_coarse:
            return self.cdf(value)
        return self._average(self.parts, value, lambda p, y: getattr(p, "coarse_cdf", p.cdf)(y))

    def _inverse(
        self, cdf: Callable, p: Tensor, low: Tensor, high: Tensor, tolerance: float = 0.0
    ) -> Tensor:
        if self.lattice is not None:
            return invert_on_lattice(cdf, self.lattice, p, low, high)
        return invert(cdf, p, low, high, tolerance)

    def _normal_icdf(self, normal: Normal, p: Tensor) -> Tensor:
        """By Newton's method from quantiles of a sample."""

        def density(value: Tensor) -> Tensor:
            return self._average([normal], value, _normal_density) / math.sqrt(2 * math.pi)

        low, high = self._ends(normal, p)
        sample, flat = sorted_sample(normal), p.reshape(-1, *self.batch_shape, *self.event_shape)
        i = (flat * len(sample)).long().clamp_max(len(sample) - 1)
        start = sample.gather(0, i).reshape(p.shape).clamp(low, high)
        return invert_smooth(self.cdf, density, start, p, low, high, normal.scale.amin(0))

    def _ends(self, normal: Normal, p: Tensor) -> tuple[Tensor, Tensor]:
        """Between the smallest and the largest quantile of normal components."""
        z, dim = torch.special.ndtri(p), -1 - len(self.batch_shape + self.event_shape)
        z = self._beside_components(z)
        low, high = torch.full_like(p, torch.inf), torch.full_like(p, -torch.inf)
        for part in self._chunks([normal], z.numel()):
            quantiles = part.loc + z * part.scale
            low = torch.minimum(low, quantiles.amin(dim))
            high = torch.maximum(high, quantiles.amax(dim))
        margin = torch.finfo(p.dtype).eps * (1 + torch.maximum(low.abs(), high.abs()))
        return low - margin, high + margin


def sorted_sample(normal: Normal) -> Tensor:
    """A sorted, evenly spread sample of an equal mixture of normals.

    :param normal: Components, batch shape [S, N] or [S, N, P].
    :returns: At least ``_SAMPLE`` numbers per row, [..., N] or [..., N, P], the same number from
        each component.
    """
    each = math.ceil(_SAMPLE / len(normal.loc))
    loc, scale = (t.repeat(each, *[1] * (t.dim() - 1)) for t in (normal.loc, normal.scale))
    # A low-discrepancy sequence: neighbouring components, which may be alike, get distant values.
    u = (torch.arange(len(loc), dtype=torch.float64, device=loc.device) + 0.5) * _GOLDEN % 1
    z = torch.special.ndtri(u).to(loc).reshape(-1, *[1] * (loc.dim() - 1))
    # Sorting is much faster along the last dimension.
    return (loc + z * scale).movedim(0, -1).contiguous().sort(-1).values.movedim(-1, 0)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)


def _normal_erf(component: Normal, y: Tensor) -> Tensor:
    """2 F - 1, in few passes over memory."""
    return (y - component.loc).mul_((math.sqrt(2) * component.scale).reciprocal()).erf_()


def _normal_density(component: Normal, y: Tensor) -> Tensor:
    """The density times the root of 2 pi; powers of 2 are faster than exponentials."""
    inverse = component.scale.reciprocal()
    z = (y - component.loc).mul_(math.sqrt(0.5 / math.log(2)) * inverse)
    return z.square_().neg_().exp2_().mul_(inverse)
