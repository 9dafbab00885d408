"""Predictive distributions of a fitted model, computed without Pyro primitives.

Pyro's handlers and its param store, which are global, are not involved. So several threads may
predict with the same model, or while another model is being trained.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.batches import assembled
from pyro_dgp.gp.fixed import fixed_copy, has_priors
from pyro_dgp.gp.interpolation import interpolated
from pyro_dgp.gp.layers import GPLayer, Layer
from pyro_dgp.gp.likelihoods import Likelihood
from pyro_dgp.gp.mixture import PredictiveMixture
from pyro_dgp.gp.pathwise import unit_frequencies

if TYPE_CHECKING:
    from pyro_dgp.gp.latent_dgp import LatentDGP

__all__ = ["draw_functions", "predict"]

# Rows [samples x inputs] that go through the layers at once.
_PREDICT_ROWS = 2**13
# Features [functions x inputs x features] that are held at once.
_FEATURES = 2**22


@torch.inference_mode(False)  # methods of the mixture may need derivatives later
@torch.no_grad()
def predict(
    self: "LatentDGP",
    X: Tensor,
    num_samples: int = 1000,
    *,
    shared_draws: bool = False,
    z: Tensor | None = None,
    generator: torch.Generator | None = None,
    **covariates: Tensor,
) -> PredictiveMixture:
    """Predictive distribution of the targets at new inputs.

    An equal mixture over draws of z from its prior and of the hidden layers from q; each component
    is integrated over the last layer and the noise. Hyperparameters with a prior are drawn from
    their guide, once per sample. Several threads may call it at once.

    :param torch.Tensor X: New inputs, [N, D].
    :param int num_samples: Number of components S.
    :param bool shared_draws: True for the same draws of z and of the hidden layers' noise in all
        rows, so that predictions vary smoothly with the inputs and do not depend on the other rows.
        They are a Latin hypercube (McKay et al. 1979), as an error of the draws would be that of
        all rows.
    :param torch.Tensor z: Fixed latent input of all rows, [latent_dim], to see its effect; None to
        draw it. It needs a single :class:`~pyro_dgp.gp.LatentLayer`.
    :param torch.Generator generator: Source of the draws, on X's device; None for torch's global
        generator.
    :param covariates: Covariates of the likelihood per row, such as ``exposure`` [N].
    :returns: A distribution with batch shape [N], and event shape [P] for targets [N, P].
    :raises TypeError: If X is not a floating-point tensor of the model's dtype, or the likelihood
        takes no such covariate.
    :raises ValueError: If X has a wrong shape or non-finite values, z does not fit the model,
        or ``num_samples < 1``.
    """
    self._check(X, None, covariates)
    num_samples = check_integer("num_samples", num_samples, 1)
    covariates.pop("weight", None)  # a weight of y, for training only
    fixed = self._fixed_inputs(z)

    def noise(layer: Layer, samples: int, rows: int) -> Tensor | None:
        """Noise of some samples and rows, [samples, rows, noise_dim]; None without noise."""
        if not layer.noise_dim:
            return None
        if layer in fixed:
            return fixed[layer].expand(samples, rows, -1)
        if shared_draws:
            return _latin_hypercube(samples, layer.noise_dim, X, generator).unsqueeze(1)
        shape = (samples, rows, layer.noise_dim)
        return torch.randn(shape, dtype=X.dtype, device=X.device, generator=generator)

    hidden = list(self.layers[:-1])
    shared = [noise(layer, num_samples, 1) for layer in hidden] if shared_draws else None

    def draws(start: int, stop: int, rows: slice) -> Sequence[Tensor | None]:
        if shared is not None:
            return [None if values is None else values[start:stop] for values in shared]
        return [noise(layer, stop - start, rows.stop - rows.start) for layer in hidden]

    def component(
        layers: Sequence[Layer], likelihood: Likelihood, start: int, stop: int, rows: slice
    ) -> Distribution:
        h = X[rows].expand(stop - start, -1, -1)
        for layer, epsilon in zip(layers[:-1], draws(start, stop, rows), strict=True):
            h = layer.propagate(h, epsilon)
        given = {name: value[rows] for name, value in covariates.items()}
        return likelihood.predictive(*layers[-1].marginal(h), **given)

    def parts(
        model: "LatentDGP", start: int, stop: int
    ) -> Iterator[tuple[tuple[slice, slice], Distribution]]:
        """Components from ``start`` to ``stop``, a few samples and rows at a time."""
        layers = [layer.prepared() for layer in model.layers]
        if shared is None:
            step = max(1, _PREDICT_ROWS // len(X))
            num_rows = _PREDICT_ROWS
        else:  # all samples of a few rows, because the samples share computations
            step = min(_PREDICT_ROWS, stop - start)
            num_rows = _PREDICT_ROWS // step
        for low in range(start, stop, step):
            high = min(low + step, stop)
            some = layers
            if shared:
                some = interpolated(layers, shared[0], slice(low, high))
            for first in range(0, len(X), num_rows):
                rows = slice(first, min(first + num_rows, len(X)))
                found = component(some, model.likelihood, low, high, rows)
                yield (slice(low - start, high - start), rows), found

    def mixture_of(model: "LatentDGP", start: int, stop: int) -> Distribution:
        return assembled(parts(model, start, stop), (stop - start, len(X)))

    if has_priors(self):
        found = [mixture_of(fixed_copy(self, generator), s, s + 1) for s in range(num_samples)]
    else:
        found = [mixture_of(fixed_copy(self), 0, num_samples)]
    return PredictiveMixture(found, self.likelihood.event_dim)


def _latin_hypercube(
    size: int, dim: int, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Standard normal draws, [size, dim], each coordinate of which has one in every 1/size of the
    probability; in the dtype and on the device of ``like``.
    """

    def uniform() -> Tensor:
        return torch.rand(size, dim, dtype=torch.float64, device=like.device, generator=generator)

    u = (uniform().argsort(0) + uniform()) / size
    eps = torch.finfo(u.dtype).eps
    return torch.special.ndtri(u.clamp(eps, 1 - eps)).to(like.dtype)


@torch.no_grad()
def draw_functions(
    self: "LatentDGP",
    num_functions: int = 1,
    *,
    z: Tensor | None = None,
    num_features: int = 1000,
    generator: torch.Generator | None = None,
) -> Callable[[Tensor], Tensor]:
    """Draws whole functions from the model, for Thompson sampling and smooth pictures.

    The latent input is drawn once per function from its prior, and each GP layer, the last one
    included, is a function drawn from q (:mod:`pyro_dgp.gp.pathwise`). The likelihood's noise is
    not included. Later changes of the parameters do not change the functions.

    :param int num_functions: Number of functions S.
    :param torch.Tensor z: Fixed latent input of all functions, [latent_dim]; None to draw it.
    :param int num_features: Number of random features of each GP's prior, even.
    :param torch.Generator generator: Source of the draws, on the model's device; None for torch's
        global generator.
    :returns: A function from inputs [..., N, D] to the S functions' values, [S, ..., N, F], which
        may be called any number of times, and differentiated by its inputs.
    :raises NotImplementedError: If functions of a kernel cannot be drawn, or hyperparameters have a
        prior.
    :raises ValueError: If z does not fit the model, or a number is out of range.
    """
    S = check_integer("num_functions", num_functions, 1)
    num_features = check_integer("num_features", num_features, 2)
    if has_priors(self):
        raise NotImplementedError(
            "Functions of a model whose hyperparameters have priors cannot be drawn; predict() can."
        )
    fixed = self._fixed_inputs(z)
    like = next(self.parameters())

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)

    steps: list[Callable[[Tensor], Tensor]] = []
    for own, layer in zip(self.layers, fixed_copy(self).layers, strict=True):
        if own in fixed:
            steps.append(partial(layer.propagate, noise=fixed[own].expand(S, 1, -1)))
        elif isinstance(layer, GPLayer):
            frequencies = unit_frequencies(layer.kernel, num_features // 2, generator)
            noise = normal(S, 1, layer.function_noise_dim(2 * len(frequencies)))
            steps.append(partial(layer.drawn_function, noise=noise, frequencies=frequencies))
        else:
            noise = normal(S, 1, layer.noise_dim) if layer.noise_dim else None
            steps.append(partial(layer.propagate, noise=noise))

    def values(h: Tensor) -> Tensor:
        for step in steps:
            h = step(h)
        return h.expand(S, -1, -1)

    def functions(X: Tensor) -> Tensor:
        """The values of the functions, [S, ..., N, F], at X [..., N, D]."""
        # All functions share the inputs until a layer expands them to S. A few rows at a time,
        # because the features of S functions are large.
        rows = X.reshape(1, -1, X.shape[-1]).split(max(1, _FEATURES // (S * num_features)), 1)
        found = torch.cat([values(h) for h in rows], 1)
        return found.reshape(S, *X.shape[:-1], found.shape[-1])

    return functions
