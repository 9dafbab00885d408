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

import warnings

import torch
from torch import Tensor

__all__ = ["quadratic_forms", "stable_cholesky", "whitened_conditional", "whitened_kl"]

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
    eye = torch.eye(len(Luu), dtype=Luu.dtype, device=Luu.device)
    # n is thousands, M hundreds: a product with the inverse is faster than n solves.
    A = Kfu @ torch.linalg.solve_triangular(Luu, eye, upper=False).mT
    C = u_scale_tril @ u_scale_tril.mT - eye
    return A @ u_loc.mT, Kff_diag.unsqueeze(-1) + quadratic_forms(A, C)


def quadratic_forms(A: Tensor, C: Tensor) -> Tensor:
    r"""Values :math:`a_n^\top C_r\, a_n` for all rows of A and all of R symmetric matrices.

    The derivative by A reuses the products C a of the values, so that a step has two large matrix
    products where the square of a norm :math:`\|S^\top a\|` takes three, and writes no other array
    of their size than those products. Second derivatives and ``vmap`` work; forward-mode
    differentiation does not.

    :param torch.Tensor A: [n, M].
    :param torch.Tensor C: Symmetric, [R, M, M]; its derivative is symmetric, too.
    :returns: [n, R].
    """
    return _QuadraticForms.apply(A, C)[0]


def _products(A: Tensor, C: Tensor) -> Tensor:
    """C_r a_n, [n, R, M]; by symmetry, the columns of all C_r side by side make one product."""
    columns = C.transpose(0, 1).reshape(C.shape[-1], -1)
    return (A @ columns).reshape(len(A), *C.shape[:2])


class _QuadraticForms(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        CA = _products(A, C)
        return (CA @ A.unsqueeze(-1)).squeeze(-1), CA

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx, grad: Tensor | None, _) -> tuple[Tensor | None, Tensor | None]:
        if grad is None:
            return None, None
        A, C, CA = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives: the products must know A and C
            CA = _products(A, C)
        grad_A = grad_C = None
        if ctx.needs_input_grad[0]:
            grad_A = ((2 * grad).unsqueeze(-2) @ CA).squeeze(-2)
        if ctx.needs_input_grad[1]:
            weighted = (grad.unsqueeze(-1) * A.unsqueeze(-2)).reshape(len(A), len(C) * A.shape[-1])
            grad_C = (A.mT @ weighted).reshape(C.shape[-1], *C.shape[:2]).transpose(0, 1)
        return grad_A, grad_C


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
