r"""The whitened sparse conditional of a Gaussian process, in plain torch.

With inducing values :math:`u = L v`, :math:`L L^\top = k(Z, Z)` and :math:`q(v) = N(m, S S^\top)`,

.. math::
    a_x &= L^{-1} k(Z, x), \qquad C = S S^\top - I, \\
    q(f(x)) &= N\big(a_x^\top m,\; k(x, x) + a_x^\top C\, a_x\big), \\
    \mathrm{KL}(q(v)\,\|\,N(0, I))
      &= \tfrac12\big(\|S\|_F^2 + \|m\|^2 - M\big) - \sum_i \log |S_{ii}|.

Source: Hensman, Matthews and Ghahramani, "Scalable variational Gaussian process classification"
(2015), whitened as in Salimbeni and Deisenroth (2017).
"""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "CholeskyError",
    "WhitenedConditional",
    "stable_cholesky",
    "whitened_conditional",
    "whitened_kl",
    "whitened_rows",
]

_JITTER_FACTORS = (1.0, 10.0, 100.0, 1e3, 1e4)
# Rows that fit a core's cache with all intermediate results.
_ROWS = 1024
# Columns of a triangular matrix that are processed at once.
_BLOCK = 32


class CholeskyError(ValueError, ArithmeticError):
    """A matrix has no Cholesky factor: a wrong argument, or one that has diverged in training."""


def stable_cholesky(matrix: Tensor, jitter: float = 1e-6, name: str = "the matrix") -> Tensor:
    """Cholesky factor of ``matrix + jitter * mean(diagonal) * I``, with more jitter if needed.

    The jitter is relative to the mean of the diagonal and at least M times the dtype's epsilon, the
    order of the factorisation's own error. If it fails, 10, 100, 1000 and 10000 times the jitter
    are tried; success with one of these comes with a warning.

    :param torch.Tensor matrix: Symmetric positive semi-definite, [M, M].
    :param float jitter: Relative jitter of the first attempt.
    :param str name: Name of the matrix's owner, for messages.
    :returns: The lower-triangular factor, [M, M].
    :raises CholeskyError: If the matrix holds NaN or infinity, or every attempt fails.
    """
    scale = matrix.diagonal().mean()
    eye = _eye_like(matrix)
    base = max(jitter, len(matrix) * torch.finfo(matrix.dtype).eps)
    for factor in _JITTER_FACTORS:
        tril, info = torch.linalg.cholesky_ex(matrix + (base * factor * scale) * eye)
        if info.item() == 0:
            if factor > 1:
                warnings.warn(
                    f"{name}: the Cholesky decomposition of the inducing inputs' kernel matrix "
                    "needed more jitter; float64 or fewer inducing inputs need less.",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return tril
    if not bool(torch.isfinite(matrix).all()):
        raise CholeskyError(
            f"{name}: the kernel matrix of the inducing inputs holds NaN or infinity. A kernel "
            "hyperparameter or an inducing input has diverged: lower the learning rate."
        )
    raise CholeskyError(
        f"{name}: the kernel matrix of the inducing inputs has no Cholesky factor, even with a "
        f"relative jitter of {base * _JITTER_FACTORS[-1]:.0e}. Use float64, fewer inducing inputs, "
        "a larger `jitter` or, in training, a lower learning rate."
    )


def whitened_conditional(
    Luu: Tensor, Kfu: Tensor, Kff_diag: Tensor, u_loc: Tensor, u_scale_tril: Tensor
) -> tuple[Tensor, Tensor]:
    """Marginals q(f(x)) of R independent GPs that share a kernel and M inducing inputs.

    :param torch.Tensor Luu: Cholesky factor of the inducing inputs' kernel matrix, [M, M].
    :param torch.Tensor Kfu: Cross-covariances, [n, M].
    :param torch.Tensor Kff_diag: Prior variances, [n].
    :param torch.Tensor u_loc: Means of the whitened inducing values, [R, M].
    :param torch.Tensor u_scale_tril: Square roots of their covariances, [R, M, M].
    :returns: Means and variances, [n, R] each. Variances may be slightly negative by rounding.
    """
    loc, gain = _Marginals.apply(Kfu, Luu, u_loc, u_scale_tril)[:2]
    return loc, Kff_diag.unsqueeze(-1) + gain


class WhitenedConditional:
    r"""The function :func:`whitened_conditional` of k(x, Z) and k(x, x), for many rows.

    Products with triangular matrices skip the zeros. There are no derivatives.

    :param torch.Tensor Luu: Cholesky factor L of the inducing inputs' kernel matrix, [M, M].
    :param torch.Tensor u_loc: Means of the whitened inducing values, [R, M].
    :param torch.Tensor u_scale_tril: Square roots of their covariances, [R, M, M].
    """

    def __init__(self, Luu: Tensor, u_loc: Tensor, u_scale_tril: Tensor) -> None:
        self._Luu, self._u_loc, M = Luu, u_loc, len(Luu)
        # A few columns of all S_r side by side, from the diagonal on.
        self._columns = []
        for start in range(0, M, _BLOCK):
            columns = u_scale_tril[:, start:, start : start + _BLOCK]
            self._columns.append((start, columns.transpose(0, 1).reshape(M - start, -1)))

    @torch.no_grad()
    def __call__(self, Kfu: Tensor, Kff_diag: Tensor) -> tuple[Tensor, Tensor]:
        """
        :param torch.Tensor Kfu: Cross-covariances, [n, M].
        :param torch.Tensor Kff_diag: Prior variances, [n].
        :returns: Means and variances, [n, R] each.
        """
        parts = [self._of(k) for k in Kfu.split(_ROWS)]
        loc, form = (torch.cat(part) for part in zip(*parts, strict=True))
        return loc, Kff_diag.unsqueeze(-1) + form

    def _of(self, Kfu: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and |S_r^T a|^2 - |a|^2, of a few rows."""
        A = whitened_rows(self._Luu, Kfu)
        form = -A.square().sum(-1, keepdim=True)
        for start, columns in self._columns:
            product = A[:, start:] @ columns
            form = form + product.square_().reshape(len(A), len(self._u_loc), -1).sum(-1)
        return A @ self._u_loc.mT, form


class _Marginals(torch.autograd.Function):
    r"""Means :math:`a_n^\top m_r` and quadratic forms :math:`a_n^\top C_r\, a_n`, [n, R] each.

    Given the derivatives :math:`\bar\mu` by the means and :math:`\bar v` by the forms, the other
    derivatives reuse the products C a. They need R large products for G and one for :math:`\bar k`:

    .. math::
        G_r &= \sum_n \bar v_{nr}\, a_n a_n^\top, \qquad \bar S_r = 2\, G_r S_r, \qquad
        \bar m_r = \sum_n \bar\mu_{nr}\, a_n, \\
        \bar L &= -L^{-\top} \sum_n \bar a_n a_n^\top
          = -L^{-\top} \sum_r \big(2\, C_r\, G_r + m_r\, \bar m_r^\top\big), \\
        \bar a_n &= \sum_r 2\, \bar v_{nr}\, C_r\, a_n + \bar\mu_{nr}\, m_r, \qquad
        \bar k_n = L^{-\top} \bar a_n.

    That makes 2 R + 2 products of size n M M per step, compared with 3 R + 3 by solves and norms.
    Second derivatives and ``vmap`` work; forward-mode differentiation does not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(Kfu: Tensor, Luu: Tensor, u_loc: Tensor, S: Tensor) -> tuple[Tensor, ...]:
        factors = _factors(Kfu, Luu, S)
        A, _, CA = factors
        loc, form = A @ u_loc.mT, (A.unsqueeze(-2) @ CA.mT).squeeze(-2)
        # Under vmap both must be batched: an output that is not would get wrong derivatives.
        return loc + torch.zeros_like(form), form + torch.zeros_like(loc), *factors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)  # arrays of zeros for A and C A would be large
        ctx.save_for_backward(*inputs, *output[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        Kfu, Luu, u_loc, S, *factors = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives: the factors must depend on the inputs
            factors = _factors(Kfu, Luu, S)
        A, C, CA = factors
        by_loc, by_form = (
            A.new_zeros(len(A), len(S)) if given is None else given for given in gradients[:2]
        )
        by_Kfu = by_Luu = by_S = None
        # Products with the inverse are faster than solves, and accurate enough here. For A they are
        # not: in float32 their errors would exceed small variances.
        W = torch.linalg.solve_triangular(Luu, _eye_like(Luu), upper=False, left=False)
        if ctx.needs_input_grad[0]:
            by_A = by_loc @ u_loc
            for r in range(len(S)):
                by_A = torch.addcmul(by_A, by_form[:, r : r + 1], CA[:, r], value=2)
            by_Kfu = by_A @ W
        by_u_loc = by_loc.mT @ A
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[3]:
            G = _weighted_squares(A, by_form)
            by_S = 2 * G @ S
            if ctx.needs_input_grad[1]:
                by_Luu = -(W.mT @ (2 * (C @ G).sum(0) + u_loc.mT @ by_u_loc)).tril()
        return by_Kfu, by_Luu, by_u_loc, by_S


def _factors(Kfu: Tensor, Luu: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows a_n, [n, M]; C_r, [R, M, M]; and the rows C_r a_n, [n, R, M]."""
    A = whitened_rows(Luu, Kfu)
    C = S @ S.mT - _eye_like(Luu)
    columns = C.transpose(0, 1).reshape(len(Luu), -1)  # side by side, R products are one
    return A, C, (A @ columns).reshape(len(A), *S.shape[:2])


def whitened_rows(Luu: Tensor, Kfu: Tensor) -> Tensor:
    """The rows :math:`a_n = L^{-1} k_n`, [n, M]."""
    # From the right, MKL solves in half the time in float32; products need contiguous rows again.
    return torch.linalg.solve_triangular(Luu.mT, Kfu, upper=True, left=False).contiguous()


def _eye_like(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def _weighted_squares(A: Tensor, weights: Tensor) -> Tensor:
    """Sums over n of weights_nr a_n a_n^T, [R, M, M]."""
    M, R = A.shape[1], weights.shape[1]
    # A few rows at a time: allocating an array [n, R, M] in every step would be slow.
    parts = (
        a.mT @ (w.unsqueeze(-1) * a.unsqueeze(-2)).reshape(len(a), R * M)
        for a, w in zip(A.split(_ROWS), weights.split(_ROWS), strict=True)
    )
    return functools.reduce(torch.add, parts).reshape(M, R, M).transpose(0, 1)


def whitened_kl(u_loc: Tensor, u_scale_tril: Tensor) -> Tensor:
    """KL( N(u_loc, u_scale_tril u_scale_tril^T) || N(0, I) ).

    :param torch.Tensor u_loc: Means, [..., M].
    :param torch.Tensor u_scale_tril: Lower-triangular square roots of the covariances, [..., M, M];
        their diagonals may be negative.
    :returns: Divergences, [...].
    """
    trace = u_scale_tril.square().sum((-2, -1))
    mahalanobis = u_loc.square().sum(-1)
    half_log_det = u_scale_tril.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return 0.5 * (trace + mahalanobis - u_loc.shape[-1]) - half_log_det
