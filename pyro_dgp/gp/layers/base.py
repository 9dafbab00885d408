"""The base class of a deep GP's layers."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib.gp.parameterized import Parameterized
from pyro.nn import pyro_method
from torch import Tensor

__all__ = ["Layer", "in_mode"]


class Layer(Parameterized):
    """A random map from h [..., B, D_in] to the next layer's input [..., B, width].

    A layer defines three things:

    - its global sites, which all data share: :meth:`model` and :meth:`guide`, called outside the
      data plate, draw them (by default there are none);
    - its noise, of which each datum has its own: ``noise_dim`` independent standard normal
      variables, the site ``noise_name`` in the data plate. The guide draws it from that prior
      unless :meth:`guide_local` is overridden. (Any other distribution is a function of such
      noise.);
    - its output: :meth:`propagate`, a pure function of h and the noise.

    The last layer of a model gives the :meth:`marginal` distributions of its functions instead of
    draws.

    >>> class Sine(Layer):
    ...     def width(self, input_dim):
    ...         return input_dim
    ...
    ...     def propagate(self, h, noise):
    ...         return h.sin()
    """

    #: Number of input columns D_in; None for any number.
    input_dim: int | None = None
    #: Dimension of the latent input that the layer appends; 0 for none.
    latent_dim: int = 0
    #: Number of standard normal variables per datum; 0 if only the global sites are random.
    noise_dim: int = 0
    #: Name of the site of these variables.
    noise_name: str = "epsilon"

    def width(self, input_dim: int) -> int:
        """Number of output columns.

        :param int input_dim: Number of input columns.
        """
        raise NotImplementedError

    def propagate(self, h: Tensor, noise: Tensor | None) -> Tensor:
        """The output for given noise, computed without Pyro primitives.

        :param torch.Tensor h: Inputs of the layer, [..., B, D_in].
        :param torch.Tensor noise: Values of the noise, [..., B, noise_dim], or with 1 in place of B
            if all rows have the same noise; None if ``noise_dim`` is 0.
        :returns: Outputs, [..., B, width].
        """
        raise NotImplementedError

    def marginal(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """As a last layer: means and variances of the functions at each row, [..., B, width] each.

        :param torch.Tensor h: Inputs of the layer, [..., B, D_in].
        """
        raise NotImplementedError

    def prepared(self) -> "Layer":
        """The layer for many predictions, with what does not depend on inputs computed once.

        It is called on copies that hold values in place of parameters
        (:func:`~pyro_dgp.gp.fixed.fixed_copy`). By default it returns the layer itself.
        """
        return self

    def check_last(self) -> None:
        """
        :raises ValueError: If it cannot be a model's last layer.
        """
        raise ValueError(
            f"layers must end with a GPLayer, or a layer with a marginal, not a "
            f"{type(self).__name__}."
        )

    def model(self) -> Tensor | None:
        """Draws the prior's global sites, and returns the inducing values if there are any."""

    def guide(self) -> Tensor | None:
        """Draws the guide's global sites, in the same order."""

    def kl(self) -> Tensor:
        """KL( q || p ) of the global sites, if it has a closed form; 0 without sites."""
        return torch.zeros(())

    @pyro_method
    def model_local(self, h: Tensor) -> Tensor:
        """Draws the output in the data plate: :meth:`propagate` with the noise as a site.

        As the noise is a site of its own, importance sampling, replay and conditioning apply to it.

        :param torch.Tensor h: Inputs of the layer, [..., B, D_in].
        :returns: Outputs, [..., B, width], with the leading shape that the noise has.
        """
        return self.propagate(h, self._sample_noise(h))

    @pyro_method
    def guide_local(self, X: Tensor, y: Tensor | None) -> None:
        """Draws the noise from its prior, so that only the guide of the global sites is learned.

        :param torch.Tensor X: Inputs of the deep GP, [B, D].
        :param torch.Tensor y: Encoded targets, [B] or [B, E], or None.
        """
        self._sample_noise(X)

    def noise_from(self, standard: Tensor) -> Tensor:
        """The noise from standard normal draws, which it is itself unless this is overridden.

        :param torch.Tensor standard: Standard normal draws, [..., noise_dim].
        """
        return standard

    def _noise_prior(self, like: Tensor) -> dist.TorchDistribution:
        return dist.Normal(like.new_zeros(self.noise_dim), 1.0)

    def _sample_noise(self, like: Tensor) -> Tensor | None:
        if not self.noise_dim:
            return None
        name = self._pyro_get_fullname(self.noise_name)
        return pyro.sample(name, self._noise_prior(like).to_event(1))


@contextmanager
def in_mode(module: Parameterized, mode: str) -> Iterator[None]:
    """Draws hyperparameters with a prior from that prior ("model") or from their guide ("guide").

    Afterwards every submodule has its previous mode again.

    :param module: Module with hyperparameters.
    :param str mode: "model" or "guide".
    """
    parts = [part for part in module.modules() if isinstance(part, Parameterized)]
    before = [part.mode for part in parts]
    for part in parts:
        part.mode = mode
    try:
        yield
    finally:
        for part, previous in zip(parts, before, strict=True):
            part.mode = previous
