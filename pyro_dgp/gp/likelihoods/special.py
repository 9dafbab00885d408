"""Special functions that torch does not have, or not with exact derivatives."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["log_interval", "log_mean_exp", "log_ndtr", "with_scipy"]

# Beyond this, squares overflow in float32.
_FARTHEST = 1e15


def with_scipy(function: Callable, *arguments: Tensor) -> Tensor:
    """A SciPy function of tensors, on their device and in their dtype; without derivatives.

    :param function: Elementwise function, such as ``scipy.special.betainc``.
    :param arguments: Tensors that can be broadcast.
    """
    like = arguments[0]
    arrays = [a.detach().double().cpu().numpy() for a in arguments]
    return torch.as_tensor(function(*arrays), dtype=like.dtype, device=like.device)


def log_mean_exp(x: Tensor) -> Tensor:
    """Logarithm of the mean of exp(x) over the first dimension."""
    return x.logsumexp(0) - math.log(len(x))


def log_ndtr(x: Tensor) -> Tensor:
    """log Phi(x), with derivatives that are exact even far in the tail.

    (Those of ``torch.special.log_ndtr`` are differences of large numbers there.)

    :param torch.Tensor x: Arguments, of any shape.
    """
    tail = x < -1
    left, right = torch.where(tail, x, -1.0), torch.where(tail, 0.0, x)
    return torch.where(tail, _log_ndtr_left(left), (-0.5 * torch.erfc(right / 2**0.5)).log1p())


def log_interval(low: Tensor, high: Tensor) -> Tensor:
    """log(Phi(high) - Phi(low)), also far in the tails.

    :param torch.Tensor low: Lower ends, of any shape.
    :param torch.Tensor high: Upper ends, above the lower ones.
    """
    # On the left side, where Phi is small and its logarithm exact.
    flip = low + high > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    tail = high < -1
    a, b = torch.where(tail, low, -2.0), torch.where(tail, high, -1.0)
    a, b = a.clamp_min(-_FARTHEST), b.clamp_min(-_FARTHEST)
    # log Phi(b) - log Phi(a), without a difference of squares.
    gap = 0.5 * (a - b) * (a + b) + _log_erfcx(-b) - _log_erfcx(-a)
    tiny = torch.finfo(gap.dtype).tiny
    in_tail = _log_ndtr_left(b) + (-torch.expm1(-gap.clamp_min(tiny))).log()
    a, b = torch.where(tail, -1.0, low), torch.where(tail, 0.0, high)
    in_body = (torch.special.ndtr(b) - torch.special.ndtr(a)).clamp_min(tiny).log()
    return torch.where(tail, in_tail, in_body)


def _log_ndtr_left(x: Tensor) -> Tensor:
    x = x.clamp_min(-_FARTHEST)
    return _log_erfcx(-x) - 0.5 * x.square() - math.log(2)


def _log_erfcx(x: Tensor) -> Tensor:
    return torch.special.erfcx(x / 2**0.5).log()
