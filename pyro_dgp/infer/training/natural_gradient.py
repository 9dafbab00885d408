r"""Natural-gradient steps for Gaussian q(u), beside any optimiser for the rest.

A step of size :math:`\gamma` on the natural parameters of :math:`q(u) = N(m, \Sigma)`,
:math:`\theta \leftarrow \theta - \gamma\, \partial\,\mathrm{loss} / \partial\eta` with the
expectation parameters :math:`\eta`, is

.. math::
    \Sigma_\mathrm{new}^{-1}
      &= \Sigma^{-1} + 2 \gamma\, \frac{\partial\,\mathrm{loss}}{\partial\Sigma}, \\
    m_\mathrm{new}
      &= m - \gamma\, \Sigma_\mathrm{new} \frac{\partial\,\mathrm{loss}}{\partial m}.

With :math:`\Sigma = S S^\top`, the gradient :math:`\bar S` by S, and :math:`\Phi` the lower
triangle with half its diagonal, that needs no inverse of S:

.. math::
    H = \tfrac12\big(\Phi(S^\top \bar S) + \Phi(S^\top \bar S)^\top\big), \qquad
    S_\mathrm{new} = S\, \mathrm{chol}\big((I + 2 \gamma H)^{-1}\big).

Source: Hensman, Fusi and Lawrence (2013), section 2.3; Salimbeni, Eleftheriadis and Hensman (2018).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

__all__ = ["NaturalGradient", "natural_step"]

_MOST_HALVINGS = 20


class NaturalGradient(PyroOptim):
    """Natural-gradient steps on q(u) of some layers, another optimiser on all other parameters.

    For use as ``SVI(..., optim=NaturalGradient(layers, optim))``. Where a step would leave
    :math:`I + 2 \\gamma H` without a Cholesky factor, it is halved until it does not;
    :attr:`num_cut_back` counts those.

    Source: Rudner et al. (2021), appendix "Optimization": the last layer's q(u), step 0.01, times
    0.98 every 1000 steps.

    :param layers: Modules with ``u_loc`` [R, M] and ``u_scale_tril`` [R, M, M], such as
        :class:`~pyro_dgp.GPLayer` and Pyro's ``VariationalSparseGP``.
    :param ~pyro.optim.PyroOptim optim: Optimiser of all other parameters. If it is a
        ``PyroLRScheduler``, :func:`~pyro_dgp.infer.fit` advances it; in your own loop, call its
        ``step()``.
    :param float lr: Step size :math:`\\gamma`; 1 solves a conjugate model at once.
    :param float decay: Factor of the step size every ``decay_steps`` steps.
    :param int decay_steps: Number of steps between two decays.
    :param annealing_steps: Number of steps over which the step size falls to 0 along half a cosine,
        as in :func:`~pyro_dgp.infer.annealed_adam`; None for the decay.
    :raises ValueError: If there are no layers, one lacks q(u), or a number is out of range.
    """

    def __init__(
        self,
        layers: nn.Module | Sequence[nn.Module],
        optim: PyroOptim,
        lr: float = 0.01,
        decay: float = 0.98,
        decay_steps: int = 1000,
        annealing_steps: int | None = None,
    ) -> None:
        self.layers = [layers] if isinstance(layers, nn.Module) else list(layers)
        if not self.layers:
            raise ValueError("layers is empty: give the layers whose q(u) takes natural gradients.")
        for i, layer in enumerate(self.layers):
            for name in ("u_loc", "u_scale_tril"):
                if _unconstrained(layer, name) is None:
                    raise ValueError(
                        f"layers[{i}] ({type(layer).__name__}) has no parameter {name}, so no q(u)."
                    )
        numbers = {"lr": lr, "decay": decay, "decay_steps": decay_steps}
        if annealing_steps is not None:
            numbers["annealing_steps"] = annealing_steps
        for name, value in numbers.items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive, but it is {value}.")
        self.optim = optim
        self.lr, self.decay, self.decay_steps = lr, decay, decay_steps
        self.annealing_steps = annealing_steps
        self.num_steps = 0
        #: Steps that had to be shortened.
        self.num_cut_back = 0

    @property
    def optim_objs(self) -> dict:
        """The other optimiser's, by parameter."""
        return self.optim.optim_objs

    @property
    def step_size(self) -> float:
        """The size of the next step."""
        if self.annealing_steps is None:
            return self.lr * self.decay ** (self.num_steps // self.decay_steps)
        done = min(1.0, self.num_steps / self.annealing_steps)
        return self.lr * 0.5 * (1 + math.cos(math.pi * done))

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        rest = list(params)
        for layer in self.layers:
            loc, scale_tril = (_unconstrained(layer, name) for name in ("u_loc", "u_scale_tril"))
            others = [p for p in rest if p is not loc and p is not scale_tril]
            if loc is None or scale_tril is None or len(others) == len(rest):
                raise ValueError(
                    f"q(u) of a {type(layer).__name__} that NaturalGradient was given is not among "
                    "the parameters of this model: give the model's own layers."
                )
            rest = others
            if loc.grad is not None or scale_tril.grad is not None:
                known = getattr(layer, "_pyro_params", {})
                constraint, _ = known.get("u_scale_tril", (constraints.real, None))
                self._step(loc, scale_tril, transform_to(constraint))
        self.num_steps += 1
        self.optim(rest, *args, **kwargs)

    def _step(self, loc: Tensor, unconstrained: Tensor, transform: Callable) -> None:
        with torch.enable_grad():
            u = unconstrained.detach().requires_grad_()
            S = transform(u)
            # Entries of S depend on one entry of u each, as in all of torch's transforms to them.
            (slope,) = torch.autograd.grad(S.sum(), u)
        S = S.detach()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in (loc, unconstrained)]
        S_grad = torch.where(slope == 0, 0.0, grads[1] / torch.where(slope == 0, 1.0, slope))
        new_loc, new_S, cut_back = natural_step(loc.detach(), S, grads[0], S_grad, self.step_size)
        self.num_cut_back += cut_back
        with torch.no_grad():
            loc.copy_(new_loc)
            unconstrained.copy_(transform.inv(new_S))

    def get_state(self) -> dict:
        """State of both optimisers."""
        mine = {"num_steps": self.num_steps, "num_cut_back": self.num_cut_back}
        return {**mine, "optim": self.optim.get_state()}

    def set_state(self, state_dict: dict) -> None:
        """Takes what :meth:`get_state` gave."""
        self.num_steps = state_dict["num_steps"]
        self.num_cut_back = state_dict["num_cut_back"]
        self.optim.set_state(state_dict["optim"])


def _unconstrained(module: nn.Module, name: str) -> nn.Parameter | None:
    """A parameter with or without a constraint, in unconstrained space."""
    parameters = dict(module.named_parameters(recurse=False))
    return parameters.get(f"{name}_unconstrained", parameters.get(name))


def natural_step(
    m: Tensor, S: Tensor, m_grad: Tensor, S_grad: Tensor, step_size: float
) -> tuple[Tensor, Tensor, bool]:
    """One step for R Gaussians N(m, S S^T).

    :param torch.Tensor m: [..., M].
    :param torch.Tensor S: Lower triangular, [..., M, M]; its diagonal may be negative.
    :param torch.Tensor m_grad: Gradient of the loss by m.
    :param torch.Tensor S_grad: Gradient of the loss by the lower triangle of S.
    :param float step_size: The step, halved as often as it takes to stay positive definite.
    :returns: The new m and S, and whether the step was cut back.
    :raises ArithmeticError: If no step is short enough, as with a gradient that is not finite.
    """
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    P = (S.mT @ S_grad).tril()
    P = P - 0.5 * torch.diag_embed(P.diagonal(dim1=-2, dim2=-1))
    H = 0.5 * (P + P.mT)
    for halvings in range(_MOST_HALVINGS + 1):
        size = step_size * 0.5**halvings
        root, info = torch.linalg.cholesky_ex(eye + 2 * size * H)
        if bool((info == 0).all()):
            inner, info = torch.linalg.cholesky_ex(torch.cholesky_inverse(root))
            if bool((info == 0).all()) and bool(torch.isfinite(inner).all()):
                S = (S @ inner).tril()
                # The same step for both: a shorter one for S alone would be no gradient's.
                m = m - size * (S @ (S.mT @ m_grad.unsqueeze(-1))).squeeze(-1)
                return m, S, halvings > 0
    raise ArithmeticError(
        "A natural-gradient step on q(u) does not stay positive definite, however short. Lower "
        "the learning rates, or use float64."
    )
