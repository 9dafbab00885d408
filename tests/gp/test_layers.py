import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.contrib.gp import kernels
from pyro.contrib.gp.util import conditional
from pyro.nn import PyroParam, PyroSample
from torch import nn

from pyro_dgp import GPLayer, LatentLayer
from pyro_dgp.gp.conditional import stable_cholesky
from pyro_dgp.gp.inducing import InducingNormal
from pyro_dgp.gp.kernels import kernel_named, square_matrix

D, M, R, WIDTH = 3, 6, 2, 4

KERNELS = {
    "RBF": lambda: kernels.RBF(D),
    "Matern52": lambda: kernels.Matern52(D, lengthscale=torch.ones(D)),
    "RationalQuadratic": lambda: kernels.RationalQuadratic(D),
    "Linear": lambda: kernels.Linear(D),
    "Periodic": lambda: kernels.Periodic(D),
    "active dims": lambda: kernels.RBF(2, active_dims=[0, 2]),
    "sum": lambda: kernels.Sum(kernels.RBF(D), kernels.WhiteNoise(D)),
    "product": lambda: kernels.Product(kernels.RBF(D), 2.0),
    "warping": lambda: kernels.Warping(kernels.RBF(D), iwarping_fn=lambda x: x.tanh()),
}


def gp_layer(kernel=None, **kwargs):
    layer = GPLayer(kernel or kernels.RBF(D), torch.randn(M, D), R, **kwargs)
    with torch.no_grad():
        layer.u_loc.normal_()
        layer.u_scale_tril_unconstrained.normal_()
    return layer


@pytest.mark.parametrize("name", KERNELS)
def test_marginals_with_any_kernel_and_leading_shape(name):
    layer = gp_layer(KERNELS[name]())
    for lead in [(5,), (4, 5), (2, 4, 5), (1,)]:
        h = torch.randn(*lead, D)
        loc, var = layer(h)
        assert loc.shape == var.shape == (*lead, R)
        Luu = stable_cholesky(layer.kernel(layer.Xu))
        expected = conditional(
            h.reshape(-1, D), layer.Xu, layer.kernel, layer.u_loc, layer.u_scale_tril, Luu,
            whiten=True,
        )  # fmt: skip
        torch.testing.assert_close(loc.reshape(-1, R), expected[0].mT)
        torch.testing.assert_close(var.reshape(-1, R), expected[1].mT, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", ["rbf", "matern52"])
def test_float32_gives_the_marginals_of_float64_between_close_inducing_inputs(name, prepared):
    """With the jitter of float32's own factorisation, means are off by 0.6 (RBF)."""
    Xu, h = torch.linspace(-1, 1, 128).float(), torch.linspace(-1, 1, 333).float()
    found = {}
    m = torch.randn(R, 128).float()
    for dtype in (torch.float32, torch.float64):
        layer = GPLayer(kernel_named(name, 1), Xu.unsqueeze(-1).to(dtype), R, u_scale=0.01)
        with torch.no_grad():
            layer.u_loc.copy_(m)
            layer = layer.prepared() if prepared else layer
            found[dtype] = layer(h.unsqueeze(-1).to(dtype))
    (loc, var), (exact_loc, exact_var) = found.values()
    assert (loc - exact_loc).abs().max() < 0.01
    assert (var - exact_var).abs().max() < 5e-6


def test_only_kernels_that_compute_in_the_dtype_of_their_inputs_get_float64():
    Z = torch.randn(M, D).float()
    ours = kernel_named("rbf", D).float()
    linear = nn.Linear(D, D).float()
    warped = kernels.Warping(kernels.RBF(D).float(), iwarping_fn=linear)
    assert square_matrix(ours, Z).dtype == torch.float64
    both = kernels.Sum(ours, kernels.Product(kernel_named("matern12", D).float(), 2.0))
    assert square_matrix(both, Z).dtype == torch.float64
    assert square_matrix(kernels.Sum(ours, warped), Z).dtype == torch.float32


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_output_is_mixed_and_has_its_mean(mixed, mean):
    width = WIDTH if mixed else R
    P = torch.randn(WIDTH, R) if mixed else None
    A = torch.randn(width, D) if mean else None
    layer = gp_layer(mixing=P, linear_mean=A)
    h = torch.randn(5, D)
    loc, var = layer(h)
    P, A = torch.eye(R) if P is None else P, torch.zeros(width, D) if A is None else A
    out_loc, out_var = layer.marginal(h)
    torch.testing.assert_close(out_loc, loc @ P.T + h @ A.T)
    torch.testing.assert_close(out_var, var @ P.T**2)
    epsilon = torch.randn(5, R)
    with pyro.plate("data", 5), poutine.condition(data={"epsilon": epsilon}):
        out = layer.model_local(h)
    torch.testing.assert_close(out, (loc + epsilon * var.sqrt()) @ P.T + h @ A.T)
    assert layer.output_dim == width


def test_draws_are_independent_over_particles_without_a_latent_input():
    layer = gp_layer()
    with pyro.plate("particles", 3, dim=-2), pyro.plate("data", 5, dim=-1):
        out = layer.model_local(torch.randn(5, D))
    assert out.shape == (3, 5, R)
    assert (out[0] != out[1]).all()


def test_global_sites_and_their_kl():
    layer = gp_layer()
    q = poutine.trace(layer.guide).get_trace().nodes["u"]
    p = poutine.trace(layer.model).get_trace().nodes["u"]
    assert q["fn"].event_shape == p["fn"].event_shape == q["value"].shape == (R, M)
    kl = torch.distributions.kl_divergence(q["fn"], p["fn"])
    S = layer.u_scale_tril
    dense = dist.MultivariateNormal(layer.u_loc, S @ S.mT)
    standard = dist.MultivariateNormal(torch.zeros(R, M), torch.eye(M))
    torch.testing.assert_close(kl, torch.distributions.kl_divergence(dense, standard).sum())
    # Both densities of a draw: the one that remembers epsilon and the one that solves for it.
    torch.testing.assert_close(
        q["fn"].log_prob(q["value"]), dense.log_prob(q["value"].clone()).sum(), rtol=1e-6, atol=0
    )


def test_density_of_inducing_values_near_zero_scale():
    """A root like those that hidden layers pass through early in training."""
    S = 5e-3 * torch.rand(M * 20, M * 20).tril(-1) + 1e-5 * torch.eye(M * 20)
    q = InducingNormal(torch.zeros(M * 20), scale_tril=S)
    draws = [q.rsample() for _ in range(200)]
    entropy = q.entropy()
    log_q = torch.tensor([_fresh_log_prob(q) for _ in draws])
    assert abs(log_q.mean() + entropy) < 4 * log_q.std() / len(draws) ** 0.5


def _fresh_log_prob(q):
    value = q.rsample()
    return q.log_prob(value).item()


def test_prior_on_a_hyperparameter():
    kernel = kernels.RBF(D)
    kernel.lengthscale = PyroSample(dist.LogNormal(torch.tensor(0.0), torch.tensor(1.0)))
    kernel.autoguide("lengthscale", dist.Normal)
    layer = gp_layer(kernel)
    guide = poutine.trace(layer.guide).get_trace()
    model = poutine.trace(poutine.replay(layer.model, trace=guide)).get_trace()
    assert model.stochastic_nodes == ["kernel.lengthscale", "u"]
    lengthscale = guide.nodes["kernel.lengthscale"]["value"]
    assert model.nodes["kernel.lengthscale"]["value"] is lengthscale
    assert isinstance(model.nodes["kernel.lengthscale"]["fn"], dist.LogNormal)
    first, second = (layer(torch.zeros(1, D))[0] for _ in range(2))
    assert (first != second).any()  # every call draws from the guide


def test_float32():
    kernel = kernels.RBF(D, variance=torch.ones((), dtype=torch.float32))
    kernel.lengthscale = PyroParam(torch.ones(D, dtype=torch.float32))
    layer = GPLayer(kernel, torch.randn(M, D, dtype=torch.float32), R)
    loc, var = layer(torch.randn(2, 5, D, dtype=torch.float32))
    assert loc.dtype == var.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kernel_gets_the_dtype_of_the_inducing_inputs(dtype):
    """Kernels by name are in double precision, those of Pyro in torch's default."""
    for kernel in (kernel_named("matern52", D), kernels.RBF(D)):
        layer = GPLayer(kernel, torch.randn(M, D, dtype=dtype), R)
        assert layer(torch.randn(5, D, dtype=dtype))[0].dtype == dtype


def test_variance_is_never_zero():
    layer = GPLayer(kernels.RBF(D), torch.randn(M, D), R, u_scale=1e-9)
    h = layer.Xu.detach().clone().requires_grad_()
    var = layer(h)[1]
    assert (var > 0).all()
    assert torch.autograd.grad(var.sqrt().sum(), h)[0].isfinite().all()


class ConstantEncoder(nn.Module):
    def __init__(self, event_dim, latent_dim=2):
        super().__init__()
        self.event_dim, self.latent_dim = event_dim, latent_dim

    def forward(self, X, y):
        loc = 10 + y.unsqueeze(-1).expand(-1, self.latent_dim)
        return dist.Normal(loc, 0.1).to_event(self.event_dim)


@pytest.mark.parametrize("event_dim", [0, 1])
def test_latent_layer(event_dim):
    layer = LatentLayer(2, ConstantEncoder(event_dim))
    X, y = torch.randn(5, D), torch.randn(5)

    def guide(y):
        with pyro.plate("data", 5):
            layer.guide_local(X, y)

    def model():
        with pyro.plate("data", 5):
            return layer.model_local(X)

    trace = poutine.trace(guide).get_trace(y)
    z = trace.nodes["z"]["value"]
    assert z.shape == (5, 2)
    assert (z - 10 - y.unsqueeze(-1)).abs().max() < 1
    replayed = poutine.trace(poutine.replay(model, trace=trace)).get_trace()
    torch.testing.assert_close(replayed.nodes["_RETURN"]["value"], torch.cat([X, z], -1))
    prior = replayed.nodes["z"]["fn"]
    torch.testing.assert_close(prior.mean, torch.zeros(5, 2))
    torch.testing.assert_close(prior.variance, torch.ones(5, 2))
    assert "z" not in poutine.trace(guide).get_trace(None).nodes


def test_latent_layer_without_encoder_has_the_prior_as_guide():
    layer = LatentLayer(2)
    X, y = torch.randn(5, D), torch.randn(5)
    with poutine.trace() as trace, pyro.plate("data", 5):
        layer.guide_local(X, y)
    fn = trace.trace.nodes["z"]["fn"]
    assert fn.mean.eq(0).all()
    assert fn.variance.eq(1).all()
