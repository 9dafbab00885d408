"""Distributions that are parts of a mixture: on another scale, of one output, averaged."""

from collections.abc import Callable, Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from pyro_dgp.gp.likelihoods.averaged import Averaged
from pyro_dgp.gp.likelihoods.collapsed import Marginal
from pyro_dgp.gp.predictive.batches import mapped
from pyro_dgp.gp.predictive.derived import Composite

__all__ = [
    "Affine",
    "AffineAverage",
    "at_mass",
    "averaged",
    "has_mass",
    "is_possible",
    "one_output",
    "rescaled",
]

# Largest distance of a number from an integer that it is taken for, after a change of scale.
_OFF = 0.01


class Affine(Composite):
    """loc + scale y, elementwise."""

    def __init__(
        self,
        base: Distribution,
        loc: Tensor | float,
        scale: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.base, self.loc, self.scale = base, loc, scale
        super().__init__(base.batch_shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        given = self.base.support
        return constraints.real if given is constraints.real else _Moved(given, self._back)

    @property
    def num_nodes(self) -> int:
        return getattr(self.base, "num_nodes", 1)

    @property
    def lattice(self) -> tuple[float, float] | None:
        lattice = getattr(self.base, "lattice", None)
        if lattice is None or torch.as_tensor(self.loc + self.scale).numel() > 1:
            return None  # there is none, or it differs between outputs
        found = self.loc + self.scale * lattice[0], self.scale * lattice[1]
        origin, step = (self._written(torch.as_tensor(v)).item() for v in found)
        return origin, step

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * self.base.mean

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * self.base.variance

    def averaged(self) -> "AffineAverage | None":
        """The distribution averaged over the first dimension; None for none."""
        base = averaged(self.base)
        return None if base is None else AffineAverage(base, self.loc, self.scale)

    def coarse_cdf(self, value: Tensor) -> Tensor:
        coarse = getattr(self.base, "coarse_cdf", self.base.cdf)
        return coarse(self._back(value))

    def _back(self, value: Tensor) -> Tensor:
        """(value - loc) / scale, on the lattice where only rounding is between."""
        y, lattice = (value - self.loc) / self.scale, getattr(self.base, "lattice", None)
        if lattice is None:
            return y
        origin, step = lattice
        nearest = origin + step * ((y - origin) / step).round()
        return torch.where((y - nearest).abs() < _OFF * step, nearest, y)

    def cdf(self, value: Tensor) -> Tensor:
        return self.base.cdf(self._back(value))

    def log_prob(self, value: Tensor) -> Tensor:
        return self._per_unit(self.base.log_prob(self._back(value)), value)

    def _per_unit(self, log_prob: Tensor, value: Tensor) -> Tensor:
        """Densities are per unit of y; probabilities are not."""
        per_unit = log_prob - torch.as_tensor(self.scale).log()
        return torch.where(self.has_mass(value), log_prob, per_unit)

    def has_mass(self, value: Tensor) -> Tensor:
        """Whether ``log_prob`` at a value is the logarithm of a probability, not of a density."""
        return has_mass(self.base, self._back(value))

    def at_mass(self, value: Tensor) -> Tensor:
        """The value, or that with a probability which it is next to."""
        moved = self.loc + self.scale * at_mass(self.base, self._back(value))
        return torch.where(self.has_mass(value), self._written(moved), value)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.at_mass(self.loc + self.scale * self.base.sample(torch.Size(sample_shape)))

    def _written(self, value: Tensor) -> Tensor:
        """A decimal number, as targets are written, without the rounding of standardisation."""
        loc, scale = (torch.as_tensor(v, dtype=torch.float64) for v in (self.loc, self.scale))
        largest = torch.maximum(value.double().abs(), loc.abs().maximum(scale))
        power = 10.0 ** (11 - largest.log10().floor()).clamp_min(0)
        return ((value.double() * power).round() / power).to(value)


class AffineAverage(Affine):
    """loc + scale y, for an average."""

    def __init__(
        self, base: "Averaged | AffineAverage", loc: Tensor | float, scale: Tensor | float
    ) -> None:
        super().__init__(base, loc, scale, validate_args=False)
        self.average = base

    def log_prob_where_exact(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`~pyro_dgp.gp.likelihoods.averaged.Averaged.log_prob_where_exact`."""
        log_prob, exact = self.average.log_prob_where_exact(self._back(value))
        return self._per_unit(log_prob, value), exact


class _Moved(constraints.Constraint):
    """A constraint of values moved back."""

    def __init__(
        self, base: constraints.Constraint | None, back: Callable[[Tensor], Tensor]
    ) -> None:
        self.base, self.back = base or constraints.real, back

    def check(self, value: Tensor) -> Tensor:
        y = self.back(value)
        if self.base.is_discrete:
            y = torch.where((y - y.round()).abs() < _OFF, y.round(), y)
        return self.base.check(y)


def is_possible(part: Distribution, value: Tensor) -> Tensor:
    """Whether components may have a value at all: it is finite and in their support; also where it
    is NaN, whose density is."""
    support = part.support or constraints.real
    return value.isnan() | (support.check(value) & value.isfinite())


def has_mass(part: Distribution, value: Tensor) -> Tensor:
    """Whether ``log_prob`` of components is the logarithm of a probability, not of a density."""
    own = getattr(part, "has_mass", None)
    if own is not None:
        return own(value)
    discrete = getattr(part, "lattice", None) is not None
    return torch.full_like(value, discrete, dtype=torch.bool)


def averaged(part: Distribution) -> Averaged | AffineAverage | None:
    """The distribution averaged over the first dimension; None for none."""
    return part.averaged() if isinstance(part, Marginal | Affine) else None


def at_mass(part: Distribution, value: Tensor) -> Tensor:
    """The value, or that with a probability which it is next to."""
    own = getattr(part, "at_mass", None)
    return value if own is None else own(value)


def one_output(part: Distribution, output: int) -> Distribution:
    """The distribution [S, N] of one output of a batch [S, N, P]."""
    if isinstance(part, Affine):
        loc, scale = (
            v[output] if isinstance(v, Tensor) and v.dim() else v for v in (part.loc, part.scale)
        )
        return Affine(one_output(part.base, output), loc, scale, validate_args=False)
    # By position, since parameters may have further dimensions at the end.
    where = (slice(None),) * (len(part.batch_shape) - 1) + (output,)
    return mapped(part, lambda t: t[where])


def rescaled(part: Distribution, loc: Tensor | float, scale: Tensor | float) -> Distribution:
    """The distribution of loc + scale y."""
    if isinstance(part, Normal):
        return dist.Normal(loc + scale * part.loc, scale * part.scale, validate_args=False)
    return Affine(part, loc, scale, validate_args=False)
