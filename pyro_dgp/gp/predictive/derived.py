"""Base classes of distributions that are computed from other objects."""

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

    def _tensor(self, value: Tensor | float) -> Tensor: ...


B = TypeVar("B", bound=Predictive)


class Composite(dist.TorchDistribution):
    """A distribution without parameters that torch could validate: it is made of other objects."""

    # torch declares a property, which its own classes override in the same way.
    arg_constraints = {}  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


class Derived(Composite, Generic[B]):
    """A predictive distribution that is computed row by row from another one, its base.

    A subclass defines :meth:`_with`.

    :param base: Predictive distribution with the same batch and event shape.
    """

    has_rsample = False

    def __class_getitem__(cls, base: Any) -> "type[Self]":
        # The type of the base is for type checkers alone. Pyro's distributions derive from
        # Callable, which would read it as the types of arguments.
        return cls

    def __init__(self, base: B, validate_args: bool | None = None) -> None:
        self.base = base
        super().__init__(base.batch_shape, base.event_shape, validate_args=validate_args)

    @property
    def num_components(self) -> int:
        """Number of components of the base."""
        return self.base.num_components

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "Self":
        return self._with(self.base.expand(batch_shape))

    def __getitem__(self, rows: slice | Sequence[int] | Tensor) -> "Self":
        """The distribution of some rows of the batch.

        :param rows: Index into the first batch dimension: a slice, a list or a tensor.
        """
        return self._with(self.base[rows])

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> "Self":
        """The distribution in another dtype and on another device."""
        return self._with(self.base.to(dtype, device))

    def _tensor(self, value: Tensor | float) -> Tensor:
        """A value in the dtype and on the device of the base."""
        return self.base._tensor(value)

    def _with(self, base: B) -> "Self":
        """The same distribution of another base."""
        raise NotImplementedError
