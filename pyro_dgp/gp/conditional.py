r"""The whitened sparse conditional of a Gaussian process, in plain torch.

With inducing values :math:`u = L v`, :math:`L L^\top = k(Z, Z)` and :math:`q(v) = N(m, S S^\top)`,

.. math::
    A &= L^{-1} k(Z, X), \\
    q(f(x)) &= N\big(A_x^\top m,\; k(x, x) - \|A_x\|^2 + \|S^\top A_x\|^2\big), \\
    \mathrm{KL}(q(v)\,\|\,N(0, I))
      &= \tfrac12\big(\|S\|_F^2 + \|m\|^2 - M\big) - \sum_i \log |S_{ii}|.

Source: Hensman, Matthews and Ghahramani, "Scalable variational Gaussian process classification"
(2015), whitened as in Salimbeni and Deisenroth (2017).
"""

import warnings

import torch
from torch import Tensor

__all__ = ["stable_cholesky", "whitened_conditional", "whitened_kl"]

_JITTER_FACTORS = (1.0, 10.0, 100.0, 1e3, 1e4)


def stable_cholesky(matrix: Tensor, jitter: float = 1e-6, name: str = "the matrix") -> Tensor:
    """Cholesky factor of ``matrix + jitter * mean(diagonal) * I``, with more jitter where needed.

    The jitter is relative to the mean of the diagonal and never below M units of rounding of the
    dtype, the order of the factorisation's own error. A failure is retried with 10, 100, 1000 and
    10000 times the jitter; a retry that succeeds warns.

    :param torch.Tensor matrix: Symmetric positive semi-definite, [M, M].
    :param float jitter: Relative jitter of the first attempt.
    :param str name: What the matrix belongs to, for messages.
    :returns: The lower-triangular factor, [M, M].
    :raises ValueError: If the matrix holds NaN or infinity, or every attempt fails.
    """
    scale = matrix.diagonal().mean()
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
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
        raise ValueError(
            f"{name}: the kernel matrix of the inducing inputs holds NaN or infinity. A kernel "
            "hyperparameter or an inducing input has diverged: lower the learning rate."
        )
    raise ValueError(
        f"{name}: the kernel matrix of the inducing inputs has no Cholesky factor, even with a "
        f"relative jitter of {base * _JITTER_FACTORS[-1]:.0e}. Use float64, fewer inducing inputs "
        "or a larger `jitter`."
    )


def whitened_conditional(
    Luu: Tensor, Kuf: Tensor, Kff_diag: Tensor, u_loc: Tensor, u_scale_tril: Tensor
) -> tuple[Tensor, Tensor]:
    """Marginals q(f(x)) of R independent GPs that share a kernel and M inducing inputs.

    :param torch.Tensor Luu: Cholesky factor of the inducing inputs' kernel matrix, [M, M].
    :param torch.Tensor Kuf: Cross-covariances, [M, n].
    :param torch.Tensor Kff_diag: Prior variances, [n].
    :param torch.Tensor u_loc: Means of the whitened inducing values, [R, M].
    :param torch.Tensor u_scale_tril: Square roots of their covariances, [R, M, M].
    :returns: Means and variances, [n, R] each. Variances may be slightly negative by rounding.
    """
    A = torch.linalg.solve_triangular(Luu, Kuf, upper=False)  # [M, n]
    loc = A.mT @ u_loc.mT
    StA = u_scale_tril.mT @ A  # [R, M, n]
    # A norm has fewer passes over [R, M, n] in its derivative than a sum of squares.
    var = (Kff_diag - A.square().sum(0)) + torch.linalg.vector_norm(StA, dim=-2).square()
    return loc, var.mT


def whitened_kl(u_loc: Tensor, u_scale_tril: Tensor) -> Tensor:
    """KL( N(u_loc, u_scale_tril u_scale_tril^T) || N(0, I) ).

    :param torch.Tensor u_loc: [..., M].
    :param torch.Tensor u_scale_tril: Lower triangular, [..., M, M]; its diagonal may be negative.
    :returns: [...].
    """
    trace = u_scale_tril.square().sum((-2, -1))
    mahalanobis = u_loc.square().sum(-1)
    half_log_det = u_scale_tril.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return 0.5 * (trace + mahalanobis - u_loc.shape[-1]) - half_log_det
