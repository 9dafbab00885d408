"""Draws of functions: moments and covariances of q(f), and what they make of the bound."""

import itertools
import math

import numpy as np
import pyro
import pyro.contrib.gp.kernels as pyro_kernels
import pytest
import torch

from pyro_dgp import DRegIWELBO, LatentDGP
from pyro_dgp.gp import GaussianLikelihood, GPLayer, LatentLayer, Layer
from pyro_dgp.gp.kernels import kernel_named
from pyro_dgp.gp.pathwise import features, unit_frequencies
from tests.quadrature import smooth_expectation

pytestmark = pytest.mark.statistical

KERNELS = ["rbf", "matern12", "matern32", "matern52"]


def kernel(name, input_dim=2):
    found = kernel_named(name, input_dim).double()
    found.lengthscale = torch.tensor([0.7, 1.5])[:input_dim]
    found.variance = torch.tensor(1.7)
    return found


def layer(name="rbf", num_gps=2, **options):
    torch.manual_seed(3)
    made = GPLayer(kernel(name), torch.randn(6, 2), num_gps, **options)
    made.u_loc = torch.nn.Parameter(torch.randn(num_gps, 6))
    made.u_scale_tril = 0.4 * torch.randn(num_gps, 6, 6).tril() + 0.3 * torch.eye(6)
    return made


@pytest.mark.parametrize("name", KERNELS)
def test_features_have_the_kernel_as_expectation(name):
    x, k = torch.randn(5, 2), kernel(name)
    phi = features(k, unit_frequencies(k, 40_000), x)
    assert torch.allclose(phi @ phi.mT, k(x), atol=6 * 1.7 / 40_000**0.5)
    torch.testing.assert_close((phi @ phi.mT).diagonal(), k(x).diagonal())


def test_pyros_own_kernels():
    rbf = pyro_kernels.RBF(3, lengthscale=torch.tensor(0.5))
    assert unit_frequencies(rbf, 7).shape == (7, 3)


@pytest.mark.parametrize("name", ["rbf", "matern32"])
def test_functions_have_the_moments_and_covariances_of_q(name):
    S, x = 20_000, torch.randn(5, 2)
    made = layer(name)
    frequencies = unit_frequencies(made.kernel, 1000)
    with torch.no_grad():
        parts = [
            made.drawn_function(x, torch.randn(1000, 1, made.function_noise_dim(2000)), frequencies)
            for _ in range(S // 1000)
        ]
        f = torch.cat(parts)
        loc, var = made.marginal(x)
        Luu = torch.linalg.cholesky(made.kernel(made.Xu) + 1e-6 * 1.7 * torch.eye(6))
        A = torch.linalg.solve_triangular(Luu, made.kernel(made.Xu, x), upper=False)
        error = (f.mean(0) - loc) / (var / S).sqrt()
        assert error.abs().max() < 4.5
        for r in range(2):
            S_r = made.u_scale_tril[r]
            dense = made.kernel(x) + A.mT @ (S_r @ S_r.mT - torch.eye(6)) @ A
            assert torch.allclose(dense.diagonal(), var[:, r], atol=1e-4)
            found = f[..., r].mT.cov()
            scale = (dense.diagonal() * dense.diagonal()[:, None]).sqrt()
            # Standard errors of covariances, and the error of 2000 features.
            assert ((found - dense).abs() < 5 * scale * (2 / S) ** 0.5 + 5 * 1.7 / 1000**0.5).all()


def data():
    torch.manual_seed(0)
    X = 2 * torch.rand(40, 2) - 1
    return X, torch.sin(3 * X[:, 0]) + 0.1 * torch.randn(40)


@pytest.mark.parametrize("kernel", KERNELS)
def test_draw_functions(kernel):
    X, y = data()
    dgp = LatentDGP.from_data(X, y, num_inducing=10, kernel=kernel)
    generator = torch.Generator().manual_seed(1)
    f = dgp.draw_functions(3, generator=generator)
    at_X = f(X)
    assert at_X.shape == (3, 40, 1)
    torch.testing.assert_close(f(X[7:9]), at_X[:, 7:9])  # the same for all rows and calls
    torch.testing.assert_close(f(X.reshape(4, 10, 2)), at_X.reshape(3, 4, 10, 1))
    assert not at_X[0].allclose(at_X[1])
    again = dgp.draw_functions(3, generator=torch.Generator().manual_seed(1))
    assert again(X).equal(at_X)
    if kernel != "matern12":
        x = X[:2].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: f(x).sum((0, 2)), x)
    with torch.no_grad():
        for p in dgp.parameters():
            p.add_(0.1)
    assert f(X).equal(at_X)


def test_drawn_functions_are_the_models():
    """Over functions, the moments of what predict() makes of the same latent input."""
    X, y = data()
    dgp = LatentDGP.from_data(X, y, num_inducing=10)
    with torch.no_grad():
        for one in dgp.layers[1:]:
            one.u_loc.add_(torch.randn(one.u_loc.shape))
    z = torch.tensor([0.3])
    f = dgp.draw_functions(4000, z=z, num_features=2000)(X[:4])[..., 0].detach()
    p = dgp.predict(X[:4], 4000, z=z)
    noise = dgp.likelihood.variance.item()
    assert ((f.mean(0) - p.mean) / (p.variance / 4000).sqrt()).abs().max() < 7
    ratio = f.var(0) / (p.variance - noise)
    assert ((ratio - 1).abs() < 5 * 2 * (2 / 4000) ** 0.5 + 0.03).all()


class Identity(Layer):
    """A last layer that hands its input on."""

    input_dim = 1

    def width(self, input_dim):
        return input_dim

    def check_last(self):
        pass

    def marginal(self, h):
        return h, torch.zeros_like(h)


def two_points(function_draws):
    """y_n ~ N(f(x, z_n), s^2) for two data with one x, where f ~ GP, and q(f) is the prior."""
    k = kernel_named("rbf", 2).double()
    k.lengthscale = torch.tensor([1.0, 2.0])
    Xu = torch.stack([torch.zeros(3), torch.linspace(-2, 2, 3)], 1)
    hidden = GPLayer(k, Xu, function_draws=function_draws, num_features=1000)
    likelihood = GaussianLikelihood(torch.tensor(0.25))
    dgp = LatentDGP([LatentLayer(1), hidden, Identity()], likelihood, 2).double()
    return dgp, torch.zeros(2, 1), torch.tensor([1.2, -1.2])


def evidence(y):
    """By quadrature over the two latent inputs, of which only the difference counts."""

    def density(z):
        k = torch.exp(-0.5 * (z / 2.0) ** 2)
        row = torch.stack([1.25 + 0 * k, k], -1)
        cov = torch.stack([row, row.flip(-1)], -1)
        return torch.distributions.MultivariateNormal(torch.zeros(2), cov).log_prob(y).exp()

    return smooth_expectation(density, mean=0.0, variance=2.0).log().item()


def bounds(function_draws, numbers):
    """Means and standard errors by K; estimators differ in gradients alone."""
    dgp, X, y = two_points(function_draws)
    found = []
    with torch.no_grad():
        for K in numbers:
            loss = DRegIWELBO(K=K, num_particles=8)
            values = -torch.tensor([loss.loss(dgp.model, dgp.guide, X, y) for _ in range(60)])
            found.append((values.mean().item(), values.std().item() / 60**0.5))
        pyro.clear_param_store()
    return found


def test_with_shared_functions_the_bound_is_strict():
    exact = evidence(two_points("shared")[2])
    shared = bounds("shared", (1, 5, 50))
    for value, error in shared:
        assert value < exact + 4.5 * error
    for (less, e1), (more, e2) in itertools.pairwise(shared):
        assert more - less > -2 * math.hypot(e1, e2)
    (one, e1), _, (many, e2) = shared
    assert many - one > 5 * math.hypot(e1, e2)
    value, error = bounds("independent", (50,))[0]
    assert value > exact + 10 * error


def test_shared_functions_train():
    X, y = data()
    dgp = LatentDGP.from_data(X, y, num_inducing=10, function_draws="shared", num_features=100)
    svi = pyro.infer.SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.02}), DRegIWELBO(K=5))
    losses = [svi.step(X, y) for _ in range(60)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 10
    assert "layers.1.frequencies" in dgp.state_dict()
    again = LatentDGP.from_data(X, y, num_inducing=10, function_draws="shared", num_features=100)
    again.load_state_dict(dgp.state_dict())
    pyro.set_rng_seed(0)
    expected = dgp.predict(X, 3).components.loc
    pyro.set_rng_seed(0)
    assert again.predict(X, 3).components.loc.equal(expected)
