"""The layer that appends a latent input."""

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import pyro_method
from torch import Tensor, nn

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.latent_prior import ReweightedNormal
from pyro_dgp.gp.layers.base import Layer

__all__ = ["LatentLayer"]


class LatentLayer(Layer):
    """Appends a latent input: h -> [h, z] with z_n ~ N(0, I) for every datum.

    It may precede any GP layer, and a model may have several.
    :meth:`~pyro_dgp.LatentDGP.fit_latent_prior` replaces N(0, I) by a prior that follows the data,
    :class:`~pyro_dgp.gp.latent_prior.ReweightedNormal`.

    :param int latent_dim: Dimension of z.
    :param encoder: Module for q(z | x, y), which maps ``(X [B, D], y)`` to a distribution with
        batch shape [B] and event shape [latent_dim] (or batch shape [B, latent_dim]). None fixes
        q(z) to the prior.
    :raises ValueError: If ``latent_dim`` is not a positive integer.
    """

    noise_name = "z"
    encoder: nn.Module | None
    #: Shares of the intervals of each coordinate of z, [latent_dim, S]; None for N(0, I).
    prior_shares: Tensor | None

    def __init__(self, latent_dim: int, encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.latent_dim = self.noise_dim = check_integer("latent_dim", latent_dim, 1)
        self.encoder = encoder
        self.register_buffer("prior_shares", None)

    def width(self, input_dim: int) -> int:
        """D_in + latent_dim."""
        return input_dim + self.latent_dim

    def noise_from(self, standard: Tensor) -> Tensor:
        """z from standard normal draws; see :meth:`~pyro_dgp.gp.Layer.noise_from`."""
        if self.prior_shares is None:
            return standard
        return ReweightedNormal(self.prior_shares, validate_args=False).from_standard(standard)

    def propagate(self, h: Tensor, noise: Tensor | None) -> Tensor:
        """[h, z] with z the noise; see :meth:`~pyro_dgp.gp.Layer.propagate`."""
        if noise is None:
            raise ValueError("A LatentLayer needs noise, the values of z.")
        batch_shape = torch.broadcast_shapes(h.shape[:-1], noise.shape[:-1])
        return torch.cat([h.expand(*batch_shape, -1), noise.expand(*batch_shape, -1)], -1)

    @pyro_method
    def guide_local(self, X: Tensor, y: Tensor | None) -> None:
        """Draws z from q(z | x, y).

        Without y, as in prediction, there is no such site, and the model draws z from its prior.

        :param torch.Tensor X: Inputs of the deep GP, [B, D].
        :param torch.Tensor y: Encoded targets, [B] or [B, E], or None.
        """
        if y is None:
            return
        if self.encoder is None:
            self._sample_noise(X)
            return
        q_z = self.encoder(X, y)
        shape, expected = q_z.batch_shape + q_z.event_shape, (len(X), self.latent_dim)
        if shape != expected:
            raise ValueError(
                f"{self._pyro_name or type(self).__name__}: the encoder's distribution has shape "
                f"{tuple(shape)}, but z needs [B, latent_dim] = {expected}."
            )
        q_z = q_z.to_event(1 - q_z.event_dim)
        pyro.sample(self._pyro_get_fullname("z"), q_z)

    def _noise_prior(self, like: Tensor) -> dist.TorchDistribution:
        if self.prior_shares is None:
            return super()._noise_prior(like)
        return ReweightedNormal(self.prior_shares)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        shares = state_dict.get(f"{prefix}prior_shares")
        if shares is not None:
            self.prior_shares = next(self.parameters(), shares).new_empty(shares.shape)
        elif not prefix and has_all_parameters(state_dict, self):
            self.prior_shares = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def has_all_parameters(state_dict: dict, module: nn.Module, prefix: str = "") -> bool:
    """Whether a state is no partial one, so that what it lacks is at its default.

    :param dict state_dict: The state, possibly of a larger module.
    :param torch.nn.Module module: The module to which it is to be given.
    :param str prefix: Prefix of the module's keys, with a dot at its end.
    """
    return all(f"{prefix}{name}" in state_dict for name, _ in module.named_parameters())
