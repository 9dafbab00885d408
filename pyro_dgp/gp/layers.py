"""The layers of a deep GP. Each says what it adds outside the data plate and what inside it.

Outside the plate (``model``, ``guide``) stand the sites that all data share; inside it
(``model_local``, ``guide_local``) those that every datum has for itself.
"""

import math

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.contrib.gp.models import VariationalSparseGP
from pyro.nn import PyroModule, PyroParam, pyro_method
from torch import Tensor, nn
from torch.distributions import Independent, register_kl

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.conditional import stable_cholesky, whitened_conditional, whitened_kl
from pyro_dgp.gp.constraints import lower_triangular

__all__ = ["GPLayer", "LatentLayer"]


class _InducingNormal(dist.MultivariateNormal):
    """q(u) = N(loc, S S^T) of whitened inducing values, with a closed-form KL to the prior.

    A hidden layer's S starts near zero and is soon too ill-conditioned to be inverted, so the
    density of a draw loc + S epsilon is computed from the epsilon that made it.
    """

    _draw: tuple[Tensor, Tensor] | None = None

    def rsample(self, sample_shape=()):
        shape = self._extended_shape(torch.Size(sample_shape))
        epsilon = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        value = self.loc + (self.scale_tril @ epsilon.unsqueeze(-1)).squeeze(-1)
        self._draw = value, epsilon
        return value

    def log_prob(self, value):
        if self._draw is None or self._draw[0] is not value:
            return super().log_prob(value)
        standard = -0.5 * (self._draw[1].square() + math.log(2 * math.pi)).sum(-1)
        return standard - self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@register_kl(_InducingNormal, Independent)
def _kl_inducing_normal(q, p):
    if not (isinstance(p.base_dist, dist.Normal) and p.reinterpreted_batch_ndims == 1):
        raise NotImplementedError
    loc, scale = p.base_dist.loc, p.base_dist.scale
    return whitened_kl((q.loc - loc) / scale, q.scale_tril / scale.unsqueeze(-1))


class GPLayer(VariationalSparseGP):
    r"""R sparse variational GPs that share a kernel and inducing inputs, mixed to an output.

    .. math:: h_{out} = A h + P g(h), \qquad g_r \sim GP(0, k), \quad q(u_r) = N(m_r, S_r S_r^\top)

    with whitened inducing values u. ``layer(h)`` gives the marginals of g; :meth:`model_local`
    draws the output. Without ``mixing`` the GPs are the outputs.

    The square roots ``u_scale_tril`` are lower triangular with entries of either sign, as in the
    paper's experiments: S S^T does not see the sign of a column, and a variance that starts near
    zero can grow at the pace of an additive step.

    Source: Rudner et al. (2021), section 2.1 and appendix "Linear projections between layers".

    :param ~pyro.contrib.gp.kernels.Kernel kernel: Covariance function over D_in inputs; priors on
        its hyperparameters (``PyroSample``) are honoured.
    :param torch.Tensor Xu: Initial inducing inputs, [M, D_in].
    :param int num_gps: R.
    :param torch.Tensor mixing: P, [width, R], fixed; None for width = R without mixing.
    :param torch.Tensor linear_mean: A, [width, D_in], fixed; None for no linear mean.
    :param float u_scale: Initial standard deviation of the inducing values.
    :param float jitter: Relative jitter of the inducing inputs' kernel matrix.
    :raises ValueError: If the shapes do not fit one another.
    """

    def __init__(
        self,
        kernel: Kernel,
        Xu: Tensor,
        num_gps: int = 1,
        mixing: Tensor | None = None,
        linear_mean: Tensor | None = None,
        u_scale: float = 1.0,
        jitter: float = 1e-6,
    ) -> None:
        if Xu.dim() != 2 or Xu.shape[0] < 1:
            raise ValueError(
                f"Xu must be [num_inducing, D_in], but its shape is {tuple(Xu.shape)}."
            )
        num_gps = check_integer("num_gps", num_gps, 1)
        if not 0 < jitter < 1:
            raise ValueError(f"jitter must lie between 0 and 1, but it is {jitter}.")
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
            Xu, None, kernel, Xu, None, latent_shape=torch.Size([num_gps]), whiten=True,
            jitter=jitter,
        )  # fmt: skip
        self.u_scale_tril = PyroParam(
            u_scale * torch.eye(len(Xu)).to(Xu).repeat(num_gps, 1, 1), lower_triangular
        )
        self.register_buffer("mixing", mixing)
        self.register_buffer("linear_mean", linear_mean)

    @property
    def input_dim(self) -> int:
        """D_in."""
        return self.Xu.shape[1]

    @property
    def output_dim(self) -> int:
        """Width of the output: rows of P, or R without mixing."""
        return self.num_gps if self.mixing is None else self.mixing.shape[0]

    @property
    def num_gps(self) -> int:
        """R."""
        return self.latent_shape[0]

    @pyro_method
    def model(self) -> Tensor:
        """The prior's global sites: kernel hyperparameters with a prior, and ``u`` [R, M]."""
        self.set_mode("model")
        self._load_pyro_samples()
        prior = dist.Normal(torch.zeros_like(self.u_loc), 1.0).to_event(2)
        return pyro.sample(self._pyro_get_fullname("u"), prior)

    @pyro_method
    def guide(self) -> Tensor:
        """The guide's global sites, in the same order."""
        self.set_mode("guide")
        self._load_pyro_samples()
        S = self.u_scale_tril
        sign = torch.where(S.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(S)
        q_u = _InducingNormal(self.u_loc, scale_tril=S * sign.unsqueeze(-2))
        return pyro.sample(self._pyro_get_fullname("u"), q_u.to_event(1))

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Marginals q(g(h)) of the R GPs; hyperparameters with a prior come from their guide.

        :param torch.Tensor h: Inputs, [..., B, D_in]; any leading shape, none included.
        :returns: Means and variances, [..., B, R] each; variances are at least the jitter.
        """
        self.set_mode("guide")
        flat = h.reshape(-1, h.shape[-1])
        Xu = self.Xu
        Kuu = self.kernel(Xu)
        Luu = stable_cholesky(Kuu, self.jitter, self._pyro_name or type(self).__name__)
        Kff_diag = self.kernel(flat, diag=True)
        loc, var = whitened_conditional(
            Luu, self.kernel(flat, Xu), Kff_diag, self.u_loc, self.u_scale_tril
        )
        # sqrt has an infinite gradient at 0, where rounding can leave a variance.
        var = torch.maximum(var, self.jitter * Kff_diag.detach().unsqueeze(-1))
        shape = (*h.shape[:-1], self.num_gps)
        return loc.reshape(shape), var.reshape(shape)

    @pyro_method
    def marginal(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Marginal means and variances of the output A h + P g(h).

        :param torch.Tensor h: [..., B, D_in].
        :returns: [..., B, width] each.
        """
        loc, var = self(h)
        if self.mixing is not None:
            var = var @ self.mixing.square().mT
        return self._mix(loc, h), var

    @pyro_method
    def model_local(self, h: Tensor) -> Tensor:
        """Draws the output, independently for every row of h.

        The draw is the paper's reparameterisation f(h) = loc(h) + epsilon sqrt(var(h)) with
        epsilon a site of its own, so that importance samples, replay and conditioning reach it.

        :param torch.Tensor h: [..., B, D_in].
        :returns: [..., B, width].
        """
        loc, var = self(h)
        epsilon = self._sample_epsilon()
        return self._mix(loc + epsilon * var.sqrt(), h)

    @pyro_method
    def guide_local(self, X: Tensor, y: Tensor | None) -> None:
        """The guide draws epsilon from its prior: what is learned about g is in q(u)."""
        self._sample_epsilon()

    def _sample_epsilon(self) -> Tensor:
        like = next(self.parameters())  # `self.u_loc` would be a message to Pyro's handlers
        standard = dist.Normal(like.new_zeros(self.num_gps), 1.0).to_event(1)
        return pyro.sample(self._pyro_get_fullname("epsilon"), standard)

    def _mix(self, g: Tensor, h: Tensor) -> Tensor:
        out = g if self.mixing is None else g @ self.mixing.mT
        return out if self.linear_mean is None else out + h @ self.linear_mean.mT


class LatentLayer(PyroModule):
    """Appends a latent input: h -> [h, z] with z_n ~ N(0, I) for every datum.

    It may stand before any GP layer, and several may be used.

    :param int latent_dim: Dimension of z.
    :param encoder: q(z | x, y): a module that maps ``(X [B, D], y)`` to a distribution with batch
        shape [B] and event shape [latent_dim] (or batch shape [B, latent_dim]). None fixes q(z) to
        the prior.
    :raises ValueError: If ``latent_dim`` is not a positive integer.
    """

    def __init__(self, latent_dim: int, encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.latent_dim = check_integer("latent_dim", latent_dim, 1)
        self.encoder = encoder

    @pyro_method
    def model_local(self, h: Tensor) -> Tensor:
        """
        :param torch.Tensor h: [..., B, D_in].
        :returns: [..., B, D_in + latent_dim], with the leading shape that z has.
        """
        z = pyro.sample(self._pyro_get_fullname("z"), self._prior(h))
        batch_shape = torch.broadcast_shapes(h.shape[:-1], z.shape[:-1])
        return torch.cat([h.expand(*batch_shape, -1), z.expand(*batch_shape, -1)], -1)

    @pyro_method
    def guide_local(self, X: Tensor, y: Tensor | None) -> None:
        """Draws z from q(z | x, y).

        Without y, as in prediction, the site is left out and the model draws z from its prior.

        :param torch.Tensor X: The deep GP's inputs, [B, D].
        :param torch.Tensor y: Its targets, [B] or [B, P], or None.
        """
        if y is None:
            return
        if self.encoder is None:
            q_z = self._prior(X)
        else:
            q_z = self.encoder(X, y)
            shape, expected = q_z.batch_shape + q_z.event_shape, (len(X), self.latent_dim)
            if shape != expected:
                raise ValueError(
                    f"{self._pyro_name}: the encoder's distribution has shape {tuple(shape)}, but "
                    f"z needs [B, latent_dim] = {expected}."
                )
            q_z = q_z.to_event(1 - q_z.event_dim)
        pyro.sample(self._pyro_get_fullname("z"), q_z)

    def _prior(self, like: Tensor) -> dist.Distribution:
        zeros = torch.zeros(self.latent_dim, dtype=like.dtype, device=like.device)
        return dist.Normal(zeros, 1.0).to_event(1)
