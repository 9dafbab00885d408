"""Distributions that are made of another one, row by row."""

import pyro.distributions as dist
import torch

__all__ = ["Derived"]


class Derived(dist.TorchDistribution):
    """A distribution with the batch and event shape of its base; a subclass has :meth:`_with`.

    :param base: Another predictive distribution.
    """

    arg_constraints = {}
    has_rsample = False

    def __init__(self, base, validate_args=None) -> None:
        self.base = base
        super().__init__(base.batch_shape, base.event_shape, validate_args=validate_args)

    @property
    def num_components(self) -> int:
        """Of the base."""
        return self.base.num_components

    def expand(self, batch_shape, _instance=None):
        return self._with(self.base.expand(batch_shape))

    def __getitem__(self, rows) -> "Derived":
        """The distribution of some rows of the batch.

        :param rows: An index into the batch's first dimension: a slice, a list or a tensor.
        """
        return self._with(self.base[rows])

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Derived":
        """The distribution in another dtype and on a device."""
        return self._with(self.base.to(dtype, device))

    def _with(self, base) -> "Derived":
        """The same of another base."""
        raise NotImplementedError
