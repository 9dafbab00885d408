"""Predictive distributions of a fitted model, computed without Pyro primitives.

Pyro's handlers and its param store, which are global, are not involved. So several threads may
predict with the same model, or while another model is being trained.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.checks import output_width
from pyro_dgp.gp.fixed import fixed_copy, has_priors
from pyro_dgp.gp.interpolation import interpolated
from pyro_dgp.gp.latent_prior import balanced_draws, maximum_posterior_shares
from pyro_dgp.gp.layers import GPLayer, LatentLayer, Layer
from pyro_dgp.gp.likelihoods import Likelihood
from pyro_dgp.gp.likelihoods.special import log_mean_exp
from pyro_dgp.gp.pathwise import unit_frequencies
from pyro_dgp.gp.predictive.batches import assembled
from pyro_dgp.gp.predictive.mixture import PredictiveMixture

if TYPE_CHECKING:
    from pyro_dgp.gp.latent_dgp import LatentDGP
    from pyro_dgp.gp.likelihoods.collapsed import Marginal

__all__ = ["Noise", "draw_functions", "mixture", "predict", "shared_noise"]

#: The noise of each hidden layer, or None if it has none.
Noise = Sequence[Tensor | None]

# Rows whose densities at all draws of z are computed at once to fit its prior.
_PRIOR_ROWS = 128
# Draws of the last layer for each of these z, where its integral has no closed form.
_LAST_DRAWS = 4
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
    noise = shared_noise(self, num_samples, X, generator, fixed) if shared_draws else None
    return mixture(self, X, num_samples, generator, covariates, noise, fixed)


def shared_noise(
    self: "LatentDGP",
    num_samples: int,
    like: Tensor,
    generator: torch.Generator | None,
    fixed: Mapping[Layer, Tensor],
) -> list[Tensor | None]:
    """The noise of the hidden layers for all rows, [num_samples, 1, noise_dim] each.

    :param torch.Tensor like: A tensor of the model's dtype, on its device.
    :param dict fixed: Given noise of some layers, [noise_dim].
    """
    found: list[Tensor | None] = []
    for layer in self.layers[:-1]:
        if not layer.noise_dim:
            found.append(None)
        elif layer in fixed:
            found.append(fixed[layer].expand(num_samples, 1, -1))
        else:
            draws = _latin_hypercube(num_samples, layer.noise_dim, like, generator)
            found.append(layer.noise_from(draws).unsqueeze(1))
    return found


def mixture(
    self: "LatentDGP",
    X: Tensor,
    num_samples: int,
    generator: torch.Generator | None,
    covariates: Mapping[str, Tensor],
    shared: Noise | None,
    fixed: Mapping[Layer, Tensor],
    predictive: Callable[..., Distribution] = Likelihood.predictive,
) -> PredictiveMixture:
    """The mixture over draws of :func:`predict`.

    :param shared: Noise from :func:`shared_noise`, for all rows; None to draw it row by row.
    :param dict fixed: Given noise of some layers, [noise_dim].
    :param predictive: The component, given the likelihood and the last layer.
    """
    hidden = list(self.layers[:-1])

    def noise(layer: Layer, samples: int, rows: int) -> Tensor | None:
        """Noise of some samples and rows, [samples, rows, noise_dim]; None without noise."""
        if not layer.noise_dim:
            return None
        if layer in fixed:
            return fixed[layer].expand(samples, rows, -1)
        shape = (samples, rows, layer.noise_dim)
        standard = torch.randn(shape, dtype=X.dtype, device=X.device, generator=generator)
        return layer.noise_from(standard)

    def draws(start: int, stop: int, rows: slice) -> Noise:
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
        return predictive(likelihood, *layers[-1].marginal(h), **given)

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


@torch.inference_mode(False)
@torch.no_grad()
def fit_latent_prior(
    self: "LatentDGP",
    X: Tensor,
    y: Tensor,
    *,
    generator: torch.Generator | None = None,
    **covariates: Tensor,
) -> None:
    """Fits the prior p(z) of the latent inputs to data, with all other parameters fixed.

    After training under N(0, I) this takes seconds, and makes predictions sharper between separate
    modes (:mod:`~pyro_dgp.gp.latent_prior`). The prior is a buffer of the latent layers: it is in
    the model's ``state_dict``, not in Pyro's param store. It has jumps, so that there are no
    gradients through it: before further training, call :meth:`reset_latent_prior`. A second call
    starts from N(0, I) again. (From 12 latent dimensions on it stays N(0, I): 2000 draws are too
    few for two intervals of each.)

    :param torch.Tensor X: Inputs, [N, D], for instance the training data. Memory and time are
        proportional to N; a random sample of 2000 rows is enough.
    :param torch.Tensor y: Targets, [N] or [N, P].
    :param torch.Generator generator: Source of the draws, on X's device; None for torch's global
        generator.
    :param covariates: Covariates of the likelihood per row, and ``weight`` [N], weights of rows.
    :raises TypeError: If X or y is not a tensor of the model's dtype.
    :raises ValueError: If the model has no latent input, a shape is wrong, or a value is not finite
        or not a possible target.
    """
    latent = [layer for layer in self.layers if isinstance(layer, LatentLayer)]
    if not latent:
        raise ValueError("The model has no latent input, so there is no prior to fit.")
    self._check(X, y, covariates)
    weight = covariates.pop("weight", X.new_ones(len(X)))
    dims = [layer.latent_dim for layer in latent]
    z, combinations, num_intervals = balanced_draws(sum(dims), X, generator)
    repeats, z = len(z), z.flatten(0, 1)
    noise = shared_noise(self, len(z), X, generator, {})
    for layer, columns in zip(latent, z.split(dims, 1), strict=True):
        noise[list(self.layers).index(layer)] = columns.unsqueeze(1)
    # Draws of the functions for each z, spread evenly over each interval, too: quadrature takes
    # minutes where there is no closed form.
    J, width = self.likelihood.num_functions, output_width(self.layers)
    last = _latin_hypercube(_LAST_DRAWS * repeats, len(combinations) * width, X, generator)
    last = last.reshape(_LAST_DRAWS, len(z), 1, J, -1).movedim(3, 1)
    last = last if self.likelihood.event_dim else last[..., 0]
    log_p = []
    for rows in torch.arange(len(X), device=X.device).split(_PRIOR_ROWS):
        given = {name: value[rows] for name, value in covariates.items()}
        found = mixture(self, X[rows], len(z), generator, given, noise, {}, Likelihood.integral)
        draws = last.split([part.batch_shape[0] for part in found.parts], 2)
        integrals = cast("list[Marginal]", found.parts)
        each = [p.log_prob_by_draws(y[rows], e) for p, e in zip(integrals, draws, strict=True)]
        each = torch.cat([v.sum(-1) if self.likelihood.event_dim else v for v in each])
        log_p.append(log_mean_exp(each.unflatten(0, (repeats, -1))))
    shares = maximum_posterior_shares(torch.cat(log_p, 1), combinations, num_intervals, weight)
    for layer, found in zip(latent, shares.to(X.dtype).split(dims), strict=True):
        layer.prior_shares = found if num_intervals > 1 else None


def reset_latent_prior(self: "LatentDGP") -> None:
    """Gives z its prior of training, N(0, I), again; see :meth:`fit_latent_prior`."""
    for layer in self.layers:
        if isinstance(layer, LatentLayer):
            layer.prior_shares = None


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
            noise = layer.noise_from(normal(S, 1, layer.noise_dim)) if layer.noise_dim else None
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
