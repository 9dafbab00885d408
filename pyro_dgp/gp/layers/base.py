"""What a layer of a deep GP is."""

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

    A layer says three things:

    - what all data share: :meth:`model` and :meth:`guide`, called outside the data plate, draw its
      global sites (by default there are none);
    - what every datum draws for itself: ``noise_dim`` independent standard normal variables, the
      site ``noise_name`` in the data plate, which the guide draws from that prior unless
      :meth:`guide_local` says otherwise. (Any other distribution is a function of such noise.);
    - how it goes on: :meth:`propagate`, a pure function of h and the noise.

    The last layer of a model gives the :meth:`marginal` of its functions instead of draws.

    >>> class Sine(Layer):
    ...     def width(self, input_dim):
    ...         return input_dim
    ...
    ...     def propagate(self, h, noise):
    ...         return h.sin()
    """

    #: Columns that the layer takes; None for any number.
    input_dim: int | None = None
    #: Of the latent input that it appends; 0 for none.
    latent_dim: int = 0
    #: Standard normal variables of a datum; 0 for a layer that is not random given its globals.
    noise_dim: int = 0
    #: Name of their site.
    noise_name: str = "epsilon"

    def width(self, input_dim: int) -> int:
        """Columns of the output.

        :param int input_dim: Columns of the input.
        """
        raise NotImplementedError

    def propagate(self, h: Tensor, noise: Tensor | None) -> Tensor:
        """The output for given noise; it must not talk to Pyro.

        :param torch.Tensor h: [..., B, D_in].
        :param torch.Tensor noise: [..., B, noise_dim], or with 1 for B where all rows have the same
            noise; None without noise.
        :returns: [..., B, width].
        """
        raise NotImplementedError

    def marginal(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """As a last layer: means and variances of the functions at each row, [..., B, width] each.

        :param torch.Tensor h: [..., B, D_in].
        """
        raise NotImplementedError

    def prepared(self) -> "Layer":
        """The layer for many predictions: what does not depend on inputs is computed once.

        It is asked of copies that hold values in place of parameters
        (:func:`~pyro_dgp.gp.fixed.fixed_copy`); by default the layer itself.
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
        """The prior's global sites; the inducing values if there are any."""

    def guide(self) -> Tensor | None:
        """The guide's global sites, in the same order."""

    def kl(self) -> Tensor:
        """KL( q || p ) of the global sites, where it is closed; 0 without sites."""
        return torch.zeros(())

    @pyro_method
    def model_local(self, h: Tensor) -> Tensor:
        """Draws the output in the data plate: :meth:`propagate` with the noise as a site.

        With the noise as a site of its own, importance samples, replay and conditioning reach it.

        :param torch.Tensor h: [..., B, D_in].
        :returns: [..., B, width], with the leading shape that the noise has.
        """
        return self.propagate(h, self._sample_noise(h))

    @pyro_method
    def guide_local(self, X: Tensor, y: Tensor | None) -> None:
        """Draws the noise from its prior: what is learned is then in the global sites.

        :param torch.Tensor X: The deep GP's inputs, [B, D].
        :param torch.Tensor y: Its targets as the encoder sees them, or None.
        """
        self._sample_noise(X)

    def _sample_noise(self, like: Tensor) -> Tensor | None:
        if not self.noise_dim:
            return None
        standard = dist.Normal(like.new_zeros(self.noise_dim), 1.0).to_event(1)
        return pyro.sample(self._pyro_get_fullname(self.noise_name), standard)


@contextmanager
def in_mode(module: Parameterized, mode: str) -> Iterator[None]:
    """Has hyperparameters with a prior drawn from it ("model") or from their guide ("guide").

    Afterwards every part has the mode that it had before.
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
