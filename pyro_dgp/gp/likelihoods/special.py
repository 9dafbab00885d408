"""Special functions that torch does not have, or not with exact derivatives."""

import math
from collections.abc import Callable
from typing import Any

import scipy.special
import torch
from torch import Tensor

__all__ = [
    "incomplete_beta",
    "log_gamma_width",
    "log_interval",
    "log_mean_exp",
    "log_ndtr",
    "with_scipy",
]

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


def incomplete_beta(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """I_x(a, b), the distribution function at x of a Beta distribution.

    :param torch.Tensor a: First parameter, positive.
    :param torch.Tensor b: Second parameter, positive.
    :param torch.Tensor x: Arguments between 0 and 1.
    """
    return _IncompleteBeta.apply(a, b, x)


class _IncompleteBeta(torch.autograd.Function):
    """Its derivative by x is the density; those by a and b are central differences."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, x)
        return with_scipy(scipy.special.betainc, a, b, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        a, b, x = given = [t.double() for t in ctx.saved_tensors]

        def slope(i: int) -> Tensor:
            if i == 2:
                log_x, log_y = (t.clamp_min(torch.finfo(t.dtype).tiny).log() for t in (x, 1 - x))
                log_beta = a.lgamma() + b.lgamma() - (a + b).lgamma()
                density = ((a - 1) * log_x + (b - 1) * log_y - log_beta).exp()
                return density.clamp_max(torch.finfo(x.dtype).max)  # 0 times infinity is NaN
            # The function changes with a large parameter as with its root.
            step = 1e-5 * given[i] / (1 + given[i]).sqrt()
            ends = ([*given[:i], given[i] + s, *given[i + 1 :]] for s in (step, -step))
            high, low = (with_scipy(scipy.special.betainc, *end) for end in ends)
            return (high - low) / (2 * step)

        return tuple(
            (gradient * slope(i)).sum_to_size(t.shape).to(t.dtype) if needed else None
            for i, (t, needed) in enumerate(
                zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True)
            )
        )


def log_gamma_width(shape: Tensor) -> Tensor:
    """Standard deviation w of a normal of which the Fourier transform, where it is 1e-13, is not
    below that of the logarithm of a gamma variable, Gamma(a + i t) / Gamma(a).

    :param torch.Tensor shape: Shape a.
    """
    return (5 + shape).rsqrt().clamp_max(0.4)


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
    ends = torch.broadcast_tensors(low, high)
    # In forward mode by plain operations: nested, custom functions would have derivatives of 0.
    # There is no public function that says whether it is on. And for files of traced programs.
    traced = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    if traced or getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0:
        return _interval(*ends)[0]
    return _LogInterval.apply(*ends)[0]


class _LogInterval(torch.autograd.Function):
    r"""log P with :math:`P = \Phi(b) - \Phi(a)`, and :math:`r_a = \phi(a) / P` and
    :math:`r_b = \phi(b) / P`, of which all derivatives are made:

    .. math::
        \partial_a \log P &= -r_a, & \partial_b \log P &= r_b, \\
        \partial_a r_a &= r_a (r_a - a), & \partial_b r_a &= -r_a r_b, \\
        \partial_a r_b &= r_a r_b, & \partial_b r_b &= -r_b (r_b + b).

    (Automatic differentiation takes three times as long as the values: it follows both branches.)
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _interval(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        a, b, r_a, r_b = ctx.saved_tensors
        by_value, by_r_a, by_r_b = (0.0 if g is None else g for g in gradients)
        by_a, by_b = -by_value * r_a, by_value * r_b
        if gradients[1] is not None or gradients[2] is not None:
            # At infinity r is 0, and so are its products.
            a, b = (x.clamp(-_FARTHEST, _FARTHEST) for x in (a, b))
            by_a = by_a + r_a * (by_r_a * (r_a - a) + by_r_b * r_b)
            by_b = by_b - r_b * (by_r_a * r_a + by_r_b * (r_b + b))
        return by_a, by_b


def _interval(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log P, phi(low) / P and phi(high) / P."""
    # On the left side, where Phi is small and its logarithm exact.
    flip = low + high > 0
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    tail = b < -1
    value, at_a, at_b = (
        torch.where(tail, in_tail, in_body)
        for in_tail, in_body in zip(
            _interval_in_tail(torch.where(tail, a, -2.0), torch.where(tail, b, -1.0)),
            _interval_in_body(torch.where(tail, -1.0, a), torch.where(tail, 0.0, b)),
            strict=True,
        )
    )
    return value, torch.where(flip, at_b, at_a), torch.where(flip, at_a, at_b)


def _interval_in_tail(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log P, phi(a) / P and phi(b) / P for a < b < 0."""
    a, b = a.clamp_min(-_FARTHEST), b.clamp_min(-_FARTHEST)
    at_a, at_b = (torch.special.erfcx(x * -(2**-0.5)) for x in (a, b))
    # log phi(b) - log phi(a), without a difference of squares.
    gap = 0.5 * (a - b) * (a + b)
    # P = Phi(b) (1 - Phi(a) / Phi(b)), Phi(x) = phi(x) sqrt(pi / 2) erfcx(-x / sqrt(2))
    tiny = torch.finfo(gap.dtype).tiny
    remaining = -torch.expm1(-(gap + (at_b / at_a).log()).clamp_min(tiny))
    value = at_b.log() + remaining.log() - 0.5 * b.square() - math.log(2)
    # Finite also where both ends are the same number.
    r_b = (2 / math.pi) ** 0.5 / (at_b * remaining.clamp_min(torch.finfo(gap.dtype).eps ** 2))
    return value, r_b * (-gap).exp(), r_b


def _interval_in_body(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log P, phi(a) / P and phi(b) / P for a < b around 0."""
    P = (torch.special.ndtr(b) - torch.special.ndtr(a)).clamp_min(torch.finfo(a.dtype).tiny)
    r_a, r_b = ((-0.5 * x.square()).exp() * (2 * math.pi) ** -0.5 / P for x in (a, b))
    return P.log(), r_a, r_b


def _log_ndtr_left(x: Tensor) -> Tensor:
    x = x.clamp_min(-_FARTHEST)
    return _log_erfcx(-x) - 0.5 * x.square() - math.log(2)


def _log_erfcx(x: Tensor) -> Tensor:
    return torch.special.erfcx(x / 2**0.5).log()
