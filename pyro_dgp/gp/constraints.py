"""Where parameters live, and the maps there from unconstrained space."""

from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    SoftplusTransform,
    Transform,
)

__all__ = ["lower_triangular", "softplus_above"]


class softplus_above(constraints.greater_than):
    """``value > lower_bound``, reached by ``lower_bound + softplus(x)``.

    The paper's appendix: "All positive model parameters are constrained to be positive using the
    softplus function, clipped to 1e-6".

    :param float lower_bound: The bound, 1e-6 in the paper.
    """

    def __init__(self, lower_bound: float = 1e-6) -> None:
        super().__init__(lower_bound)


@biject_to.register(softplus_above)
@transform_to.register(softplus_above)
def _transform_to_softplus_above(constraint):
    return ComposeTransform([SoftplusTransform(), AffineTransform(constraint.lower_bound, 1.0)])


class _LowerTriangular(type(constraints.lower_triangular)):
    """Lower-triangular square matrices with entries of either sign."""


class _TrilTransform(Transform):
    domain = constraints.independent(constraints.real, 2)
    codomain = _LowerTriangular()

    def __eq__(self, other):
        return isinstance(other, _TrilTransform)

    def _call(self, x):
        return x.tril()

    def _inverse(self, y):
        return y


lower_triangular = _LowerTriangular()


@transform_to.register(_LowerTriangular)
def _transform_to_lower_triangular(constraint):
    return _TrilTransform()
