"""Losses and gradients that are not finite are detected before the optimiser takes a step."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor

from pyro_dgp.infer.loss import Loss
from pyro_dgp.infer.sites import log_prob, random_sites, unconstrained_parameters

__all__ = ["Guard", "NonFiniteError", "non_finite"]


class NonFiniteError(ArithmeticError):
    """A loss or a gradient was NaN or infinite; the parameters are those before that step.

    :param int step: The step, counted from 0.
    :param str what: The quantity that is not finite, "loss" or "gradient".
    :param list sites: Names of the sample sites or parameters that are not finite.
    """

    def __init__(self, step: int, what: str, sites: list[str]) -> None:
        self.step, self.sites = step, sites
        where = f" at {', '.join(sites)}" if sites else ""
        super().__init__(
            f"Step {step}: the {what} is not finite{where}. The parameters are those before this "
            "step. Lower the learning rate, standardise the data, or use float64."
        )


class Guard:
    """``loss_and_grads`` that raises if the loss or a gradient is not finite."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.step = 0
        self.parameters: dict[str, Tensor] = {}

    def __call__(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        with poutine.trace(param_only=True) as params, self._explained(model, guide, args, kwargs):
            value = self.loss.loss_and_grads(model, guide, *args, **kwargs)
        if isinstance(value, tuple):
            raise ValueError(
                f"loss must have one value, but that of {type(self.loss).__name__} is "
                f"{len(value)} values: use it with pyro.infer.SVI."
            )
        self.parameters.update(unconstrained_parameters(params.trace))
        gradients = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
        if not math.isfinite(value):
            self.clear_gradients()
            bad = _non_finite_sites(model, guide, args, kwargs)
            raise NonFiniteError(self.step, "loss", bad)
        bad = non_finite(gradients)
        if bad:
            self.clear_gradients()
            raise NonFiniteError(self.step, "gradient", bad)
        return value

    @contextmanager
    def _explained(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> Iterator[None]:
        """Pyro refuses distributions whose parameters are not finite before there is a loss."""
        try:
            yield
        except ValueError as error:
            if not self.step:  # the model itself may be wrong
                raise
            bad = non_finite(self.parameters)
            with suppress(ValueError):
                bad = bad or _non_finite_sites(model, guide, args, kwargs)
            if not bad:
                raise
            self.clear_gradients()
            raise NonFiniteError(self.step, "loss", bad) from error

    def clear_gradients(self) -> None:
        """Clears gradients of a step that did not reach the optimiser, which would be added up."""
        for p in self.parameters.values():
            p.grad = None


def non_finite(tensors: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    if not tensors:
        return []
    # One number to check. As a norm may overflow where its tensor does not, entries are checked
    # next.
    norms = torch._foreach_norm(list(tensors.values()))  # pyright: ignore[reportPrivateImportUsage]
    if bool(torch.isfinite(torch.stack([norm.double() for norm in norms])).all()):
        return []
    return [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]


def _non_finite_sites(model: Callable, guide: Callable, args: tuple, kwargs: dict) -> list[str]:
    """Runs model and guide once more and checks the density of every site."""
    bad = []
    with poutine.block(), torch.no_grad(), pyro.validation_enabled(False):
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replay = poutine.replay(model, trace=guide_trace)
        model_trace = poutine.trace(replay).get_trace(*args, **kwargs)
        for trace in (guide_trace, model_trace):
            for name, site in random_sites(trace).items():
                finite = torch.isfinite(log_prob(site, site["value"])).all()
                if name not in bad and not bool(finite):
                    bad.append(name)
    return bad
