"""Moments of draws that arrive in parts, and signal-to-noise ratios computed from them."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Moments"]


@dataclass
class Moments:
    """Number of draws, their mean, and sums of powers of deviations from it, entry by entry.

    Source of :meth:`__add__`: Pebay (2008), eqs. 1.5 and 2.1.
    """

    count: int
    mean: Tensor
    m2: Tensor
    m3: Tensor
    m4: Tensor
    #: Relative rounding error of the draws.
    eps: float = 0.0

    @classmethod
    def of(cls, draws: Tensor) -> "Moments":
        """
        :param torch.Tensor draws: The draws, [number of draws, ...].
        """
        eps, draws = torch.finfo(draws.dtype).eps, draws.double()
        mean = draws.mean(0)
        # Equal draws have no deviation; rounding of their mean would give them one.
        mean = torch.where((draws == draws[0]).all(0), draws[0], mean)
        d = draws - mean
        return cls(len(draws), mean, *((d**p).sum(0) for p in (2, 3, 4)), eps=eps)

    def __add__(self, other: "Moments") -> "Moments":
        a, b = self, other
        n, d = a.count + b.count, b.mean - a.mean
        share = b.count / n
        product = a.count * share
        m2 = a.m2 + b.m2 + d**2 * product
        m3 = a.m3 + b.m3 + d**3 * product * (a.count - b.count) / n
        m3 = m3 + 3 * d * (a.count * b.m2 - b.count * a.m2) / n
        square = a.count**2 - a.count * b.count + b.count**2
        m4 = a.m4 + b.m4 + d**4 * product * square / n**2
        m4 = m4 + 6 * d**2 * (a.count**2 * b.m2 + b.count**2 * a.m2) / n**2
        m4 = m4 + 4 * d * (a.count * b.m3 - b.count * a.m3) / n
        return Moments(n, a.mean + d * share, m2, m3, m4, max(a.eps, b.eps))

    @property
    def is_constant(self) -> Tensor:
        """Whether an entry is the same in every draw, up to rounding."""
        return self.m2 <= self.count * (4 * self.eps * self.mean).square()

    @property
    def std(self) -> Tensor:
        """Standard deviation, with Bessel's correction."""
        return (self.m2 / (self.count - 1)).sqrt()

    @property
    def snr(self) -> Tensor:
        """Absolute mean over standard deviation."""
        # An entry that never has a gradient has no signal either.
        return torch.where(self.mean == 0, 0.0, self.mean.abs() / self.std)

    @property
    def squared_snr(self) -> Tensor:
        """The unbiased estimate of the squared ratio."""
        q = self.count
        return (q - 3) / (q - 1) * self.snr.square() - 1 / q

    @property
    def snr_error(self) -> Tensor:
        r"""Standard error of mean / std, and of its absolute value, by the delta method.

        With skewness g1 and kurtosis g2 of a draw and ratio r,
        :math:`\sqrt{(1 - r\,g_1 + r^2 (g_2 - 1) / 4) / Q}`.
        """
        sd = (self.m2 / self.count).sqrt()
        skewness = self.m3 / self.count / sd**3
        kurtosis = self.m4 / self.count / sd**4
        r = self.mean / sd
        variance = 1 - r * skewness + r.square() * (kurtosis - 1) / 4
        return torch.where(self.m2 == 0, 0.0, (variance.clamp(min=0) / self.count).sqrt())
