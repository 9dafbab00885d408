"""Distributions that are made of another one, row by row."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyro.distributions as dist
import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Composite", "Derived"]


class Predictive(Protocol):
    """What predictive distributions have in common."""

    @property
    def batch_shape(self) -> torch.Size: ...

    @property
    def event_shape(self) -> torch.Size: ...

    @property
    def num_components(self) -> int: ...

    def expand(self, batch_shape: Sequence[int]) -> "Self": ...

    def __getitem__(self, rows: slice | Sequence[int] | Tensor) -> "Self": ...

    def to(self, dtype: torch.dtype, device: torch.device | str) -> "Self": ...


B = TypeVar("B", bound=Predictive)


class Composite(dist.TorchDistribution):
    """A distribution made of other objects, so that torch has no parameters of it to validate."""

    # The annotation of torch is a property, which its own classes override like this, too.
    arg_constraints = {}  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


class Derived(Composite, Generic[B]):
    """A distribution with the batch and event shape of its base; a subclass has :meth:`_with`.

    :param base: Another predictive distribution.
    """

    has_rsample = False

    def __class_getitem__(cls, base: Any) -> "type[Self]":
        # The type of the base is for type checkers. Pyro's classes derive from Callable, and would
        # take it for that of arguments.
        return cls

    def __init__(self, base: B, validate_args: bool | None = None) -> None:
        self.base = base
        super().__init__(base.batch_shape, base.event_shape, validate_args=validate_args)

    @property
    def num_components(self) -> int:
        """Of the base."""
        return self.base.num_components

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "Self":
        return self._with(self.base.expand(batch_shape))

    def __getitem__(self, rows: slice | Sequence[int] | Tensor) -> "Self":
        """The distribution of some rows of the batch.

        :param rows: An index into the batch's first dimension: a slice, a list or a tensor.
        """
        return self._with(self.base[rows])

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Self":
        """The distribution in another dtype and on a device."""
        return self._with(self.base.to(dtype, device))

    def _with(self, base: B) -> "Self":
        """The same of another base."""
        raise NotImplementedError
