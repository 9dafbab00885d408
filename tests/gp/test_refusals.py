"""What the models and their parts do not take."""

import math
from functools import partial

import pyro.contrib.gp.likelihoods as pyros
import pytest
import torch
from pyro.contrib.gp import kernels
from pyro.nn import PyroParam
from torch import nn
from torch.distributions import Independent, Normal
from torch.distributions import Poisson as TorchPoisson

from pyro_dgp import DRegIWELBO, GaussianLikelihood, GPLayer, LatentDGP, LatentLayer
from pyro_dgp.gp import Exponentiated, Layer, PredictiveMixture
from pyro_dgp.gp.conditional import stable_cholesky
from pyro_dgp.gp.kernels import KERNELS, kernel_named
from pyro_dgp.gp.likelihoods import Poisson
from pyro_dgp.gp.likelihoods.quadrature import expected
from pyro_dgp.gp.pathwise import unit_frequencies
from pyro_dgp.gp.predictive.recalibration import Recalibrated, best_exponent
from tests.gp.models import D, M, N, data, small
from tests.refusals import refusals

NAN, INF = math.nan, math.inf


def normals(*shape, event_dim=0):
    return PredictiveMixture(Normal(torch.randn(shape), 1.0), event_dim)


# Distributions of targets


def best_exponent_of(change):
    F = torch.rand(4, 9).sort().values
    return best_exponent(*change(F, F > 0.5, torch.ones(9)))


@refusals(
    {
        "no lattice has a density": (
            lambda: Exponentiated(PredictiveMixture(TorchPoisson(torch.ones(3, 2)))),
            ValueError, "base has probabilities of a lattice",
        ),
        "fewer batch dimensions than outputs need": (
            lambda: PredictiveMixture(Normal(torch.zeros(3), torch.ones(3)), 1),
            ValueError, r"batch shapes \[\(3,\)\], but need",
        ),
        "parts of different shapes": (
            lambda: PredictiveMixture([Normal(torch.zeros(s), 1.0) for s in ((3, 2), (4, 5))]),
            ValueError, r"\(3, 2\), \(4, 5\)",
        ),
        "a scale of 0": (
            lambda: PredictiveMixture(Normal(torch.zeros(3, 2), torch.zeros(3, 2))),
            ValueError, "parameter scale .* to satisfy the constraint",
        ),
        "an output that is not there": (
            lambda: normals(5, 3, 2, event_dim=1).marginal(2),
            ValueError, "output must be from 0 to 1, but it is 2",
        ),
        "an output where there are none": (
            lambda: normals(5, 3).marginal(2), ValueError, "no other marginal than itself"
        ),
        "recalibration of several outputs": (
            lambda: Recalibrated(normals(4, 3, 2, event_dim=1), 1.0),
            ValueError, r"base needs one target per row, but its event shape is \(2,\)",
        ),
        "held-out rows of different shapes": (
            lambda: best_exponent_of(lambda F, H, width: (F, H[:2], width)),
            ValueError, r"cdf, observed and width need the shapes \[n, G\]",
        ),
        "no held-out rows": (
            lambda: best_exponent_of(lambda F, H, width: (F[:0], H[:0], width)),
            ValueError, "cdf needs at least one row",
        ),
        "probabilities above 1": (
            lambda: best_exponent_of(lambda F, H, width: (F + 1, H, width)),
            ValueError, "cdf needs .* numbers from 0 to 1",
        ),
        "probabilities that are no numbers": (
            lambda: best_exponent_of(lambda F, H, width: (F * NAN, H, width)),
            ValueError, "cdf needs .* numbers from 0 to 1",
        ),
    }
    | {
        f"the exponent {k}": (
            lambda k=k: Recalibrated(normals(5, 3), k),
            ValueError, "exponent must be positive and finite",
        )
        for k in (0.0, -1.0, INF, NAN)
    }
    | {
        f"the quantile of {q} of {what}": (
            lambda q=q, make=make: make().quantile(q),
            ValueError, "Probabilities must lie strictly between 0 and 1",
        )
        for q in (0.0, 1.0, -0.1, NAN)
        for what, make in {
            "a mixture": lambda: normals(5, 3),
            "a mixture of two outputs": lambda: normals(5, 3, 2, event_dim=1),
            "a recalibrated one": lambda: Recalibrated(normals(5, 3), 1.7),
        }.items()
    }
)  # fmt: skip
def test_distributions(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Kernels, layers and likelihoods


def gp_layer(**options):
    return GPLayer(**{"kernel": kernels.RBF(D), "Xu": torch.zeros(M, D), "num_gps": 2} | options)


def latent_layer(num_dims):
    """Whose encoder gives this many dimensions, where 3 are needed."""

    class Encoder(nn.Module):
        def forward(self, X, y):
            return Independent(Normal(torch.zeros(len(X), num_dims), 0.1), 1)

    return LatentLayer(3, Encoder())


def matrix(corner):
    K = torch.eye(3)
    K[0, 0] = corner
    return K


@refusals(
    {
        "a kernel of an unknown name": (
            lambda: kernel_named("x", 3),
            ValueError,
            r"^kernel must be one of rbf, matern12, matern32, matern52, but it is 'x'\.$",
        ),
        "random features of another kernel": (
            lambda: unit_frequencies(kernels.Linear(3), 7),
            NotImplementedError, r"Linear kernel.*use an RBF",
        ),
        "inducing inputs that are no rows": (
            lambda: gp_layer(Xu=torch.zeros(D)), ValueError, r"Xu must be \[num_inducing, D_in\]"
        ),
        "no GPs": (lambda: gp_layer(num_gps=0), ValueError, "num_gps must be at least 1"),
        "a mixing of other GPs": (
            lambda: gp_layer(mixing=torch.zeros(4, 3)),
            ValueError, r"mixing must be \[width, num_gps=2\]",
        ),
        "a mean of other inputs": (
            lambda: gp_layer(linear_mean=torch.zeros(2, D + 1)),
            ValueError, r"linear_mean must be \[width=2, D_in=3\]",
        ),
        "a mean of fewer outputs than the mixing": (
            lambda: gp_layer(mixing=torch.zeros(4, 2), linear_mean=torch.zeros(2, D)),
            ValueError, r"linear_mean must be \[width=4, D_in=3\]",
        ),
        "no latent dimension": (
            lambda: LatentLayer(0), ValueError, "latent_dim must be at least 1"
        ),
        "an encoder of other dimensions": (
            lambda: latent_layer(2).guide_local(torch.randn(5, D), torch.randn(5)),
            ValueError, r"\(5, 2\), but z needs .* \(5, 3\)",
        ),
        "a variance for each of no outputs": (
            lambda: GaussianLikelihood(torch.tensor([0.1, 0.2]), event_dim=0),
            ValueError, r"variance has shape \(2,\) with event_dim=0; give a scalar",
        ),
        "quadrature over many functions": (
            lambda: expected(lambda *f: f[0], torch.zeros(4, 1), torch.ones(4, 1)),
            NotImplementedError, "no quadrature over 4 functions: give the likelihood an exp",
        ),
    }
    | {
        f"{name} of inputs that are not there": (
            lambda name=name: kernel_named(name, 3)(torch.randn(4, 3), torch.randn(4, 2)),
            ValueError, "looks at input 2, counted from 0, but there are 2",
        )
        for name in KERNELS
    }
    | {
        f"a matrix with {corner} on the diagonal": (
            lambda corner=corner: stable_cholesky(matrix(corner), 1e-6, "layer 1"),
            ValueError, "layer 1: .* (lower the learning rate|larger `jitter`)",
        )
        for corner in (NAN, INF, -1.0)
    }
    | {
        f"a noise variance of {variance}": (
            lambda variance=variance: GaussianLikelihood(variance),
            ValueError, "variance must be finite and above",
        )
        for variance in (0.0, -1.0, NAN, INF, 1e-7)
    }
)  # fmt: skip
def test_parts(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Models


class Square(Layer):
    """A layer without a marginal."""

    def width(self, input_dim):
        return input_dim

    def propagate(self, h, noise):
        return h.square()


def of_layers(*layers, likelihood=None):
    return LatentDGP(list(layers), likelihood or GaussianLikelihood(0.1), N)


def to_two(num_gps=1):
    """A layer that takes two inputs."""
    return GPLayer(kernels.RBF(2), torch.zeros(M, 2), num_gps)


def a_layer_twice(within_one):
    layer, noise = to_two(2), GaussianLikelihood(0.1, event_dim=1)
    if within_one:
        return of_layers(layer, layer, likelihood=noise)
    of_layers(layer, likelihood=noise)
    return of_layers(layer, likelihood=GaussianLikelihood(0.1, event_dim=1))


def a_likelihood_twice():
    X, y = data()
    likelihood = Poisson(1.0)
    for _ in range(2):
        small(X, y.abs().round(), likelihood=likelihood)


@refusals(
    {
        "no layers": (of_layers, ValueError, "layers must end with a GPLayer"),
        "a latent layer alone": (
            lambda: of_layers(LatentLayer(1)), ValueError, "layers must end with a GPLayer"
        ),
        "mixed outputs": (
            lambda: of_layers(GPLayer(kernels.RBF(2), torch.zeros(M, 2), 2, torch.eye(2))),
            ValueError, "build it without `mixing`",
        ),
        "a layer of other inputs": (
            lambda: of_layers(to_two(2), LatentLayer(1), to_two()),
            ValueError, r"layers\[2\] takes 2 inputs, but the layers before it give 3",
        ),
        "no layer of ours": (
            lambda: of_layers(nn.Linear(2, 2), to_two()),
            ValueError, r"layers\[0\] is a Linear, no Layer: use GPLayer",
        ),
        "a last layer without a marginal": (
            lambda: of_layers(to_two(2), Square()), ValueError, "with a marginal, not a Square"
        ),
        "outputs that are no events": (
            lambda: of_layers(to_two(2)), ValueError, "has 2 outputs: use event_dim"
        ),
        "noise of other outputs": (
            lambda: of_layers(
                to_two(3), likelihood=GaussianLikelihood(torch.tensor([0.1, 0.2]), event_dim=1)
            ),
            ValueError, "has 2 noise variances, but the last layer has 3",
        ),
        "levels of other outputs": (
            lambda: of_layers(to_two(), likelihood=Poisson(torch.ones(3), event_dim=1)),
            ValueError, "initial values for 3 targets, but .* functions for 1",
        ),
        "latent inputs in place of all": (
            lambda: of_layers(LatentLayer(2), to_two()), ValueError, "none is left for X"
        ),
        "a layer twice": (
            lambda: a_layer_twice(True),
            ValueError, r"layers\[1\] is already part of a model: give every",
        ),
        "a layer of another model": (
            lambda: a_layer_twice(False),
            ValueError, r"layers\[0\] is already part of a model: give every",
        ),
        "a likelihood of another model": (
            a_likelihood_twice, ValueError, "likelihood is already part of a model: give every"
        ),
        "no rows": (
            lambda: LatentDGP([to_two()], GaussianLikelihood(0.1), 0),
            ValueError, "num_data must be at least 1",
        ),
    }
    | {
        f"Pyro's {make().__class__.__name__}": (
            lambda make=make: of_layers(to_two(), likelihood=make()),
            TypeError, rf"all pairs.* Use pyro_dgp.gp.likelihoods.{use}\.",
        )
        for make, use in {
            pyros.Gaussian: "GaussianLikelihood",
            pyros.Binary: "Bernoulli",
            partial(pyros.MultiClass, 3): "Categorical",
            pyros.Poisson: "Poisson",
        }.items()
    }
)  # fmt: skip
def test_models(call, error, words):
    with pytest.raises(error, match=words):
        call()


def of_options(**options):
    return lambda: LatentDGP.from_data(*data(), **options)


def of_data(change):
    return lambda: LatentDGP.from_data(*change(*data()))


@refusals(
    {
        "no layers": (of_options(num_layers=0), ValueError, "num_layers must be at least 1"),
        "half a layer": (of_options(num_layers=2.0), ValueError, "num_layers must be an integer"),
        "a truth for layers": (
            of_options(num_layers=True), ValueError, "num_layers must be an integer"
        ),
        "less than no latent inputs": (
            of_options(latent_dim=-1), ValueError, "latent_dim must be at least 0"
        ),
        "no inducing inputs": (
            of_options(num_inducing=0), ValueError, "num_inducing must be at least 1"
        ),
        "no inducing inputs of the last layer": (
            of_options(num_last_inducing=0), ValueError, "num_last_inducing must be at least 1"
        ),
        "no GPs": (of_options(num_gps=0), ValueError, "num_gps must be at least 1"),
        "a negative jitter": (
            of_options(jitter=-1.0), ValueError, "jitter must lie between 0 and 1"
        ),
        "a jitter that is no number": (
            of_options(jitter=NAN), ValueError, "jitter must lie between 0 and 1"
        ),
        "another mixing": (
            of_options(mixing="random"), ValueError, "mixing must be one of principal, published"
        ),
        "no noise": (
            of_options(noise_variance=0.0), ValueError, "variance must be finite and above"
        ),
        "noise that is no number": (
            of_options(noise_variance=NAN), ValueError, "variance must be finite and above"
        ),
        "another kernel": (
            of_options(kernel="matern72"), ValueError, "kernel must be one of rbf, .*'matern72'"
        ),
        "another likelihood": (
            of_options(likelihood="normal"),
            ValueError, "likelihood must be one of gaussian, .* zero_inflated, but it is 'normal'",
        ),
        "no likelihood": (
            of_options(likelihood=3), TypeError, r"likelihood is a int, no pyro_dgp\.gp\.Likelihood"
        ),
        "targets that are no counts": (
            lambda: LatentDGP.from_data(
                torch.randn(20, D), torch.randn(20) + 0.1234567, likelihood="poisson"
            ),
            ValueError, r"Poisson takes counts 0, 1, 2, \.\.\., but 20 of 20",
        ),
        "draws of another kind": (
            of_options(function_draws="joint"),
            ValueError, "function_draws must be 'independent' or 'shared'",
        ),
        "an odd number of features": (
            of_options(function_draws="shared", num_features=3),
            ValueError, "num_features must be even",
        ),
        "fewer rows than targets": (
            of_data(lambda X, y: (X[:5], y)), ValueError, "X has 5 rows, but y has 30"
        ),
        "no rows": (of_data(lambda X, y: (X[:0], y[:0])), ValueError, "X has no rows"),
        "no columns": (
            of_data(lambda X, y: (X[:, :0], y)), ValueError, r"X must have shape \[N, D\]"
        ),
        "an array": (
            of_data(lambda X, y: (X.numpy(), y)),
            TypeError, r"X must be a torch\.Tensor, .*use torch\.as_tensor",
        ),
        "integers": (
            of_data(lambda X, y: (X, y.int())),
            TypeError, r"y must be floating point, .*use y\.double\(\)",
        ),
        "no outputs": (
            of_data(lambda X, y: (X, y[:, None][:, :0])),
            ValueError, r"y must have shape \[N\] or \[N, P\]",
        ),
    }
    | {
        f"Pyro's {make().__class__.__name__}": (
            lambda make=make: LatentDGP.from_data(*data(), likelihood=make()),
            TypeError, rf"Use pyro_dgp\.gp\.likelihoods\.{use}\.",
        )
        for make, use in {
            pyros.Gaussian: "GaussianLikelihood",
            pyros.Binary: "Bernoulli",
            partial(pyros.MultiClass, 3): "Categorical",
            pyros.Poisson: "Poisson",
        }.items()
    }
)  # fmt: skip
def test_configurations(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Batches


@pytest.mark.parametrize("method", ["model", "guide"])
@refusals(
    {
        "fewer rows than targets": (
            lambda X, y: (X[:5], y), ValueError, "X has 5 rows, but y has 30"
        ),
        "fewer columns": (
            lambda X, y: (X[:, :2], y), ValueError, "X has 2 columns, but the model was built for 3"
        ),
        "no rows": (lambda X, y: (X[:0], y[:0]), ValueError, "X has no rows"),
        "one column": (lambda X, y: (X[:, 0], y), ValueError, r"X must have shape \[N, D\]"),
        "a column of targets": (
            lambda X, y: (X, y[:, None]), ValueError, r"y has shape .* expects \[B\]"
        ),
        "a block of targets": (
            lambda X, y: (X, y[:, None, None]), ValueError, r"y must have shape \[N\] or"
        ),
        "an array": (
            lambda X, y: (X.numpy(), y),
            TypeError, r"X must be a torch\.Tensor, but it is a ndarray",
        ),
        "a list": (lambda X, y: (X, y.tolist()), TypeError, r"y must be a torch\.Tensor"),
        "inputs that are integers": (
            lambda X, y: (X.long(), y), TypeError, r"X must be floating point, .*use X\.double\(\)"
        ),
        "targets that are integers": (
            lambda X, y: (X, y.long()), TypeError, r"y must be floating point, .*use y\.double\(\)"
        ),
        "half precision": (
            lambda X, y: (X.half(), y.half()),
            TypeError, r"32 or 64 bits, but it is torch\.float16; use X\.double\(\)",
        ),
        "another dtype": (
            lambda X, y: (X.float(), y), TypeError, r"X is torch\.float32 .* convert one of them"
        ),
        "more rows than the data": (
            lambda X, y: (torch.cat([X, X]), torch.cat([y, y])), ValueError, "more than num_data"
        ),
        "nothing": (lambda X, y: (None, y), TypeError, r"X must be a torch\.Tensor"),
    }
)  # fmt: skip
def test_batches(method, call, error, words):
    X, y = data()
    dgp = small(X, y)
    with pytest.raises(error, match=words):
        getattr(dgp, method)(*call(X, y))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("method", ["from_data", "model", "guide", "loss", "predict"])
def test_values_that_are_not_finite(method, value):
    X, y = data()
    dgp = small(X, y)
    call = {
        "from_data": LatentDGP.from_data,
        "loss": partial(DRegIWELBO(K=2).loss, dgp.model, dgp.guide),
        "predict": lambda X, y: dgp.predict(X, 2),
    }.get(method) or getattr(dgp, method)
    broken = X.clone()
    broken[1, 2] = value
    with pytest.raises(ValueError, match="X holds 1 NaN or infinite"):
        call(broken, y)
    if method == "predict":
        return
    broken = y.clone()
    broken[:2] = value
    with pytest.raises(ValueError, match="y holds 2 NaN or infinite"):
        call(X, broken)


def of_counts(method, num_outputs=None, **given):
    """A call of a model of counts, with what is given per row."""

    def call():
        X, y = torch.randn(N, D), torch.poisson(torch.ones(data(num_outputs=num_outputs)[1].shape))
        dgp = small(X, y, likelihood="poisson")
        values = {name: value() for name, value in given.items()}
        y = values.pop("y", y)
        return dgp.predict(X, 2, **values) if method == "predict" else dgp.model(X, y, **values)

    return call


def diverged():
    X, y = data()
    dgp = small(X, y)
    dgp.layers[2].kernel.lengthscale = PyroParam(torch.full((D,), NAN))
    return dgp.model(X, y)


def ones(*shape):
    return lambda: torch.ones(shape)


def of_model(call):
    return lambda: call(small(*data()), torch.randn(N, D))


@refusals(
    {
        "no samples": (
            of_model(lambda dgp, X: dgp.predict(X, 0)), ValueError, "num_samples must be at least 1"
        ),
        "a latent input of other dimensions": (
            of_model(lambda dgp, X: dgp.predict(X, 3, z=torch.zeros(2))),
            ValueError, r"z has shape \(2,\), .* \[latent_dim\] is needed",
        ),
        "no functions": (
            of_model(lambda dgp, X: dgp.draw_functions(0)),
            ValueError, "num_functions must be at least 1",
        ),
        "functions of another latent input": (
            of_model(lambda dgp, X: dgp.draw_functions(2, z=torch.zeros(3))),
            ValueError, r"z has shape \(3,\), .* \[latent_dim\] is needed",
        ),
        "a lengthscale that diverged": (diverged, ValueError, r"layers\.2: .* NaN or infinity"),
        "an exposure of 0": (
            of_counts("model", exposure=lambda: torch.zeros(N)),
            ValueError, "exposure must be positive",
        ),
        "an exposure of other rows": (
            of_counts("model", exposure=ones(3)), ValueError, f"X has {N} rows, but exposure has 3"
        ),
        "a negative exposure": (
            of_counts("predict", exposure=lambda: -torch.ones(N)),
            ValueError, "exposure must be positive",
        ),
        "a column of exposures": (
            of_counts("predict", exposure=ones(N, 1)), ValueError, rf"exposure has shape \({N}, 1\)"
        ),
        "an exposure of another name": (
            of_counts("predict", exposre=ones(N)),
            TypeError, "takes no 'exposre'; per row it takes exposure",
        ),
    }
    | {
        f"a column of weights for {num_outputs} outputs": (
            of_counts("model", num_outputs, weight=ones(N, 1)),
            ValueError, rf"weight has shape \({N}, 1\), but needs \[B\]",
        )
        for num_outputs in (4, 8)
    }
)  # fmt: skip
def test_calls(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("method", ["model", "guide"])
def test_a_batch_with_impossible_targets(method):
    X, y = data()
    counts = torch.poisson(y.exp())
    dgp = small(X, counts, likelihood="poisson")
    counts[3] = -2
    with pytest.raises(ValueError, match=f"1 of {N} targets are not, the first -2"):
        getattr(dgp, method)(X, counts)
