r"""A prior of the latent inputs that is estimated from data.

A model is a smooth function of z. Where targets have separate modes, the values of z on the way
from one to the other have, under N(0, 1), some probability, and the predictions have it where there
are no targets. And a guide that is Gaussian for each datum does not fill the part of N(0, 1) that
belongs to a mode. A prior that follows the data mends both. Each coordinate of z has the density

.. math::
    p(z) = S\, \pi_{s(z)}\, N(z \mid 0, 1), \qquad s(z) = \lfloor S\, \Phi(z) \rfloor,

with the shares :math:`\pi` of S intervals that are equally likely under N(0, 1). With all other
parameters fixed, the shares are a posterior mode for the marginal likelihood
:math:`\prod_n \int p(y_n \mid x_n, z)\, p(z)\, dz`, found by EM: nearly the nonparametric maximum
likelihood of a mixing distribution (Kiefer and Wolfowitz 1956; Laird 1978).

The density has jumps, which reparameterised gradients do not see: it is for fixed parameters only.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Normal, constraints

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ReweightedNormal", "balanced_draws", "maximum_posterior_shares"]

# Exponent of the shares' Dirichlet prior: an interval without data keeps the share of half a datum.
_PSEUDO_COUNT = 0.5
_MOST_ITERATIONS, _TOLERANCE = 100, 1e-4
_NUM_DRAWS, _MOST_INTERVALS = 2048, 64


class ReweightedNormal(TorchDistribution):
    """A standard normal distribution with other probabilities of S intervals.

    ``log_prob`` has no derivative by the value: the backward pass raises ``NotImplementedError``.

    :param torch.Tensor shares: Probabilities of the intervals between the quantiles of 0, 1/S, ...,
        1 of N(0, 1), [..., S].
    """

    arg_constraints = {  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
        "shares": constraints.simplex
    }
    support = constraints.real  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    has_rsample = True

    def __init__(self, shares: Tensor, validate_args: bool | None = None) -> None:
        self.shares = shares
        super().__init__(shares.shape[:-1], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "Self":
        shares = self.shares.expand(*batch_shape, self.shares.shape[-1])
        return type(self)(shares, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        value = _Undifferentiable.apply(value)
        S = self.shares.shape[-1]
        ratio = (S * self.shares).log().expand(*value.shape, S)
        normal = Normal(torch.zeros_like(value), 1.0, validate_args=False)
        s = (S * torch.special.ndtr(value.double())).long().clamp(0, S - 1)
        return normal.log_prob(value) + ratio.gather(-1, s.unsqueeze(-1))[..., 0]

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape
        return self.from_standard(self.shares.new_empty(shape).normal_())

    def from_standard(self, noise: Tensor) -> Tensor:
        """The increasing function of a standard normal variable that has this distribution.

        :param torch.Tensor noise: Standard normal values, [...] followed by the batch shape.
        """
        shares = self.shares.double()
        S = shares.shape[-1]
        ends = torch.nn.functional.pad(shares.cumsum(-1), (1, 0))
        ends = (ends / ends[..., -1:]).expand(*noise.shape, S + 1)
        u = torch.special.ndtr(noise.double())
        s = torch.searchsorted(ends.contiguous(), u.unsqueeze(-1), right=True) - 1
        s = s.clamp(0, S - 1)
        low, high = ends.gather(-1, s)[..., 0], ends.gather(-1, s + 1)[..., 0]
        within = ((u - low) / (high - low)).clamp(0, 1)
        eps = torch.finfo(u.dtype).eps
        z = torch.special.ndtri(((s[..., 0] + within) / S).clamp(eps, 1 - eps))
        return z.to(noise.dtype)


class _Undifferentiable(torch.autograd.Function):
    """A value, with an error in place of derivatives by it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise NotImplementedError(
            "The fitted prior of z has jumps, which gradients of a guide's draws do not see. Call "
            "the model's reset_latent_prior() to train it, and fit the prior again afterwards."
        )


def balanced_draws(
    dim: int, like: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, int]:
    """Standard normal draws, as many for each of the C combinations of the coordinates' intervals.

    With random numbers of them, shares would be fitted to these. There are as many intervals as
    some 2000 draws allow.

    :param int dim: Number D of coordinates.
    :param torch.Tensor like: A tensor of the dtype and on the device of the draws.
    :param torch.Generator generator: Source of the draws, or None.
    :returns: The draws z [R, C, D], the combinations [C, D], and the number S of intervals.
    """
    S = min(_MOST_INTERVALS, int(_NUM_DRAWS ** (1 / dim) + 1e-9))
    number = torch.arange(S**dim, device=like.device)
    combinations = torch.stack([number // S**d % S for d in range(dim)], 1)
    R = _NUM_DRAWS // len(number)
    shape = (R, *combinations.shape)
    u = torch.rand(shape, dtype=torch.float64, device=like.device, generator=generator)
    if dim == 1:  # evenly spread within an interval, too
        u = (torch.arange(R, device=like.device).reshape(-1, 1, 1) + u) / R
    eps = torch.finfo(u.dtype).eps
    z = torch.special.ndtri(((combinations + u) / S).clamp(eps, 1 - eps))
    return z.to(like.dtype), combinations, S


def maximum_posterior_shares(
    log_p: Tensor, combinations: Tensor, num_intervals: int, weight: Tensor
) -> Tensor:
    """Shares of the intervals of each coordinate of z, [D, S], by EM.

    :param torch.Tensor log_p: Logarithms of the mean p(y_n | x_n, z) over z in each combination of
        intervals, [C, N].
    :param torch.Tensor combinations: The combinations, [C, D].
    :param int num_intervals: Number S of intervals.
    :param torch.Tensor weight: Weights of the rows, [N].
    """
    log_p, weight = log_p.double(), weight.double()
    possible = log_p.amax(0) > -math.inf
    log_p, weight = log_p[:, possible], weight[possible]
    D, S = combinations.shape[1], num_intervals
    shares = log_p.new_full((D, S), 1 / S)
    before = -math.inf
    for _ in range(_MOST_ITERATIONS):
        log_prior = shares.log().gather(1, combinations.T).sum(0)
        joint = log_p + log_prior.unsqueeze(-1)
        evidence = joint.logsumexp(0)
        value = (evidence @ weight + _PSEUDO_COUNT * shares.log().sum()).item()
        if value - before < _TOLERANCE * len(weight):
            break
        before = value
        # E step: expected numbers of data by combination. M step: their shares by interval.
        counts = (joint - evidence).exp() @ weight
        found = shares.new_full((D, S), _PSEUDO_COUNT)
        found.scatter_add_(1, combinations.T, counts.expand(D, -1))
        shares = found / found.sum(1, keepdim=True)
    return shares
