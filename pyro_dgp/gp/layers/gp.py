"""Sparse variational GPs as a layer."""

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.contrib.gp.models import VariationalSparseGP
from pyro.nn import pyro_method
from torch import Tensor

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.conditional import (
    WhitenedConditional,
    stable_cholesky,
    whitened_conditional,
    whitened_kl,
    whitened_rows,
)
from pyro_dgp.gp.constraints import constrained, lower_triangular
from pyro_dgp.gp.inducing import InducingNormal
from pyro_dgp.gp.kernels import square_matrix
from pyro_dgp.gp.layers.base import Layer, in_mode
from pyro_dgp.gp.pathwise import features, function_values, unit_frequencies

__all__ = ["GPLayer"]


class GPLayer(Layer, VariationalSparseGP):
    r"""R sparse variational GPs that share a kernel and inducing inputs, mixed to an output.

    .. math:: h_{out} = A h + P g(h), \qquad g_r \sim GP(0, k), \quad q(u_r) = N(m_r, S_r S_r^\top)

    with whitened inducing values u. ``layer(h)`` gives the marginals of g; :meth:`model_local`
    draws the output. Without ``mixing`` the GPs are the outputs.

    The square roots ``u_scale_tril`` are lower triangular with entries of either sign, as in the
    paper's experiments: S S^T does not depend on the sign of a column, and a variance that starts
    near zero can grow as fast as the optimiser's additive steps.

    Source: Rudner et al. (2021), section 2.1 and appendix "Linear projections between layers".

    :param ~pyro.contrib.gp.kernels.Kernel kernel: Covariance function over D_in inputs; priors on
        its hyperparameters (``PyroSample``) are taken into account. It is converted to the dtype
        and moved to the device of ``Xu``.
    :param torch.Tensor Xu: Initial inducing inputs, [M, D_in].
    :param int num_gps: Number of GPs R.
    :param torch.Tensor mixing: Fixed matrix P, [width, R]; None for width = R without mixing.
    :param torch.Tensor linear_mean: Fixed matrix A, [width, D_in]; None for no linear mean.
    :param float u_scale: Initial standard deviation of the inducing values.
    :param float jitter: Relative jitter of the inducing inputs' kernel matrix.
    :param str function_draws: Draws of a hidden layer for the samples of a datum: "independent"
        for independent draws from the marginals of q(g), as in the paper, or "shared" for the
        values of a single draw of the function, with which importance weights bound the evidence.
    :param int num_features: Number of random features of a shared draw, even.
    :raises ValueError: If the shapes do not fit together, or an option is out of range.
    :raises NotImplementedError: If functions of the kernel cannot be drawn.
    """

    kernel: Kernel
    Xu: Tensor
    u_loc: Tensor
    u_scale_tril: Tensor
    mixing: Tensor | None
    linear_mean: Tensor | None
    frequencies: Tensor | None

    def __init__(
        self,
        kernel: Kernel,
        Xu: Tensor,
        num_gps: int = 1,
        mixing: Tensor | None = None,
        linear_mean: Tensor | None = None,
        u_scale: float = 1.0,
        jitter: float = 1e-6,
        function_draws: str = "independent",
        num_features: int = 1000,
    ) -> None:
        if Xu.dim() != 2 or Xu.shape[0] < 1:
            raise ValueError(
                f"Xu must be [num_inducing, D_in], but its shape is {tuple(Xu.shape)}."
            )
        num_gps = check_integer("num_gps", num_gps, 1)
        if not 0 < jitter < 1:
            raise ValueError(f"jitter must lie between 0 and 1, but it is {jitter}.")
        if function_draws not in ("independent", "shared"):
            raise ValueError(
                f"function_draws must be 'independent' or 'shared', but it is {function_draws!r}."
            )
        num_features = check_integer("num_features", num_features, 2)
        if num_features % 2:
            raise ValueError(f"num_features must be even, but it is {num_features}.")
        width = num_gps if mixing is None else mixing.shape[0]
        if mixing is not None and mixing.shape != (width, num_gps):
            raise ValueError(
                f"mixing must be [width, num_gps={num_gps}], but its shape is "
                f"{tuple(mixing.shape)}."
            )
        if linear_mean is not None and linear_mean.shape != (width, Xu.shape[1]):
            raise ValueError(
                f"linear_mean must be [width={width}, D_in={Xu.shape[1]}], but its shape is "
                f"{tuple(linear_mean.shape)}."
            )
        Xu = Xu.detach().clone()
        super().__init__(
            Xu, None, kernel.to(Xu), Xu, None, latent_shape=torch.Size([num_gps]), whiten=True,
            jitter=jitter,
        )  # fmt: skip
        self.input_dim, self.noise_dim = Xu.shape[1], num_gps
        del self.X  # the training inputs of a VariationalSparseGP; here they are arguments
        self.u_scale_tril = constrained(
            u_scale * torch.eye(len(Xu)).to(Xu).repeat(num_gps, 1, 1), lower_triangular
        )
        self.register_buffer("mixing", mixing)
        self.register_buffer("linear_mean", linear_mean)
        shared = function_draws == "shared"
        frequencies = unit_frequencies(self.kernel, num_features // 2).to(Xu) if shared else None
        self.register_buffer("frequencies", frequencies)

    def width(self, input_dim: int) -> int:
        """:attr:`output_dim`, for any input."""
        return self.output_dim

    def check_last(self) -> None:
        """
        :raises ValueError: If it has ``mixing``.
        """
        if self.mixing is not None:
            raise ValueError(
                "The last layer's GPs are the outputs: build it without `mixing`, with a GP per "
                "output."
            )

    @property
    def output_dim(self) -> int:
        """Width of the output: rows of P, or R without mixing."""
        return self.num_gps if self.mixing is None else self.mixing.shape[0]

    @property
    def num_gps(self) -> int:
        """Number of GPs R."""
        return self.latent_shape[0]

    @pyro_method
    def model(self) -> Tensor:
        """The prior's global sites: kernel hyperparameters with a prior, and ``u`` [R, M]."""
        with in_mode(self, "model"):
            self._load_pyro_samples()
            prior = dist.Normal(torch.zeros_like(self.u_loc), 1.0).to_event(2)
            return pyro.sample(self._pyro_get_fullname("u"), prior)

    # guide and forward have the signatures of a Layer: Pyro's return nothing and take `full_cov`.
    @pyro_method
    def guide(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The guide's global sites, in the same order."""
        with in_mode(self, "guide"):
            self._load_pyro_samples()
            S = self.u_scale_tril
            sign = torch.where(S.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(S)
            q_u = InducingNormal(self.u_loc, scale_tril=S * sign.unsqueeze(-2))
            return pyro.sample(self._pyro_get_fullname("u"), q_u.to_event(1))

    def kl(self) -> Tensor:
        """KL( q(u) || p(u) ), summed over the GPs."""
        return whitened_kl(self.u_loc, self.u_scale_tril).sum()

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, h: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Marginals q(g(h)) of the R GPs; hyperparameters with a prior come from their guide.

        :param torch.Tensor h: Inputs, [..., B, D_in], with any number of leading dimensions.
        :returns: Means and variances, [..., B, R] each; variances are at least the jitter.
        """
        with in_mode(self, "guide"):
            loc, var, prior = self.conditional(h)
        # sqrt has an infinite gradient at 0, where rounding can leave a variance.
        return loc, torch.maximum(var, self.jitter * prior.detach())

    def conditional(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means and variances of the R GPs; variances may be slightly negative by rounding.

        :param torch.Tensor h: Inputs, [..., B, D_in].
        :returns: Means and variances, [..., B, R] each, and the prior's variances, [..., B, 1].
        """
        Luu, m, S = self._cholesky(), self.u_loc, self.u_scale_tril
        return self._at(h, lambda Kfu, Kff: whitened_conditional(Luu, Kfu, Kff, m, S))

    def prepared(self) -> "GPLayer":
        """The layer with factors that are computed once, and without derivatives."""
        given = WhitenedConditional(self._cholesky(), self.u_loc, self.u_scale_tril)
        return self.with_conditional(lambda h: self._at(h, given))

    def with_conditional(
        self, conditional: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
    ) -> "GPLayer":
        """The layer with another function in place of :meth:`conditional`.

        :param conditional: Function with the same argument and results.
        """
        new = object.__new__(type(self))
        vars(new).update(vars(self), conditional=conditional)
        return new

    def _cholesky(self) -> Tensor:
        name, Xu = self._pyro_name or type(self).__name__, self.Xu
        return stable_cholesky(square_matrix(self.kernel, Xu), self.jitter, name).to(Xu.dtype)

    def _at(
        self, h: Tensor, given: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        flat, shape = h.reshape(-1, h.shape[-1]), h.shape[:-1]
        prior = self.kernel(flat, diag=True)
        marginals = given(self.kernel(flat, self.Xu), prior)
        loc, var = (t.reshape(*shape, self.num_gps) for t in marginals)
        return loc, var, prior.reshape(*shape, 1)

    @pyro_method
    def marginal(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Marginal means and variances of the output A h + P g(h).

        :param torch.Tensor h: Inputs, [..., B, D_in].
        :returns: Means and variances, [..., B, width] each.
        """
        loc, var = self(h)
        if self.mixing is not None:
            var = var @ self.mixing.square().mT
        return self._mix(loc, h), var

    def propagate(self, h: Tensor, noise: Tensor | None) -> Tensor:
        """The paper's reparameterisation: A h + P (loc(h) + epsilon sqrt(var(h))).

        :param torch.Tensor h: Inputs, [..., B, D_in].
        :param torch.Tensor noise: Values of epsilon, [..., B, R].
        :returns: Outputs, [..., B, width].
        :raises ValueError: If there is no noise.
        """
        if noise is None:
            raise ValueError("A GPLayer needs noise, the values of epsilon.")
        loc, var = self(h)
        return self._mix(loc + noise * var.sqrt(), h)

    @pyro_method
    def model_local(self, h: Tensor) -> Tensor:
        """Draws the output in the data plate, from the marginals or from one function per datum.

        :param torch.Tensor h: Inputs, [..., B, D_in].
        :returns: Outputs, [..., B, width].
        """
        frequencies = self.frequencies
        if frequencies is None:
            return self.propagate(h, self._sample_noise(h))
        return self.drawn_function(h, self._sample_function_noise(h, frequencies), frequencies)

    def drawn_function(self, h: Tensor, noise: Tensor, frequencies: Tensor) -> Tensor:
        """A h + P g(h) for functions g drawn from q; see :mod:`pyro_dgp.gp.pathwise`.

        :param torch.Tensor h: Inputs, [..., B, D_in].
        :param torch.Tensor noise: Standard normal draws, [..., B, (F + M) R], one vector per
            function; with 1 in place of B if one function has all rows.
        :param torch.Tensor frequencies: Frequencies of the prior's features, [F / 2, D_in].
        :returns: Outputs, [..., B, width].
        """
        with in_mode(self, "guide"):
            kernel, Xu, u_loc, u_scale_tril = self.kernel, self.Xu, self.u_loc, self.u_scale_tril
            Luu = self._cholesky()
            Kfu = kernel(h.reshape(-1, h.shape[-1]), Xu)
            A = whitened_rows(Luu, Kfu).reshape(*h.shape[:-1], len(Xu))
            at_h, at_Xu = (features(kernel, frequencies, x) for x in (h, Xu))
        g = function_values(at_h, at_Xu, A, Luu, u_loc, u_scale_tril, noise)
        return self._mix(g, h)

    def function_noise_dim(self, num_features: int) -> int:
        """Number of standard normal variables that determine a drawn function, (F + M) R.

        :param int num_features: Number of random features F.
        """
        return (num_features + self.u_loc.shape[1]) * self.num_gps

    def _sample_noise(self, like: Tensor) -> Tensor | None:
        if self.frequencies is None:
            return super()._sample_noise(like)
        return self._sample_function_noise(like, self.frequencies)

    def _sample_function_noise(self, like: Tensor, frequencies: Tensor) -> Tensor:
        dim = self.function_noise_dim(2 * len(frequencies))
        standard = dist.Normal(like.new_zeros(dim), 1.0).to_event(1)
        name = self._pyro_get_fullname("function_noise")
        # Pyro allows other keys than those of its annotation.
        infer = {"shared": True}
        return pyro.sample(name, standard, infer=infer)  # pyright: ignore[reportArgumentType]

    def _mix(self, g: Tensor, h: Tensor) -> Tensor:
        out = g if self.mixing is None else g @ self.mixing.mT
        return out if self.linear_mean is None else out + h @ self.linear_mean.mT
