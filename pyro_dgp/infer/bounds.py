r"""From log weights to a bound, and the derivatives of the bound by them; independent of Pyro.

With M sets of K importance weights per datum,

.. math::
    L = \frac1M \sum_m \Big[ \beta\, \frac1K \sum_k \log w_{mk}
        + \frac{1 - \beta}{1 - \alpha} \log \frac1K \sum_k w_{mk}^{1 - \alpha} \Big],

which is the IWAE bound (:math:`\alpha = \beta = 0, M = 1`), MIWAE (M > 1), CIWAE
(:math:`0 < \beta < 1`), VR-IWAE (:math:`0 < \alpha < 1`) or the ordinary ELBO (:math:`\beta = 1`
or K = 1). Sources: Burda et al. (2015); Rainforth et al. (2018), section 5; Daudel et al. (2023).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Bound", "Coefficients", "WeightDiagnostics", "pareto_k", "weight_diagnostics"]


@dataclass(frozen=True)
class Coefficients:
    r"""Weights of the samples in the gradient, [M K, number of data] each.

    :param torch.Tensor model: :math:`\partial L / \partial \log w`, for everything that log p
        depends on.
    :param torch.Tensor weights: Normalised importance weights, :math:`\tilde w = w^{1 - \alpha} /
        \sum_k w^{1 - \alpha}`.
    :param float vi_share: Weight of the ordinary ELBO per sample, :math:`\beta / (M K)`.
    :param float iw_share: Weight of the importance-weighted part per set, :math:`(1 - \beta) / M`.
    :param float power: Exponent of the weights, :math:`1 - \alpha`.
    :param torch.Tensor signal: Factor of the score of each draw; None without scores.
    """

    model: Tensor
    weights: Tensor
    vi_share: float
    iw_share: float
    power: float = 1.0
    signal: Tensor | None = None

    def guide(self, doubly: Tensor | float = 0.0) -> Tensor:
        r"""The weight of the gradient that reaches the guide.

        :math:`\partial L / \partial \log w_k` with the ordinary gradient. With the doubly
        reparameterised one, the score of q, times its :math:`\partial L/\partial\log w_k`, becomes
        a derivative by z_k of that factor, which leaves
        :math:`\partial L/\partial\log w_k - \partial^2 L/\partial(\log w_k)^2` for it: from
        :math:`\tilde w_k` to :math:`\alpha \tilde w_k + (1 - \alpha) \tilde w_k^2`.

        :param doubly: 1 for the doubly reparameterised gradient and 0 for the ordinary one; between
            them, the power to which ``poutine.scale`` raises q.
        """
        less = self.power * doubly * (1 - self.weights)
        return self.vi_share + self.iw_share * self.weights * (1 - less)

    def factor(self, doubly: Tensor | float) -> Tensor:
        """The factor that turns a gradient of log p, weighted by ``model``, into the guide's.

        It is 0 where ``model`` is 0, as the gradient is there.
        """
        return torch.where(self.model == 0, 0.0, self.guide(doubly) / self.model)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Coefficients":
        """The coefficients of a part of the samples, or in another shape."""
        signal = None if self.signal is None else function(self.signal)
        return replace(
            self, model=function(self.model), weights=function(self.weights), signal=signal
        )


@dataclass(frozen=True)
class Bound:
    """A bound as a function of log weights.

    :param int num_particles: Number M of sets of weights.
    :param int K: Number of weights in each set, whose mean is in one logarithm.
    :param float beta: Share of the ordinary ELBO.
    :param bool piwae: The model's target is the bound with one set of M K weights; the guide's is
        the one with M sets of K. Source: Rainforth et al. (2018), section 5.3.
    :param float alpha: Order of the bound, from 0 (importance weights) to below 1 (nearly equal
        weights).
    :raises ValueError: If ``beta`` or ``alpha`` is out of range.
    :raises NotImplementedError: If ``alpha`` and ``piwae`` are both given.
    """

    num_particles: int
    K: int
    beta: float
    piwae: bool
    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.beta, Real) or not 0 <= self.beta <= 1:
            raise ValueError(f"beta must be between 0 and 1, but it is {self.beta}.")
        if not isinstance(self.alpha, Real) or not 0 <= self.alpha < 1:
            raise ValueError(
                f"alpha must be at least 0 and below 1, but it is {self.alpha}. Where alpha is 1 "
                "the bound is the ordinary ELBO: beta=1."
            )
        if self.alpha and self.piwae:
            raise NotImplementedError(
                "alpha and piwae together have no gradient that is known; leave one of them out."
            )

    def value(self, log_w: Tensor) -> Tensor:
        """
        :param torch.Tensor log_w: [M K, number of data].
        :returns: The bound per datum, [number of data]; with ``piwae``, the one for the model.
        """
        sets = self.sets(log_w)
        if self.piwae:
            sets = log_w.unsqueeze(0)
        power = 1 - self.alpha
        log_mean = ((power * sets).logsumexp(1) - math.log(sets.shape[1])) / power
        value = (1 - self.beta) * log_mean.mean(0)
        # Not with a factor 0, which makes NaN of the -inf of a weight that is exactly 0.
        return value + self.beta * log_w.mean(0) if self.beta else value

    def coefficients(self, log_w: Tensor) -> Coefficients:
        """The weight of every sample in the gradient.

        :param torch.Tensor log_w: [M K, number of data].
        """
        power = 1 - self.alpha
        weights = (power * self.sets(log_w)).softmax(1).flatten(0, 1)
        vi_share = self.beta / (self.num_particles * self.K)
        iw_share = (1 - self.beta) / self.num_particles
        model = iw_share * weights
        if self.piwae:
            # The guide's factor divides by this, so it must not underflow; the floor is below
            # rounding.
            floor = torch.where(log_w == -math.inf, 0.0, torch.finfo(log_w.dtype).eps ** 2)
            model = (1 - self.beta) * log_w.softmax(0).maximum(floor)
        return Coefficients(vi_share + model, weights, vi_share, iw_share, power)

    def signals(self, log_w: Tensor) -> Tensor:
        r"""The bound minus its value with each log weight replaced by the mean of the others.

        This baseline does not depend on the draw whose score it multiplies, so it adds no bias and
        removes most of the noise. Source: Mnih and Rezende (2016), eq. 10.

        :param torch.Tensor log_w: [M K, number of data], with K of at least 2.
        :returns: [M K, number of data].
        """
        sets, power = self.sets(log_w), 1 - self.alpha
        # Not the sum minus the weight itself, which is NaN for one that is exactly 0.
        others = _of_others(sets, torch.cumsum, torch.add, 0.0) / (self.K - 1)
        rest = _of_others(power * sets, torch.logcumsumexp, torch.logaddexp, -math.inf)
        rest = rest.logaddexp(power * others)
        signal = (1 - self.beta) / power * ((power * sets).logsumexp(1, keepdim=True) - rest)
        if self.beta:
            signal = signal + self.beta * (sets.mean(1, keepdim=True) - others)
        # Where all other weights are 0, there is no baseline, and nothing is learned.
        return signal.nan_to_num(0.0, 0.0, 0.0).flatten(0, 1) / self.num_particles

    def sets(self, log_w: Tensor) -> Tensor:
        """The M sets of K log weights.

        :param torch.Tensor log_w: [M K, number of data].
        :returns: [M, K, number of data].
        """
        return log_w.reshape(self.num_particles, self.K, *log_w.shape[1:])


def _of_others(
    x: Tensor,
    scan: Callable[[Tensor, int], Tensor],
    combine: Callable[[Tensor, Tensor], Tensor],
    empty: float,
) -> Tensor:
    """For each entry of dimension 1, the total of all others there."""
    none = x.new_full((len(x), 1, *x.shape[2:]), empty)
    before = torch.cat([none, scan(x, 1)[:, :-1]], 1)
    after = torch.cat([none, scan(x.flip(1), 1)[:, :-1]], 1).flip(1)
    return combine(before, after)


class WeightDiagnostics(NamedTuple):
    """Diagnostics of the importance weights, for each of the M sets and each datum.

    :param torch.Tensor effective_sample_size: 1 / sum of squared normalised weights, from 1 (one
        sample has all the weight) to K (all have the same).
    :param torch.Tensor largest_weight: The largest normalised weight, from 1/K to 1.
    :param torch.Tensor pareto_k: The shape of the generalised Pareto distribution of the largest
        weights, whose moments exist up to 1 / pareto_k. Below 0.25 the signal-to-noise ratio of the
        doubly reparameterised gradient rises like the root of K, above more slowly or not at all.
        Below 0.5 the weights have a variance; up to 0.7 their mean is estimated well by a feasible
        number of samples; above, more samples hardly help: the tails of the guide are too light, or
        it misses a mode. NaN where K is below 21, which leaves fewer than five weights for the fit.
        Source: Vehtari et al. (2024).
    """

    effective_sample_size: Tensor
    largest_weight: Tensor
    pareto_k: Tensor

    def advice(self) -> str:
        """A summary of the numbers in one or two sentences."""
        k, size = self.pareto_k, self.effective_sample_size
        text = f"Effective sample size {size.mean():.1f} on average, {size.min():.1f} at least."
        if k.isnan().all():
            return f"{text} K is too small for Pareto k."
        bad, number = int((k > 0.7).sum()), k.numel()
        if not bad and k.max() == -math.inf:
            return f"{text} The largest weights are equal: all of them can be relied upon."
        if not bad:
            return f"{text} Pareto k is at most {k.max():.2f}: the weights can be relied upon."
        return (
            f"{text} Pareto k is above 0.7 for {bad} of {number}: there more samples hardly help. "
            "Use a guide with wider tails, or a richer family."
        )


def weight_diagnostics(log_w: Tensor) -> WeightDiagnostics:
    """
    :param torch.Tensor log_w: [M, K, ...].
    :returns: Three tensors [M, ...].
    """
    weights = log_w.softmax(1)
    return WeightDiagnostics(
        1 / weights.square().sum(1), weights.amax(1), pareto_k(log_w.movedim(1, 0))
    )


def pareto_k(log_w: Tensor) -> Tensor:
    """The shape of a generalised Pareto distribution fitted to the largest of K weights.

    The posterior mean of Zhang and Stephens (2009), shrunk towards 1/2 as if ten further weights
    had that shape (Vehtari et al. 2024, "Pareto smoothed importance sampling").

    :param torch.Tensor log_w: [K, ...].
    :returns: [...]; NaN for fewer than five weights, -inf where the largest ones are equal.
    """
    K = len(log_w)
    size = math.ceil(min(0.2 * K, 3 * math.sqrt(K)))
    if size < 5:
        return log_w.new_full(log_w.shape[1:], math.nan)
    w = (log_w - log_w.amax(0)).double().exp().sort(0).values
    x = w[-size:] - w[-size - 1]  # ascending, [size, ...]
    number = 30 + math.isqrt(size)
    j = torch.arange(1, number + 1, device=x.device, dtype=x.dtype).reshape(
        -1, *[1] * (x.dim() - 1)
    )
    # A quarter of them are below this one. Weights may be equal: then the smallest excess of all.
    quarter = x[int(size / 4 + 0.5) - 1]
    positive = torch.where(x > 0, x, math.inf).amin(0)
    quarter = torch.where(quarter > 0, quarter, positive)
    # Points theta = -k / sigma that the mean is taken over, with their profile likelihoods.
    theta = 1 / x[-1] + (1 - (number / (j - 0.5)).sqrt()) / (3 * quarter)
    k = torch.log1p(-theta.unsqueeze(1) * x).mean(1)
    log_likelihood = size * ((-theta / k).log() - k - 1)
    theta = (log_likelihood.softmax(0) * theta).sum(0)
    k = torch.log1p(-theta * x).mean(0)
    k = (size * k + 10 * 0.5) / (size + 10)
    return torch.where(x[-1] == 0, -math.inf, k).to(log_w.dtype)
