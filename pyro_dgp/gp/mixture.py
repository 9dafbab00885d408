"""The predictive distribution of a latent-variable deep GP: an equal mixture over draws."""

import math
from collections.abc import Callable, Iterator, Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.gp.batches import converted, mapped

__all__ = ["PredictiveMixture"]

# Elements of a temporary array: 2^21 doubles are 16 MiB.
_CHUNK = 2**21
# The CRPS of normals pairs every component with this many others, or with all if there are fewer.
_CRPS_SHIFTS = 128
# Other CRPS: rounds of points where the distribution function rises, and how many a round has.
_CRPS_ROUNDS, _CRPS_POINTS = 4, 48
# Sums over a lattice of more points than this become integrals.
_MOST_LATTICE_POINTS = 4096


class PredictiveMixture(dist.TorchDistribution):
    r"""Equal mixture :math:`\frac1S \sum_s p_s(y)` of S components.

    ``log_prob`` is the joint density of a target; ``cdf``, ``icdf``, ``quantile`` and ``crps`` look
    at each output's marginal by itself. They work through the components in chunks, so that no
    temporary array is much larger than the components' parameters.

    What a component does not have (such as the ``cdf`` of classes), the mixture does not have,
    either: NotImplementedError.

    :param components: A distribution with batch shape [S, N], or [S, N, P] with ``event_dim=1``,
        elementwise over outputs; or several with numbers of components that add up to S.
    :param int event_dim: 0 for batch shape [N]; 1 for batch shape [N] and event shape [P].
    :raises ValueError: If there is no dimension of components.
    """

    arg_constraints = {}
    has_rsample = False

    def __init__(
        self,
        components: Distribution | Sequence[Distribution],
        event_dim: int = 0,
        validate_args=None,
    ) -> None:
        parts = [components] if isinstance(components, Distribution) else list(components)
        shape = parts[0].batch_shape
        if len(shape) < 1 + event_dim or any(p.batch_shape[1:] != shape[1:] for p in parts):
            raise ValueError(
                f"components have the batch shapes {[tuple(p.batch_shape) for p in parts]}, but "
                f"need [num_components, ...] with {event_dim} dimensions of outputs, the same but "
                "for num_components."
            )
        if len(parts) > 1 and all(isinstance(part, torch.distributions.Normal) for part in parts):
            loc, scale = (torch.cat([getattr(p, n) for p in parts]) for n in ("loc", "scale"))
            parts = [dist.Normal(loc, scale, validate_args=False)]
        self.parts = parts
        split = len(shape) - event_dim
        super().__init__(shape[1:split], shape[split:], validate_args=validate_args)

    @property
    def components(self) -> Distribution:
        """The components as one distribution.

        :raises ValueError: If they are several, as with priors on hyperparameters.
        """
        if len(self.parts) > 1:
            raise ValueError(f"The components are {len(self.parts)} distributions: see `parts`.")
        return self.parts[0]

    @property
    def num_components(self) -> int:
        """S."""
        return sum(part.batch_shape[0] for part in self.parts)

    @property
    def support(self):
        return constraints.independent(self.parts[0].support, self.event_dim)

    def expand(self, batch_shape, _instance=None):
        old, new = len(self.batch_shape), torch.Size(batch_shape)

        def wide(t: Tensor) -> Tensor:
            t = t.reshape(len(t), *[1] * (len(new) - old), *t.shape[1:])
            return t.expand(len(t), *new, *t.shape[1 + len(new) :])

        return self._with([mapped(part, wide) for part in self.parts])

    def __getitem__(self, rows) -> "PredictiveMixture":
        """The distribution of some rows of the batch.

        :param rows: An index into the batch's first dimension: a slice, a list or a tensor.
        """
        return self._with([mapped(part, lambda t: t[:, rows]) for part in self.parts])

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> "PredictiveMixture":
        """The distribution of loc + scale y.

        :param loc: A number, or one per output [P].
        :param scale: Positive, likewise.
        """
        return self._with([_affine(part, loc, scale) for part in self.parts])

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> "PredictiveMixture":
        """The mixture in another dtype and on a device."""
        return self._with([converted(part, dtype, torch.device(device)) for part in self.parts])

    @property
    def mean(self) -> Tensor:
        """[N] or [N, P]."""
        return self._total(lambda p: p.mean) / self.num_components

    @property
    def variance(self) -> Tensor:
        """By the law of total variance: mean of the variances plus variance of the means."""
        mean = self.mean
        total = self._total(lambda p: p.variance + (p.mean - mean).square())
        return total / self.num_components

    @property
    def probs(self) -> Tensor:
        """Probabilities of classes, [N, C], or of a 1, [N]."""
        found = [getattr(part, "probs", None) for part in self.parts]
        if any(p is None for p in found):
            raise NotImplementedError("Only classes have probabilities.")
        return sum(p.sum(0) for p in found) / self.num_components

    def sample(self, sample_shape=()) -> Tensor:
        """``sample_shape`` + [N] or [N, P]; outputs of one target share their component."""
        shape = torch.Size(sample_shape) + self.batch_shape
        index = torch.randint(self.num_components, shape)
        batch = torch.meshgrid(*map(torch.arange, self.batch_shape), indexing="ij")
        found, first = None, 0
        for part in self.parts:
            last = first + part.batch_shape[0]
            mine = (index >= first) & (index < last)
            places = (index - first).clamp(0, last - first - 1), *batch
            draws = mapped(part, lambda t, places=places: t[places]).sample()
            mine = mine.reshape(mine.shape + (1,) * self.event_dim).to(draws.device)
            found = draws if found is None else torch.where(mine, draws, found)
            first = last
        return found

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density (or log probability) of a target.

        :param torch.Tensor value: [..., N] or [..., N, P].
        :returns: [..., N].
        """
        if self._validate_args:
            self._validate_sample(value)
        dim, total = -1 - len(self.batch_shape), None
        for component, y in self._chunks(value):
            log_prob = component.log_prob(y)
            log_prob = log_prob.sum(-1) if self.event_dim else log_prob
            part = log_prob.logsumexp(dim)
            total = part if total is None else torch.logaddexp(total, part)
        return total - math.log(self.num_components)

    def cdf(self, value: Tensor) -> Tensor:
        """P(y <= value) for each output's marginal; the shape of ``value``."""
        value = torch.as_tensor(value, dtype=self._dtype, device=self._device)
        return self._average(value, lambda component, y: component.cdf(y))

    def icdf(self, value: Tensor) -> Tensor:
        """Inverse of :meth:`cdf`: the smallest y with P(target <= y) >= value.

        Newton's method from the middle of a bracket, kept inside it by bisection.

        :param torch.Tensor value: Probabilities in (0, 1), broadcastable to [..., N(, P)].
        :returns: The broadcast shape.
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        p = torch.as_tensor(value, dtype=self._dtype, device=self._device)
        if not bool(((p > 0) & (p < 1)).all()):
            raise ValueError("Probabilities must lie strictly between 0 and 1.")
        p = p.expand(torch.broadcast_shapes(p.shape, self.batch_shape + self.event_shape))
        low, high = self._bracket(p)
        if self.lattice is not None:
            return self._lattice_icdf(p, low, high)
        x = 0.5 * (low + high)
        eps = torch.finfo(p.dtype).eps
        smallest = self.components.scale.amin(0) if self._is_normal else torch.finfo(p.dtype).tiny
        smallest = torch.as_tensor(smallest, dtype=p.dtype, device=p.device)
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
        q = torch.as_tensor(q, dtype=self._dtype, device=self._device)
        return self.icdf(q.reshape(q.shape + (1,) * len(self.batch_shape + self.event_shape)))

    def crps(self, value: Tensor) -> Tensor:
        r"""Continuous ranked probability score of each output's marginal; smaller is better.

        .. math:: \int (F(x) - 1\{x \ge y\})^2 dx = E|X - y| - \tfrac12 E|X - X'|

        For normal components by the right-hand side. With at most 129 of them its second term runs
        over every pair; with more, over the pairs at 128 evenly spaced cyclic distances, with a
        tenth of the error that the draws have. For others by the integral, on points that lie close
        where F rises; for targets on a lattice, such as counts, by its sum.

        Source: Gneiting and Raftery (2007), eq. 21; Grimit et al. (2006) for normal mixtures.

        :param torch.Tensor value: [..., N] or [..., N, P].
        :returns: The shape of ``value``, in its units.
        """
        if self._validate_args:
            self._validate_sample(value)
        value = value.to(self._dtype)
        return self._normal_crps(value) if self._is_normal else self._integrated_crps(value)

    def _normal_crps(self, value: Tensor) -> Tensor:
        to_value = self._average(value, lambda p, y: _expected_abs(p.loc - y, p.scale))
        p, S = self.components, self.num_components
        shifts = torch.linspace(0, S - 1, min(S, _CRPS_SHIFTS + 1)).round().long()[1:].tolist()
        spread = torch.zeros_like(p.loc[0])
        for shift in shifts:
            for loc, scale, loc_, scale_ in _pairs(p, shift):
                spread += _expected_abs(loc - loc_, (scale.square() + scale_.square()).sqrt()).sum(
                    0
                )
        # Pairs of a component with itself, 1 of S, are known exactly.
        same = p.scale.mean(0) * (2 / math.sqrt(math.pi))
        other = spread / (S * max(len(shifts), 1))
        return to_value - 0.5 * (same + (S - 1) * other) / S

    def _integrated_crps(self, value: Tensor) -> Tensor:
        tail = 1e-5
        shape = self.batch_shape + self.event_shape
        ends = torch.tensor([tail, 1 - tail], dtype=value.dtype, device=value.device)
        p = ends.reshape(2, *[1] * len(shape)).expand(2, *shape)
        low, high = self._bracket(p)
        low, high = low[0], high[1]
        if self.lattice is not None:
            origin, step = self.lattice
            first = math.floor((torch.minimum(low, _least(value, shape)).min() - origin) / step)
            last = math.ceil((torch.maximum(high, -_least(-value, shape)).max() - origin) / step)
            if last - first <= _MOST_LATTICE_POINTS:
                return self._lattice_crps(value, origin, step, first, last)
        x = torch.linspace(0, 1, _CRPS_POINTS, dtype=value.dtype, device=value.device)
        x = low + (high - low) * x.reshape(-1, *[1] * len(shape))
        F = self.cdf(x)
        for _ in range(_CRPS_ROUNDS):
            new = _rising(x, F)
            x, order = torch.cat([x, new]).sort(0)
            F = torch.cat([F, self.cdf(new)]).gather(0, order)
        # F and 1 - F squared, integrated up to each point and from it as if F were linear between.
        width = x.diff(dim=0)
        below, above = (
            torch.cat(
                [torch.zeros_like(width[:1]), (width * _mean_square(G[:-1], G[1:])).cumsum(0)]
            )
            for G in (F, 1 - F)
        )
        at = self.cdf(value)
        flat = value.reshape(-1, *shape)
        i = torch.searchsorted(x.movedim(0, -1).contiguous(), flat.movedim(0, -1).contiguous())
        i = i.movedim(-1, 0).clamp(1, len(x) - 1)
        x0, x1, F0, F1 = x.gather(0, i - 1), x.gather(0, i), F.gather(0, i - 1), F.gather(0, i)
        Fy = at.reshape(flat.shape)
        # Beyond the points F is 0 or 1, and the distance counts in full.
        inside = torch.minimum(torch.maximum(flat, x0), x1)
        found = below.gather(0, i - 1) + (inside - x0) * _mean_square(F0, Fy)
        found = found + (x1 - inside) * _mean_square(1 - Fy, 1 - F1)
        found = found + (above[-1] - above.gather(0, i)) + (flat - inside).abs()
        return found.reshape(value.shape)

    def _lattice_crps(
        self, value: Tensor, origin: float, step: float, first: int, last: int
    ) -> Tensor:
        shape = self.batch_shape + self.event_shape
        total = torch.zeros_like(value)
        for k in torch.arange(first, last + 1, device=value.device).split(256):
            x = (origin + step * k.to(value.dtype)).reshape(-1, *[1] * len(shape))
            F = self.cdf(x.expand(-1, *shape))
            for x_k, F_k in zip(x, F, strict=True):
                total += (F_k - (x_k > value - 0.5 * step).to(F)).square()
        return step * total

    @property
    def _is_normal(self) -> bool:
        return isinstance(self.parts[0], torch.distributions.Normal)

    @property
    def lattice(self) -> tuple[float, float] | None:
        """An origin and a step, if targets lie on origin + step k and have probabilities."""
        part = self.parts[0]
        if hasattr(part, "lattice"):
            return part.lattice
        return (0.0, 1.0) if part.support.is_discrete else None

    @property
    def _like(self) -> Tensor:
        part = mapped(self.parts[0], lambda t: t[:1])
        return part.loc if self._is_normal else part.mean

    @property
    def _dtype(self) -> torch.dtype:
        return self._like.dtype

    @property
    def _device(self) -> torch.device:
        return self._like.device

    def _with(self, parts: list[Distribution]) -> "PredictiveMixture":
        return PredictiveMixture(parts, self.event_dim, validate_args=False)

    def _chunks(self, value: Tensor | None = None) -> Iterator[tuple[Distribution, Tensor | None]]:
        """Some components at a time, few enough that a chunk times ``value`` is small.

        With them ``value``, with a dimension of 1 where components have theirs.
        """
        shape = self.batch_shape + self.event_shape
        size, y = shape.numel(), None
        if value is not None:
            size = max(size, value.numel())
            y = value.reshape((1,) * (len(shape) - value.dim()) + value.shape)
            y = y.unsqueeze(-1 - len(shape))
        for part in self.parts:
            nodes = getattr(part, "num_nodes", 1)
            step, S = max(1, _CHUNK // max(1, size * nodes)), part.batch_shape[0]
            for start in range(0, S, step):
                some = slice(start, start + step)
                yield part if step >= S else mapped(part, lambda t, some=some: t[some]), y

    def _total(self, fn: Callable[[Distribution], Tensor]) -> Tensor:
        return sum(fn(component).sum(0) for component, _ in self._chunks())

    def _average(self, value: Tensor, fn: Callable[[Distribution, Tensor], Tensor]) -> Tensor:
        dim = -1 - len(self.batch_shape + self.event_shape)
        total = sum(fn(component, y).sum(dim) for component, y in self._chunks(value))
        return total / self.num_components

    def _density(self, value: Tensor) -> Tensor:
        return self._average(value, lambda component, y: component.log_prob(y).exp())

    def _bracket(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Ends between which quantiles lie."""
        if self._is_normal:
            # Between the smallest and the largest of the components' quantiles.
            z, dim = torch.special.ndtri(p), -1 - len(self.batch_shape + self.event_shape)
            low = high = None
            for component, z_ in self._chunks(z):
                quantiles = component.loc + z_ * component.scale
                lo, hi = quantiles.amin(dim), quantiles.amax(dim)
                low = lo if low is None else torch.minimum(low, lo)
                high = hi if high is None else torch.maximum(high, hi)
            margin = torch.finfo(p.dtype).eps * (1 + torch.maximum(low.abs(), high.abs()))
            return low - margin, high + margin
        ends = []
        for sign in (-1.0, 1.0):
            end = torch.full_like(p, sign)
            for _ in range(200):
                short = (self.cdf(end) - p) * sign < 0
                if not bool(short.any()):
                    break
                end = torch.where(short, 2 * end, end)
            ends.append(end)
        return ends[0], ends[1]

    def _lattice_icdf(self, p: Tensor, low: Tensor, high: Tensor) -> Tensor:
        origin, step = self.lattice
        low = ((low - origin) / step).floor() - 1
        high = ((high - origin) / step).ceil()
        while bool((high - low > 1).any()):
            middle = ((low + high) / 2).floor()
            # Sums that should give p exactly fall short of it by rounding.
            enough = self.cdf(origin + step * middle) >= p - 1e-7
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return origin + step * high


class _Affine(dist.TorchDistribution):
    """loc + scale y, elementwise."""

    arg_constraints = {}

    def __init__(self, base, loc, scale, validate_args=None):
        self.base, self.loc, self.scale = base, loc, scale
        super().__init__(base.batch_shape, validate_args=validate_args)

    @property
    def support(self):
        return constraints.real

    @property
    def num_nodes(self) -> int:
        return getattr(self.base, "num_nodes", 1)

    @property
    def lattice(self):
        lattice = getattr(self.base, "lattice", None)
        if lattice is None:
            return None
        return float(self.loc + self.scale * lattice[0]), float(self.scale * lattice[1])

    @property
    def mean(self):
        return self.loc + self.scale * self.base.mean

    @property
    def variance(self):
        return self.scale**2 * self.base.variance

    def _back(self, value):
        return (value - self.loc) / self.scale

    def cdf(self, value):
        return self.base.cdf(self._back(value))

    def log_prob(self, value):
        log_prob = self.base.log_prob(self._back(value))
        # Probabilities stay as they are, densities are per unit.
        return log_prob if self.lattice else log_prob - torch.as_tensor(self.scale).log()

    def sample(self, sample_shape=()):
        return self.loc + self.scale * self.base.sample(sample_shape)


def _affine(part: Distribution, loc: Tensor | float, scale: Tensor | float) -> Distribution:
    if isinstance(part, torch.distributions.Normal):
        return dist.Normal(loc + scale * part.loc, scale * part.scale, validate_args=False)
    return _Affine(part, loc, scale, validate_args=False)


def _pairs(p: Distribution, shift: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Components beside those ``shift`` further on, in chunks."""
    step = max(1, _CHUNK // max(1, p.loc[0].numel()))
    others = torch.arange(len(p.loc), device=p.loc.device).roll(-shift)
    for loc, scale, index in zip(
        p.loc.split(step), p.scale.split(step), others.split(step), strict=True
    ):
        yield loc, scale, p.loc[index], p.scale[index]


def _expected_abs(mean: Tensor, scale: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, scale^2)."""
    ratio = mean / scale
    density = (-0.5 * ratio.square()).exp() * math.sqrt(2 / math.pi)
    return scale * density + mean * torch.erf(ratio / math.sqrt(2))


def _rising(x: Tensor, F: Tensor) -> Tensor:
    """More points, where F rises by equal steps if it is linear between points x, [G, ...]."""
    F = F.cummax(0).values
    level = (torch.arange(_CRPS_POINTS, dtype=x.dtype, device=x.device) + 0.5) / _CRPS_POINTS
    level = level.reshape(-1, *[1] * (x.dim() - 1))
    level = F[:1] + (F[-1:] - F[:1]) * level
    i = torch.searchsorted(F.movedim(0, -1).contiguous(), level.movedim(0, -1).contiguous())
    i = i.movedim(-1, 0).clamp(1, len(x) - 1)
    x0, x1, F0, F1 = x.gather(0, i - 1), x.gather(0, i), F.gather(0, i - 1), F.gather(0, i)
    share = ((level - F0) / (F1 - F0).clamp_min(torch.finfo(F.dtype).tiny)).clamp(0, 1)
    return x0 + (x1 - x0) * share


def _mean_square(a: Tensor, b: Tensor) -> Tensor:
    """Mean of the square of what goes from a to b in a line."""
    return (a * a + a * b + b * b) / 3


def _least(value: Tensor, shape: torch.Size) -> Tensor:
    """Smallest over leading dimensions."""
    return value.expand(torch.broadcast_shapes(value.shape, shape)).reshape(-1, *shape).amin(0)
