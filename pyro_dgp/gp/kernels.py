r"""Stationary kernels whose squared distances come from one matrix product.

With inputs in units of the lengthscales, :math:`r = \|x - z\|` and :math:`t = \sqrt{2 \nu}\, r`:

.. math::
    k_\text{RBF} = \sigma^2 e^{-r^2 / 2}, \quad
    k_{1/2} = \sigma^2 e^{-t}, \quad
    k_{3/2} = \sigma^2 (1 + t)\, e^{-t}, \quad
    k_{5/2} = \sigma^2 (1 + t + \tfrac13 t^2)\, e^{-t}

All are functions of the squared distance, which is a product of matrices with few columns,

.. math::
    -\tfrac12 \|x - z\|^2 + b
      = [x,\; -\tfrac12 \|x\|^2,\; 1]^\top [z,\; 1,\; -\tfrac12 \|z\|^2 + b],

and so are their derivatives by the inputs: no array of the differences x - z is needed. The
derivative of a Matérn kernel by the squared distance is, up to a constant, the kernel of the next
lower :math:`\nu` at the same t:

.. math::
    \frac{\partial k_{5/2}}{\partial t^2} = -\tfrac{\sigma^2}{6} (1 + t)\, e^{-t}, \quad
    \frac{\partial k_{3/2}}{\partial t^2} = -\tfrac{\sigma^2}{2} e^{-t}, \quad
    \frac{\partial k_{1/2}}{\partial t^2} = -\tfrac{\sigma^2}{2} \frac{e^{-t}}{t}

The last has no limit at distance 0, where the derivative by the inputs is taken as 0.
"""

import math
from typing import Any

import pyro.contrib.gp.kernels
import torch
from pyro.contrib.gp.kernels import Isotropy, Kernel, Product, Sum
from torch import Tensor

from pyro_dgp.gp.constraints import constrained, softplus_above

__all__ = [
    "KERNELS",
    "RBF",
    "Matern12",
    "Matern32",
    "Matern52",
    "kernel_named",
    "square_matrix",
]

_LN2 = math.log(2)


class _Stationary(Isotropy):
    """What the kernels share, before a class of Pyro's with the same parameters."""

    lengthscale: Tensor
    variance: Tensor

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """
        :param torch.Tensor X: Inputs, [n, D].
        :param torch.Tensor Z: Other inputs, [M, D]; None for X, with exactly the variance on the
            diagonal.
        :param bool diag: True for the prior variances of X alone, [n].
        :returns: Covariances, [n, M]. With Z, the derivatives need this very array: do not change
            it in place.
        """
        if diag:
            return self._diag(X)
        lengthscale = self.lengthscale
        x = self._sliced(X) / lengthscale
        z = x if Z is None else self._sliced(Z) / lengthscale
        variance = self.variance
        # A scalar variance becomes part of the exponent; a batch of them is multiplied at the end.
        number = variance if variance.dim() == 0 else variance.new_ones(())
        k = self._values(x, z, number.to(x.dtype), same=Z is None)
        if Z is None:
            k = k.clone()  # Pyro's models add jitter in place, and the derivatives need k
            k.detach().diagonal().copy_(number.detach())
        return k if variance.dim() == 0 else variance * k

    def _values(self, x: Tensor, z: Tensor, variance: Tensor, same: bool) -> Tensor:
        """
        :param torch.Tensor x: Inputs in units of the lengthscales, [n, D].
        :param torch.Tensor z: The others, [M, D].
        :param torch.Tensor variance: The variance, a scalar.
        :param bool same: True if z is x.
        :returns: Covariances, [n, M].
        """
        raise NotImplementedError

    def _sliced(self, X: Tensor) -> Tensor:
        if X.dim() == 2 and X.shape[-1] <= max(self.active_dims):
            raise ValueError(
                f"The kernel looks at input {max(self.active_dims)}, counted from 0, but there are "
                f"{X.shape[-1]}."
            )
        if X.dim() != 2 or self.active_dims != list(range(X.shape[-1])):
            return self._slice_input(X)
        return X


class RBF(_Stationary, pyro.contrib.gp.kernels.RBF):
    """Pyro's RBF kernel, with the same parameters and values, in half the passes over memory."""

    def _values(self, x: Tensor, z: Tensor, variance: Tensor, same: bool) -> Tensor:
        # Powers of 2 are faster, see :class:`_MaternValues`.
        log2_variance = variance.log2()
        left, right = _columns(x, z, log2_variance, _LN2**-0.5)
        k = left.mT @ right
        # Rounding must not make a squared distance negative: for large inputs, the power would
        # overflow. In place, because the derivatives need the power alone.
        k.detach().clamp_max_(log2_variance.detach())
        return k.exp2_()


class _Matern(_Stationary):
    order: int  # nu - 1/2

    def _values(self, x: Tensor, z: Tensor, variance: Tensor, same: bool) -> Tensor:
        dtype = x.dtype
        if same and self.order == 0:
            # The error of a small distance is the square root of the product's rounding error: in
            # float32, 1e-3 of the inputs' norms, and the matrix may not be positive definite.
            # float64 for a square matrix costs little compared with its Cholesky factorisation.
            x, z, variance = x.double(), z.double(), variance.double()
        left, right = _columns(x, z)
        right = right * (-2 * (2 * self.order + 1) / _LN2**2)  # for the product to be s^2
        log2_variance = variance.log2()
        # There is no public function that says whether forward-mode differentiation is on.
        if getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0:
            return _matern_in_steps(left, right, log2_variance, self.order, same).to(dtype)
        return _MaternValues.apply(left, right, log2_variance, self.order, same)[0].to(dtype)


class Matern12(_Matern, pyro.contrib.gp.kernels.Exponential):
    r"""Pyro's ``Exponential``, :math:`\sigma^2 e^{-r}`, with the same parameters and values.

    The square root magnifies the rounding errors of the squared distances. For two points x and z
    closer than :math:`\tau = 4 \sqrt\epsilon\, \|z\|`, with the norm measured from the median of
    the z and :math:`\epsilon` of the dtype, the relative error of the value is up to
    :math:`\tau / 4`, and the gradient is too small. The matrix of X alone is computed in float64.
    """

    order = 0


class Matern32(_Matern, pyro.contrib.gp.kernels.Matern32):
    r"""Pyro's ``Matern32``, :math:`\sigma^2 (1 + \sqrt3 r)\, e^{-\sqrt3 r}`, with the same
    parameters and values."""

    order = 1


class Matern52(_Matern, pyro.contrib.gp.kernels.Matern52):
    r"""Pyro's ``Matern52``, :math:`\sigma^2 (1 + \sqrt5 r + \tfrac53 r^2)\, e^{-\sqrt5 r}`, with
    the same parameters and values."""

    order = 2


KERNELS = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}


def kernel_named(name: str, input_dim: int, train_variance: bool = True) -> Isotropy:
    r"""A kernel with the paper's initial values: lengthscales :math:`\sqrt D` and variance 1.

    :param str name: Name of the kernel, one of ``KERNELS``.
    :param int input_dim: Number of inputs D, each with a lengthscale of its own.
    :param bool train_variance: True for a trained variance, False for a fixed one.
    :raises ValueError: If there is no kernel of that name.
    """
    if name not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, but it is {name!r}.")
    kernel = KERNELS[name](input_dim)
    lengthscale = torch.full((input_dim,), float(input_dim), dtype=torch.float64).sqrt()
    kernel.lengthscale = constrained(lengthscale, softplus_above(1e-6))
    del kernel.variance
    if train_variance:
        variance = torch.ones((), dtype=torch.float64)
        kernel.variance = constrained(variance, softplus_above(1e-6))
    else:
        kernel.register_buffer("variance", torch.ones(()))
    return kernel


def square_matrix(kernel: Kernel, Z: Tensor) -> Tensor:
    """Covariances k(Z, Z), [M, M], in float64 if the kernel computes in the dtype of its inputs.

    In float32, rounding errors of close points, divided by the smallest eigenvalues, exceed the
    variances that a GP with little noise has, and the matrix needs more jitter.

    :param Kernel kernel: One of ``KERNELS``, or a sum or product of such; any other computes in
        the dtype of Z.
    :param torch.Tensor Z: Inputs, [M, D].
    """
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    any_dtype = all(isinstance(part, (_Stationary, Sum, Product)) for part in parts)
    return kernel(Z.double() if any_dtype else Z)


def _columns(
    x: Tensor, z: Tensor, offset: Tensor | float = 0.0, unit: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""Columns whose product is :math:`-\tfrac12 \|u (x - z)\|^2` + ``offset``, u the unit.

    :returns: [D + 2, n] and [D + 2, M].
    """
    # A shift changes no distance, but keeps the squares small, which cancel in the product.
    shift = z.detach().nanmedian(0).values.nan_to_num(0.0, 0.0, 0.0) if len(z) else 0.0
    # Columns, because products of that layout are faster.
    x, z = (unit * (x - shift)).mT, (unit * (z - shift)).mT
    x2, z2 = (-0.5 * v.square().sum(0, keepdim=True) for v in (x, z))
    left = torch.cat([x, x2, torch.ones_like(x2)])
    right = torch.cat([z, torch.ones_like(z2), z2 + offset])
    return left, right


class _MaternValues(torch.autograd.Function):
    r"""A Matérn kernel's values, and values to which their derivative is proportional.

    They are functions of :math:`q = s^2`, the product of the columns, where :math:`s = t / \ln 2`:
    :math:`e^{-t} = 2^{-s}`, and PyTorch's powers of 2 take a third of the time of its exponentials,
    measured on an AMD CPU.

    Automatic differentiation would divide by s once more for each order, and keep an array per
    operation. Here the first derivative needs ``lower`` alone; the second derivative recomputes it.
    """

    @staticmethod
    def forward(
        left: Tensor, right: Tensor, log2_variance: Tensor, order: int, same: bool
    ) -> tuple[Tensor, Tensor]:
        """
        :param torch.Tensor left: Columns of the one side, [..., D + 2, n].
        :param torch.Tensor right: Columns of the other side, [..., D + 2, M].
        :param torch.Tensor log2_variance: Logarithm of the variance to base 2, [...].
        :param int order: :math:`\\nu - 1/2`, 0 to 2.
        :param bool same: True if the points on both sides are the same.
        :returns: ``value`` and ``lower``, [..., n, M] each; the derivative of ``value`` by q is
            ``_SLOPES[order]`` times ``lower``.
        """
        # Few arrays, reused in place: allocating new ones can take longer than the arithmetic.
        q = left.mT @ right
        if same:
            q.diagonal(dim1=-2, dim2=-1).zero_()
        exponent = log2_variance[..., None, None]
        if order == 0:
            inverse = torch.maximum(q.clamp_min_(0.0), _floor(right)).pow_(-0.5)
            s = q.mul_(inverse)
            value = torch.sub(exponent, s, out=s).exp2_()
            lower = inverse.mul_(value)
        else:
            inverse = q.clamp_min_(torch.finfo(q.dtype).tiny).pow(-0.5)
            s = q.mul_(inverse)  # faster than a root
            power = torch.sub(exponent, s, out=inverse).exp2_()
            if order == 1:
                value, lower = torch.addcmul(power, power, s, value=_LN2, out=s), power
            else:
                lower = torch.addcmul(power, power, s, value=_LN2)
                value = torch.addcmul(lower, power, s.square_(), value=_LN2**2 / 3, out=s)
        if same:
            # A point's distance to itself has derivative 0, which rounding would spoil.
            lower.diagonal(dim1=-2, dim2=-1).zero_()
        return value, lower

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *tensors, ctx.order, ctx.same = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        left, right, log2_variance, *outputs = ctx.saved_tensors
        by_q = by_log = None
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if i == 0:
                factor = outputs[1]
            else:
                ratio = _SLOPES[ctx.order - 1] / _SLOPES[ctx.order]
                factor = ratio * _lower(left, right, log2_variance, ctx.order - 1, ctx.same)
            if ctx.needs_input_grad[2]:
                product = torch.linalg.vecdot(gradient.flatten(-2), outputs[i].flatten(-2))
                by_log = _sum(by_log, _LN2 * product)
            by_q = _sum(by_q, gradient * factor)
        if by_q is None:
            return None, None, None, None, None
        # The constant multiplies the smaller arrays.
        slope = _SLOPES[ctx.order]
        by_left = (slope * right) @ by_q.mT if ctx.needs_input_grad[0] else None
        by_right = (slope * left) @ by_q if ctx.needs_input_grad[1] else None
        return by_left, by_right, by_log, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        *tensors, order, same = inputs
        tensors = [
            v.expand(info.batch_size, *v.shape) if dim is None else v.movedim(dim, 0)
            for v, dim in zip(tensors, in_dims, strict=False)
        ]
        return _MaternValues.apply(*tensors, order, same), (0, 0)


def _matern_in_steps(
    left: Tensor, right: Tensor, log2_variance: Tensor, order: int, same: bool
) -> Tensor:
    """``value`` of :class:`_MaternValues`, with automatic derivatives.

    For forward-mode differentiation: if two levels are nested, PyTorch's ``jvp`` of a custom
    function is 0 in the outer one, without an error.
    """
    q = left.mT @ right
    if same:
        q = q * (1 - torch.eye(q.shape[-1]).to(q))
    q.detach().clamp_min_(0.0)
    floor = _floor(right)
    s = q / torch.maximum(q, floor).sqrt()
    t = _LN2 * s
    value = ((1, 1 + t, 1 + t + t.square() / 3)[order]) * (-s).exp2()
    if order > 0:
        # Near distance 0, terms of order s cancel and the derivative is lost: use its limit.
        value = torch.where(q > floor, value, 1 + _SLOPES[order] * q)
    return log2_variance.exp2() * value


# By order: the derivative of ``value`` by q, divided by ``lower``. At -1: the derivative of the
# ``lower`` of order 0, divided by :func:`_lower` of order -1.
_SLOPES = {2: -(_LN2**2) / 6, 1: -(_LN2**2) / 2, 0: -_LN2 / 2, -1: -0.5}


def _lower(left: Tensor, right: Tensor, log2_variance: Tensor, order: int, same: bool) -> Tensor:
    """``lower`` of an order of at least -1, for further differentiation."""
    if order >= 0:
        return _MaternValues.apply(left, right, log2_variance, order, same)[1]
    q = torch.maximum(left.mT @ right, _floor(right))
    s = q.sqrt()
    lower = (log2_variance[..., None, None] - s).exp2() * (_LN2 + 1 / s) / q
    return lower * (1 - torch.eye(q.shape[-1]).to(q)) if same else lower


def _floor(right: Tensor) -> Tensor:
    r"""The smallest values of q by whose root is divided, [..., 1, M].

    With :math:`\tau^2` for this floor, the root of a smaller q is taken as :math:`q / \tau`, which
    is 0 where q is 0. In the same units, the rounding error of q is of order
    :math:`\epsilon \|z\|^2`, and that of its root of order :math:`\epsilon \|z\|^2 / \tau`. The
    same holds for the gradient, relative to the norm: it is a small difference of products of order
    :math:`\|z\| / \tau`. With :math:`\tau^2` a multiple of :math:`\epsilon \|z\|^2`, both errors
    are of order :math:`\sqrt\epsilon`; the factor 16 is above the rounding error with 100 inputs.
    For a norm of 0 the floor must be a number by whose root one can divide three times.
    """
    eps = torch.finfo(right.dtype).eps
    return (16 * eps * right.detach()[..., -1:, :]).clamp_min(eps**2)


def _sum(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b
