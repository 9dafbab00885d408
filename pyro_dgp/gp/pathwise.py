r"""Draws of whole functions from a sparse variational GP, in plain torch.

A draw of the prior in random features, corrected to agree with drawn inducing values:

.. math::
    f(x) = \varphi(x)^\top w + a_x^\top \big(v - L^{-1} \Phi_Z w\big), \qquad
    w \sim N(0, I), \quad v \sim q(v) = N(m, S S^\top),

with :math:`a_x = L^{-1} k(Z, x)` as in :mod:`~pyro_dgp.gp.conditional`. Its marginals are those of
q(f) if :math:`\varphi(x)^\top \varphi(x')` is :math:`k(x, x')`. That is exact for x = x'; elsewhere
the error is of order one over the square root of the number of features.

Sources: Wilson et al. (2020), "Efficiently sampling functions from Gaussian process posteriors";
Rahimi and Recht (2007) for the features; Sutherland and Schneider (2015) for pairs of them.
"""

import pyro.contrib.gp.kernels as pyro_kernels
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

__all__ = ["features", "function_values", "unit_frequencies"]

# Degrees of freedom of the frequencies' distribution, 2 nu; None for a normal distribution.
_FREEDOM = {
    pyro_kernels.RBF: None,
    pyro_kernels.Exponential: 1,
    pyro_kernels.Matern32: 3,
    pyro_kernels.Matern52: 5,
}


def unit_frequencies(
    kernel: Kernel, number: int, generator: torch.Generator | None = None
) -> Tensor:
    """Draws from the spectral density of a kernel with lengthscales 1.

    For a Matérn kernel it is a multivariate Student-t distribution with 2 nu degrees of freedom.

    :param ~pyro.contrib.gp.kernels.Kernel kernel: RBF or Matérn kernel, of Pyro or of this package.
    :param int number: Number of draws.
    :param torch.Generator generator: Source of the draws, on the kernel's device.
    :returns: [number, kernel.input_dim].
    :raises NotImplementedError: If the kernel is of another kind.
    """
    kinds = [freedom for kind, freedom in _FREEDOM.items() if isinstance(kernel, kind)]
    if not kinds:
        raise NotImplementedError(
            f"Functions cannot be drawn from a GP with a {type(kernel).__name__} kernel: its "
            "spectral density is not known here; use an RBF, Matern12, Matern32 or Matern52 kernel."
        )
    like = kernel.lengthscale.detach()
    options = {"dtype": like.dtype, "device": like.device, "generator": generator}
    frequencies = torch.randn(number, kernel.input_dim, **options)
    if kinds[0] is not None:
        chi2 = torch.randn(number, kinds[0], **options).square().sum(1, keepdim=True)
        frequencies = frequencies * (kinds[0] / chi2).sqrt()
    return frequencies


def features(kernel: Kernel, frequencies: Tensor, x: Tensor) -> Tensor:
    """Cosines and sines whose inner products have the kernel as their expectation.

    :param ~pyro.contrib.gp.kernels.Kernel kernel: The kernel.
    :param torch.Tensor frequencies: Frequencies for lengthscales 1, [F / 2, D].
    :param torch.Tensor x: Inputs, [..., D].
    :returns: Features, [..., F].
    """
    flat = kernel._slice_input(x.reshape(-1, x.shape[-1])) / kernel.lengthscale
    angles = flat @ frequencies.mT
    scale = (kernel.variance / len(frequencies)).sqrt()
    found = scale * torch.cat([angles.cos(), angles.sin()], -1)
    return found.reshape(*x.shape[:-1], -1)


def function_values(
    prior_at_x: Tensor,
    prior_at_Z: Tensor,
    A: Tensor,
    Luu: Tensor,
    u_loc: Tensor,
    u_scale_tril: Tensor,
    noise: Tensor,
) -> Tensor:
    r"""The values at x of functions drawn from q.

    :param torch.Tensor prior_at_x: Features :math:`\varphi(x)`, [..., B, F].
    :param torch.Tensor prior_at_Z: Features :math:`\Phi_Z` of the inducing inputs, [M, F].
    :param torch.Tensor A: Rows :math:`a_x`, [..., B, M].
    :param torch.Tensor Luu: Cholesky factor L, [M, M].
    :param torch.Tensor u_loc: Means m of the R GPs' inducing values, [R, M].
    :param torch.Tensor u_scale_tril: Square roots S of their covariances, [R, M, M].
    :param torch.Tensor noise: Standard normal draws, [..., B, (F + M) R], one vector per function;
        with 1 in place of B if one function has all rows.
    :returns: Values, [..., B, R].
    """
    (M, F), R = prior_at_Z.shape, len(u_loc)
    w = noise[..., : F * R].reshape(*noise.shape[:-1], F, R)
    e = noise[..., F * R :].reshape(*noise.shape[:-1], R, M)
    v = u_loc + torch.einsum("rmk,...rk->...rm", u_scale_tril, e)
    # L^-1 Phi_Z, the same for all functions.
    moved = torch.linalg.solve_triangular(Luu, prior_at_Z, upper=False)
    update = v.mT - moved @ w
    return _by_row(prior_at_x, w) + _by_row(A, update)


def _by_row(x: Tensor, weights: Tensor) -> Tensor:
    """Rows [..., B, F] times a matrix for each row, [..., B, F, R], or for all, [..., 1, F, R]."""
    if weights.shape[-3] == 1:  # not expanded over the rows, because it is large
        return x @ weights.squeeze(-3)
    return (x.unsqueeze(-2) @ weights).squeeze(-2)
