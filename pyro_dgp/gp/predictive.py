"""The predictive density of a latent-variable deep GP: an equal mixture of normal distributions."""

import math
from collections.abc import Callable

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = ["PredictiveMixture"]

# Elements of a temporary array: 2^21 doubles are 16 MiB.
_CHUNK = 2**21
# The CRPS pairs every component with this many others, or with all where there are fewer.
_CRPS_SHIFTS = 128


class PredictiveMixture(dist.TorchDistribution):
    r"""Equal mixture :math:`\frac1S \sum_s N(loc_s, scale_s^2)` of S draws.

    ``log_prob`` is the joint density of a target; ``cdf``, ``icdf``, ``quantile`` and ``crps`` look
    at each output's marginal by itself. They work through the components in chunks, so that no
    temporary array is much larger than ``loc``.

    :param torch.Tensor loc: [S, N], or [S, N, P] with ``event_dim=1``.
    :param torch.Tensor scale: Standard deviations, the same shape.
    :param int event_dim: 0 for batch shape [N]; 1 for batch shape [N] and event shape [P].
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    has_rsample = False

    def __init__(self, loc: Tensor, scale: Tensor, event_dim: int = 0, validate_args=None) -> None:
        if loc.shape != scale.shape or loc.dim() < 1 + event_dim:
            raise ValueError(
                f"loc {tuple(loc.shape)} and scale {tuple(scale.shape)} must have one shape, "
                "[num_components, ...]."
            )
        self.loc, self.scale = loc, scale
        split = loc.dim() - event_dim
        super().__init__(loc.shape[1:split], loc.shape[split:], validate_args=validate_args)

    @property
    def num_components(self) -> int:
        """S."""
        return self.loc.shape[0]

    @property
    def support(self):
        return constraints.independent(constraints.real, self.event_dim)

    def expand(self, batch_shape, _instance=None):
        shape = torch.Size(batch_shape) + self.event_shape
        pad = (self.num_components,) + (1,) * (len(shape) - self.loc.dim() + 1)
        loc, scale = (
            p.reshape(pad + p.shape[1:]).expand((self.num_components, *shape))
            for p in (self.loc, self.scale)
        )
        return PredictiveMixture(loc, scale, self.event_dim, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """[N] or [N, P]."""
        return self.loc.mean(0)

    @property
    def variance(self) -> Tensor:
        """By the law of total variance: mean of the variances plus variance of the means."""
        return self.scale.square().mean(0) + self.loc.var(0, unbiased=False)

    def sample(self, sample_shape=()) -> Tensor:
        """``sample_shape`` + [N] or [N, P]; outputs of one target share their component."""
        shape = self._extended_shape(torch.Size(sample_shape))
        index = torch.randint(
            self.num_components,
            shape[: len(shape) - self.event_dim] + (1,) * self.event_dim,
            device=self.loc.device,
        ).expand(shape)
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        flat = index.reshape(-1, *self.loc.shape[1:])
        loc, scale = self.loc.gather(0, flat), self.scale.gather(0, flat)
        return loc.reshape(shape) + noise * scale.reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of a target.

        :param torch.Tensor value: [..., N] or [..., N, P].
        :returns: [..., N].
        """
        if self._validate_args:
            self._validate_sample(value)

        def component(loc, scale):
            log_prob = dist.Normal(loc, scale, validate_args=False).log_prob(value)
            return log_prob.sum(-1) if self.event_dim else log_prob

        total = None
        for loc, scale in self._chunks(value):
            part = component(loc, scale).logsumexp(0)
            total = part if total is None else torch.logaddexp(total, part)
        return total - math.log(self.num_components)

    def cdf(self, value: Tensor) -> Tensor:
        """P(y <= value) for each output's marginal; the shape of ``value``."""
        value = torch.as_tensor(value, dtype=self.loc.dtype, device=self.loc.device)
        return self._average(value, lambda loc, scale: torch.special.ndtr((value - loc) / scale))

    def icdf(self, value: Tensor) -> Tensor:
        """Inverse of :meth:`cdf`.

        Newton's method from the middle of a bracket, kept inside it by bisection: the mixture's
        quantile lies between the smallest and the largest of its components' quantiles.

        :param torch.Tensor value: Probabilities in (0, 1), broadcastable to [..., N(, P)].
        :returns: The broadcast shape.
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        p = torch.as_tensor(value, dtype=self.loc.dtype, device=self.loc.device)
        if not bool(((p > 0) & (p < 1)).all()):
            raise ValueError("Probabilities must lie strictly between 0 and 1.")
        p = p.expand(torch.broadcast_shapes(p.shape, self.loc.shape[1:]))
        low, high = self._bracket(p)
        x = 0.5 * (low + high)
        eps = torch.finfo(p.dtype).eps
        smallest = self.scale.amin(0)
        done = torch.zeros_like(x, dtype=torch.bool)
        for _ in range(200):
            error = self.cdf(x) - p
            low, high = torch.where(error < 0, x, low), torch.where(error < 0, high, x)
            # What has converged stays, or rounding would send it back into the bracket.
            done |= (error.abs() <= 4 * eps * p) | (
                high - low <= 4 * eps * torch.maximum(x.abs(), smallest)
            )
            if bool(done.all()):
                break
            newton = x - error / self._density(x)
            # Where Newton leaves the bracket (also by a density that underflows), bisect.
            inside = (newton >= low) & (newton <= high)
            x = torch.where(done, x, torch.where(inside, newton, 0.5 * (low + high)))
        return x

    def quantile(self, q: Tensor | float) -> Tensor:
        """Quantiles of each output's marginal.

        :param q: A probability, or a tensor of probabilities of any shape.
        :returns: ``q.shape`` + [N] or [N, P].
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        q = torch.as_tensor(q, dtype=self.loc.dtype, device=self.loc.device)
        return self.icdf(q.reshape(q.shape + (1,) * (self.loc.dim() - 1)))

    def crps(self, value: Tensor) -> Tensor:
        r"""Continuous ranked probability score of each output's marginal; smaller is better.

        .. math:: E|X - y| - \tfrac12 E|X - X'|

        With at most 129 components the second term runs over every pair; with more, over the pairs
        at 128 evenly spaced cyclic distances, with a tenth of the error that the draws have.

        Source: Gneiting and Raftery (2007), eq. 21; Grimit et al. (2006) for normal mixtures.

        :param torch.Tensor value: [..., N] or [..., N, P].
        :returns: The shape of ``value``, in its units.
        """
        if self._validate_args:
            self._validate_sample(value)
        to_value = self._average(value, lambda loc, scale: _expected_abs(loc - value, scale))
        S = self.num_components
        shifts = torch.linspace(0, S - 1, min(S, _CRPS_SHIFTS + 1)).round().long()[1:].tolist()
        spread = torch.zeros_like(self.loc[0])
        for shift in shifts:
            for loc, scale, loc_, scale_ in self._pairs(shift):
                spread += _expected_abs(loc - loc_, (scale.square() + scale_.square()).sqrt()).sum(
                    0
                )
        # Pairs of a component with itself, 1 of S, are known exactly.
        same = self.scale.mean(0) * (2 / math.sqrt(math.pi))
        other = spread / (S * max(len(shifts), 1))
        return to_value - 0.5 * (same + (S - 1) * other) / S

    def _chunks(self, value: Tensor):
        """Components as [chunk, 1..., N(, P)], few enough that a chunk times ``value`` is small."""
        step = max(1, _CHUNK // max(1, max(value.numel(), self.loc[0].numel())))
        lead = (1,) * (value.dim() - self.loc.dim() + 1)
        for loc, scale in zip(self.loc.split(step), self.scale.split(step), strict=True):
            shape = loc.shape[:1] + lead + loc.shape[1:]
            yield loc.reshape(shape), scale.reshape(shape)

    def _average(self, value: Tensor, fn: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return sum(fn(*chunk).sum(0) for chunk in self._chunks(value)) / self.num_components

    def _density(self, value: Tensor) -> Tensor:
        def pdf(loc, scale):
            return (-0.5 * ((value - loc) / scale).square()).exp() / scale

        return self._average(value, pdf) / math.sqrt(2 * math.pi)

    def _bracket(self, p: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.special.ndtri(p)
        low = high = None
        for loc, scale in self._chunks(p):
            quantiles = loc + z * scale
            lo, hi = quantiles.amin(0), quantiles.amax(0)
            low = lo if low is None else torch.minimum(low, lo)
            high = hi if high is None else torch.maximum(high, hi)
        margin = torch.finfo(p.dtype).eps * (1 + torch.maximum(low.abs(), high.abs()))
        return low - margin, high + margin

    def _pairs(self, shift: int):
        """Components beside those ``shift`` further on, in chunks."""
        step = max(1, _CHUNK // max(1, self.loc[0].numel()))
        others = torch.arange(self.num_components, device=self.loc.device).roll(-shift)
        for loc, scale, index in zip(
            self.loc.split(step), self.scale.split(step), others.split(step), strict=True
        ):
            yield loc, scale, self.loc[index], self.scale[index]


def _expected_abs(mean: Tensor, scale: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, scale^2)."""
    ratio = mean / scale
    density = (-0.5 * ratio.square()).exp() * math.sqrt(2 / math.pi)
    return scale * density + mean * torch.erf(ratio / math.sqrt(2))
