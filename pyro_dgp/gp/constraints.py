"""Constraints of parameters, and the transforms from unconstrained space to them."""

from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    SoftplusTransform,
    Transform,
)

__all__ = ["constrained", "lower_triangular", "softplus_above"]


def constrained(value: Tensor, constraint: constraints.Constraint) -> Tensor:
    """A ``PyroParam``, to be assigned to an attribute of a ``PyroModule``.

    It is annotated as what reading the attribute returns, a tensor.

    :param torch.Tensor value: Initial value.
    :param constraint: Constraint of the value.
    """
    return PyroParam(value, constraint)  # pyright: ignore[reportReturnType]


class softplus_above(constraints.greater_than):
    """``value > lower_bound``, by the transform ``lower_bound + softplus(x)``.

    The paper's appendix: "All positive model parameters are constrained to be positive using the
    softplus function, clipped to 1e-6".

    :param float lower_bound: Lower bound of the value, 1e-6 in the paper.
    """

    def __init__(self, lower_bound: float = 1e-6) -> None:
        super().__init__(lower_bound)


@biject_to.register(softplus_above)
@transform_to.register(softplus_above)
def _transform_to_softplus_above(constraint: softplus_above) -> Transform:
    return ComposeTransform([SoftplusTransform(), AffineTransform(constraint.lower_bound, 1.0)])


class _LowerTriangular(type(constraints.lower_triangular)):
    """Lower-triangular square matrices with entries of either sign."""


class _TrilTransform(Transform):
    domain = constraints.independent(constraints.real, 2)
    codomain = _LowerTriangular()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TrilTransform)

    def _call(self, x: Tensor) -> Tensor:
        return x.tril()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


lower_triangular = _LowerTriangular()


@transform_to.register(_LowerTriangular)
def _transform_to_lower_triangular(constraint: _LowerTriangular) -> Transform:
    return _TrilTransform()
