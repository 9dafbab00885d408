"""Targets of which only an interval is known, because they are rounded."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.gp.constraints import constrained, softplus_above
from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.quadrature import Bends
from pyro_dgp.gp.likelihoods.special import log_interval
from pyro_dgp.gp.predictive.derived import Composite

__all__ = ["Rounded"]


# Largest distance of a target from a lattice point, in widths, for decimals in float32.
_OFF = 0.01


class Rounded(Likelihood):
    r"""A normal y* = f + N(0, s^2), of which the nearest point of a lattice is observed.

    .. math:: p(y | f) = \Phi\Big(\frac{y + w/2 - f}{s}\Big) - \Phi\Big(\frac{y - w/2 - f}{s}\Big)

    with lattice points w apart: grades, ages in years, coarse measurements. Unlike a density at
    such targets, it cannot grow without limit as s decreases. The predictive probabilities have a
    closed form.

    :param float width: Distance w of lattice points.
    :param float origin: A lattice point.
    :param float scale: Initial standard deviation s; None for w / 2.
    :param loc: Initial value of a trained constant that is added to f; one, or with ``event_dim=1``
        one per output [P].
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a number is out of range.
    """

    discrete = closed_marginal = True
    fixed = ("width", "origin")

    def __init__(
        self,
        width: float = 1.0,
        origin: float = 0.0,
        scale: float | None = None,
        loc: float | Tensor = 0.0,
        event_dim: int = 0,
    ) -> None:
        scale = 0.5 * width if scale is None else scale
        if not 0 < width < math.inf:
            raise ValueError(f"width must be positive and finite, but it is {width}.")
        if not 1e-3 * width < scale < math.inf:
            raise ValueError(
                f"scale must be finite and above a thousandth of the width, but it is {scale}."
            )
        loc = torch.as_tensor(loc, dtype=torch.get_default_dtype())
        super().__init__(event_dim, loc.unsqueeze(0))
        self.width, self.origin = float(width), float(origin)
        self.accepts = f"targets {self.origin:g} + {self.width:g} k for integers k"
        self.scale = constrained(torch.tensor(float(scale)), softplus_above(1e-3 * self.width))

    @classmethod
    def for_targets(cls, y: Tensor) -> "Rounded":
        """The widest lattice that the targets lie on, up to rounding.

        f starts from the targets' mean, and s from half their standard deviation.

        :raises ValueError: If there is none with 20 points or fewer between the two closest
            targets.
        """
        values = torch.unique(y.double())
        # Decimals in float32 are off by their rounding, and their mean gap is by less.
        single = bool((values == values.float()).all())
        eps = torch.finfo(torch.float32 if single else torch.float64).eps
        rounding = 4 * eps * values.abs().max()
        new = values.diff(prepend=values.new_tensor([-math.inf])) > rounding
        values = values[new]  # not 0.3 and 0.1 + 0.2
        if len(values) < 2:
            raise ValueError("Rounded needs at least two different targets to tell their lattice.")
        gaps, offsets = values.diff(), values - values[0]
        closest = gaps[gaps < 1.5 * gaps.min()].mean()
        for parts in range(1, 21):
            k = (offsets / (closest / parts)).round()
            width = (k @ offsets) / (k @ k)
            if width < 8 * rounding:
                break  # any targets are near some points of it
            if bool(((offsets - k * width).abs() < 1e-4 * width + rounding).all()):
                loc = y.double().mean(0).to(torch.get_default_dtype())
                scale = max(0.5 * y.double().std().item(), 0.01 * width.item())
                return cls(width.item(), values[0].item(), scale, loc, y.dim() - 1)
        raise ValueError(
            f"Rounded found no lattice: the {len(values)} different targets, the closest two "
            f"{gaps.min():g} apart, are no multiples of one width. Give Rounded(width, origin), or "
            "use a likelihood of real numbers."
        )

    def check_targets(self, y: Tensor) -> None:
        """
        :raises ValueError: If a target is off the lattice by more than a hundredth of its width.
        """
        k = (y.double() - self.origin) / self.width
        self.refuse(y, (k - k.round()).abs() > _OFF, self.accepts)

    def conditional(self, f: Tensor) -> Distribution:
        """The lattice's point next to N(f, s^2)."""
        return RoundedNormal(f, self.scale, self.width, self.origin)

    def conditional_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self.conditional(f).log_prob(y)

    def bends(self, y: Tensor) -> Bends:
        """At the interval's ends."""
        return Bends((y - 0.5 * self.width, y + 0.5 * self.width), 2 * self.scale)

    def marginal(self, loc: Tensor, var: Tensor) -> Distribution:
        """The lattice's point next to N(m, v + s^2)."""
        scale = (var[0] + self.scale.square()).sqrt()
        return RoundedNormal(loc[0], scale, self.width, self.origin)

    def lattice(self) -> tuple[float, float]:
        return self.origin, self.width


class RoundedNormal(Composite):
    """The point of a lattice next to N(loc, scale^2)."""

    def __init__(self, loc: Tensor, scale: Tensor, width: float, origin: float) -> None:
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        self.width, self.origin = width, origin
        super().__init__(self.loc.shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    @property
    def lattice(self) -> tuple[float, float]:
        """The origin and the step of the points."""
        return self.origin, self.width

    def log_prob(self, value: Tensor) -> Tensor:
        low, high = ((value + sign * 0.5 * self.width - self.loc) / self.scale for sign in (-1, 1))
        return log_interval(low, high)

    def cdf(self, value: Tensor) -> Tensor:
        # With a margin for points that rounding has moved.
        k = ((value - self.origin) / self.width + _OFF).floor()
        edge = self.origin + self.width * (k + 0.5)
        return torch.special.ndtr((edge - self.loc) / self.scale)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        x = self.loc + self.scale * torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.origin + self.width * ((x - self.origin) / self.width).round()

    @property
    def mean(self) -> Tensor:
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        return self._moments()[1]

    def _moments(self) -> tuple[Tensor, Tensor]:
        """By a sum over nearby points for a narrow normal, by a Fourier series for a wide one.

        Rounding adds e(x) = (w / pi) sum_j (-1)^j sin(j a x) / j, with a = 2 pi / w.
        """
        w = self.width
        x, s = (self.loc - self.origin) / w, self.scale / w
        wide = s > 0.3
        k = x.round() + torch.arange(-3, 4, device=x.device).reshape(-1, *[1] * x.dim())
        narrow = s.clamp_max(0.3)
        p = log_interval((k - 0.5 - x) / narrow, (k + 0.5 - x) / narrow).exp()
        near = (p * k).sum(0)
        mean, variance = near, (p * (k - near).square()).sum(0)
        broad = s.clamp_min(0.3)
        e = x_e = e2 = 0.0
        for j in range(1, 7):
            a, sign = 2 * math.pi * j, (-1) ** j
            damped = (-0.5 * (a * broad).square()).exp()
            sine, cosine = damped * (a * x).sin(), damped * (a * x).cos()
            e = e + sign * sine / (math.pi * j)
            x_e = x_e + sign * a * broad.square() * cosine / (math.pi * j)  # E[(x - mean x) e]
            e2 = e2 + sign * cosine / (math.pi * j) ** 2
        e2 = 1 / 12 + e2
        mean = torch.where(wide, x + e, mean)
        variance = torch.where(wide, broad.square() + 2 * x_e + e2 - e * e, variance)
        return self.origin + w * mean, w * w * variance
