import numpy as np
import pyro
import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from pyro.contrib.gp.likelihoods import Gaussian
from pyro.contrib.gp.models import VariationalSparseGP
from pyro.infer import SVI, TraceMeanField_ELBO
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_dgp import LatentDGP, NaturalGradient, PartiallyCollapsedIWELBO, fit
from pyro_dgp.infer import annealed_adam, paper_optimizer
from pyro_dgp.infer.training.natural_gradient import natural_step

X = torch.linspace(-2, 2, 40, dtype=torch.float64).unsqueeze(-1)
Y = (2 * X).sin().squeeze(-1) + 0.3 * X.squeeze(-1).cos()


def sparse_gp():
    pyro.set_rng_seed(1)
    return LatentDGP.from_data(X, Y, num_layers=1, latent_dim=0, num_inducing=7)


def best_q(layer, variance):
    """q(v) for whitened inducing values of GP regression: N(v; 0, I) prod_n N(y_n; a_n v, s2)."""
    with torch.no_grad():
        L = torch.linalg.cholesky(layer.kernel(layer.Xu) + 1e-6 * torch.eye(7))
        A = torch.linalg.solve_triangular(L, layer.kernel(layer.Xu, X), upper=False)
        precision = torch.eye(7) + A @ A.mT / variance
        return torch.linalg.solve(precision, A @ Y / variance), torch.linalg.inv(precision)


def covariance(layer):
    S = layer.u_scale_tril.detach()
    return S @ S.mT


class Nothing(pyro.optim.PyroOptim):
    """Leaves the parameters that it gets."""

    def __init__(self):
        super().__init__(torch.optim.SGD, {"lr": 0.0})


def test_one_step_of_size_one_solves_a_conjugate_model():
    dgp = sparse_gp()
    (layer,) = dgp.layers
    optim = NaturalGradient(layer, Nothing(), lr=1.0)
    SVI(dgp.model, dgp.guide, optim, loss=PartiallyCollapsedIWELBO(K=1)).step(X, Y)
    loc, cov = best_q(layer, dgp.likelihood.variance.item())
    torch.testing.assert_close(layer.u_loc.detach()[0], loc, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(covariance(layer)[0], cov, rtol=1e-6, atol=1e-8)
    assert optim.num_cut_back == 0


def test_part_of_a_step_is_on_the_line_of_natural_parameters():
    dgp = sparse_gp()
    (layer,) = dgp.layers
    loc, cov = best_q(layer, dgp.likelihood.variance.item())
    with torch.no_grad():  # a q(u) of no particular form, with signs of both kinds
        layer.u_loc.copy_(torch.randn(1, 7))
        layer.u_scale_tril_unconstrained.copy_(torch.randn(1, 7, 7).tril() + torch.eye(7))
    before = torch.linalg.inv(covariance(layer)[0])
    before_loc = layer.u_loc.detach()[0].clone()
    signs = layer.u_scale_tril.detach().diagonal(dim1=-2, dim2=-1).sign()
    optim = NaturalGradient(layer, Nothing(), lr=0.3)
    SVI(dgp.model, dgp.guide, optim, loss=PartiallyCollapsedIWELBO(K=1)).step(X, Y)
    after = torch.linalg.inv(covariance(layer)[0])
    best = torch.linalg.inv(cov)
    torch.testing.assert_close(after, 0.7 * before + 0.3 * best, rtol=1e-5, atol=1e-5)
    natural = 0.7 * before @ before_loc + 0.3 * best @ loc
    torch.testing.assert_close(after @ layer.u_loc.detach()[0], natural, rtol=1e-5, atol=1e-5)
    assert layer.u_scale_tril.detach().diagonal(dim1=-2, dim2=-1).sign().equal(signs)


def test_step_against_automatic_differentiation_by_the_covariance():
    """Gradients by Sigma itself, taken by autograd, in the two formulas of the module."""
    R, M = 2, 4
    m, S = torch.randn(R, M), 0.3 * torch.randn(R, M, M).tril() - torch.eye(M)
    target = MultivariateNormal(
        torch.randn(M), scale_tril=0.1 * torch.randn(M, M).tril() + torch.eye(M)
    )

    def loss(m, cov):
        return kl_divergence(MultivariateNormal(m, covariance_matrix=cov), target).square().sum()

    cov = (S @ S.mT).requires_grad_()
    m.requires_grad_()
    m_grad, cov_grad = torch.autograd.grad(loss(m, cov), (m, cov))
    S.requires_grad_()
    (S_grad,) = torch.autograd.grad(loss(m, S.tril() @ S.tril().mT), S)
    with torch.no_grad():
        size = 1e-4
        new_m, new_S, cut_back = natural_step(m, S, m_grad, S_grad.tril(), size)
        cov_grad = 0.5 * (cov_grad + cov_grad.mT)
        new_cov = torch.linalg.inv(torch.linalg.inv(cov) + 2 * size * cov_grad)
        torch.testing.assert_close(new_S @ new_S.mT, new_cov)
        torch.testing.assert_close(new_m, m - size * (new_cov @ m_grad.unsqueeze(-1)).squeeze(-1))
    assert not cut_back


def test_a_step_too_long_is_cut_back_and_counted():
    m, S = torch.zeros(1, 2), torch.eye(2).unsqueeze(0)
    S_grad = torch.tensor([[[-3.0, 0.0], [0.0, 1.0]]])  # H = S_grad / 2: the loss falls as S grows
    _, new_S, cut_back = natural_step(m, S, torch.ones(1, 2), S_grad, 1.0)
    assert cut_back
    assert (torch.linalg.eigvalsh(new_S @ new_S.mT) > 0).all()
    # 1 - 3 / 4 of the first precision is left after two halvings.
    torch.testing.assert_close(
        new_S @ new_S.mT, torch.diag(1 / torch.tensor([0.25, 1.25])).unsqueeze(0)
    )
    with pytest.raises(ArithmeticError, match="does not stay positive definite"):
        natural_step(m, S, torch.ones(1, 2), S_grad * torch.inf, 1.0)


def test_pyros_own_sparse_gp():
    """Its scale has a constraint of another kind (an exponential on the diagonal)."""
    pyro.set_rng_seed(0)
    gp = VariationalSparseGP(
        X, Y, RBF(1), X[::6].clone(), Gaussian(torch.tensor(0.3)), whiten=True, jitter=1e-6
    )
    steps = []
    for optim in (pyro.optim.Adam({"lr": 0.02}), NaturalGradient(gp, Nothing(), lr=0.2)):
        pyro.clear_param_store()
        gp.u_loc.data.zero_()
        gp.u_scale_tril_unconstrained.data.zero_()
        svi = SVI(gp.model, gp.guide, optim, loss=TraceMeanField_ELBO())
        for _ in range(20):
            svi.step()
        steps.append(svi.evaluate_loss())
    assert steps[1] < steps[0]
    assert covariance(gp).isfinite().all()


def test_schedules_of_both_and_exact_resume(tmp_path):
    def train(num_steps, **kwargs):
        dgp = LatentDGP.from_data(X, Y, num_layers=2, num_inducing=5, latent_dim=1)
        optim = NaturalGradient(dgp.layers[-1], paper_optimizer(0.02, 0.5, 2), 0.1, 0.5, 3)
        pyro.set_rng_seed(2)
        loss = PartiallyCollapsedIWELBO(K=2)
        history = fit(
            dgp.model, dgp.guide, loss, (X, Y), num_steps=num_steps, batch_size=8, optim=optim,
            progress=False, **kwargs,
        )  # fmt: skip
        return dgp, optim, history.losses

    pyro.set_rng_seed(0)
    whole, optim, expected = train(8)
    assert optim.step_size == 0.1 * 0.5**2
    rates = {s.optimizer.param_groups[0]["lr"] for s in optim.optim_objs.values()}
    assert rates == {0.02 * 0.5**4}
    names = {pyro.get_param_store().param_name(p) for p in optim.optim_objs}
    assert not any("layers.2.u_" in name for name in names)
    assert any("layers.1.u_loc" in name for name in names)
    for stop in (3, 8):
        pyro.set_rng_seed(0)
        part, optim, losses = train(stop, checkpoint=tmp_path / "c.pt")
        assert optim.num_steps == stop
    assert losses == expected
    for ours, theirs in zip(part.parameters(), whole.parameters(), strict=True):
        assert ours.equal(theirs)


def test_both_step_sizes_fall_along_one_cosine():
    layer = sparse_gp().layers[0]
    optim = NaturalGradient(layer, annealed_adam(0.02, 10), lr=0.1, annealing_steps=10)
    rest = torch.nn.Parameter(torch.zeros(2))
    sizes, rates = [], []
    for _ in range(12):
        for p in (layer.u_loc, layer.u_scale_tril_unconstrained, rest):
            p.grad = torch.zeros_like(p)
        sizes.append(optim.step_size)
        optim([layer.u_loc, layer.u_scale_tril_unconstrained, rest])
        (adam,) = optim.optim_objs.values()
        rates.append(adam.optimizer.param_groups[0]["lr"])
        optim.optim.step()
    assert sizes[0] == 0.1
    assert sizes[5] == pytest.approx(0.05)
    assert sizes[10:] == [0.0, 0.0]
    np.testing.assert_allclose(sizes[:10], 5 * np.array(rates[:10]))


def test_a_scale_without_constraint():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.u_loc = torch.nn.Parameter(torch.ones(1, 2))
            self.u_scale_tril = torch.nn.Parameter(torch.eye(2).unsqueeze(0))

    layer = Layer()
    layer.u_loc.grad = torch.tensor([[1.0, 0.0]])
    NaturalGradient(layer, Nothing(), lr=0.5)([layer.u_loc, layer.u_scale_tril])
    torch.testing.assert_close(layer.u_loc.detach(), torch.tensor([[0.5, 1.0]]))
    assert layer.u_scale_tril.equal(torch.eye(2).unsqueeze(0))
