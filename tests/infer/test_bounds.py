import math

import pytest
import torch

from pyro_dgp.infer.bounds import Bound, pareto_k, weight_diagnostics

LOG_W = torch.tensor([0.3, -1.0, 2.0, 0.5, -0.2, 1.1], dtype=torch.float64)
LOG_W = torch.stack([LOG_W, LOG_W.flip(0) * 1.5], 1)  # [M K, number of data]


@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("M", "K"), [(1, 6), (2, 3), (6, 1)])
def test_value_by_its_formula(M, K, beta, alpha):
    log_w = LOG_W.reshape(M, K, -1)
    expected = 0.0
    for m in range(M):
        iw = (log_w[m].exp().pow(1 - alpha).sum(0) / K).log() / (1 - alpha)
        expected = expected + (beta * log_w[m].mean(0) + (1 - beta) * iw) / M
    torch.testing.assert_close(Bound(M, K, beta, False, alpha).value(LOG_W), expected)


def test_powers_lie_between_importance_weights_and_the_elbo():
    values = [Bound(1, 6, 0.0, False, alpha).value(LOG_W) for alpha in (0.0, 0.3, 0.7, 1 - 1e-9)]
    assert (torch.stack(values).diff(dim=0) < 0).all()
    torch.testing.assert_close(values[0], Bound(1, 6, 0.0, False).value(LOG_W), rtol=0, atol=0)
    torch.testing.assert_close(values[-1], LOG_W.mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("piwae", "alpha"), [(False, 0.0), (True, 0.0), (False, 0.4)])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("M", "K"), [(1, 6), (2, 3), (6, 1)])
def test_coefficients_are_derivatives(M, K, beta, piwae, alpha):
    def derivative(bound):
        return torch.autograd.functional.jacobian(lambda w: bound.value(w).sum(), LOG_W)

    coefficients = Bound(M, K, beta, piwae, alpha).coefficients(LOG_W)
    apart = Bound(M, K, beta, False, alpha)
    model = Bound(1, M * K, beta, False) if piwae else apart
    torch.testing.assert_close(coefficients.model, derivative(model))
    torch.testing.assert_close(coefficients.guide(), derivative(apart))
    # The doubly reparameterised weight: the first derivative less the second.
    hessian = torch.autograd.functional.hessian(lambda w: apart.value(w).sum(), LOG_W)
    second = torch.einsum("knkn->kn", hessian)
    torch.testing.assert_close(coefficients.guide(1.0), derivative(apart) - second)
    torch.testing.assert_close(coefficients.guide(0.4), derivative(apart) - 0.4 * second)
    torch.testing.assert_close(
        coefficients.factor(1.0) * coefficients.model, coefficients.guide(1.0)
    )


def test_a_weight_that_is_zero():
    log_w = torch.tensor([[0.0], [-math.inf]])
    for piwae in (False, True):
        bound = Bound(1, 2, 0.0, piwae)
        assert bound.value(log_w).item() == pytest.approx(-math.log(2))
        coefficients = bound.coefficients(log_w)
        torch.testing.assert_close(coefficients.model, torch.tensor([[1.0], [0.0]]))
        torch.testing.assert_close(coefficients.factor(1.0), torch.tensor([[1.0], [0.0]]))


def test_diagnostics():
    """Of K weights of which j are alike and the others 0, the effective sample size is j."""
    log_w = torch.full((2, 4, 3), -math.inf)
    for n, j in enumerate((1, 2, 4)):
        log_w[:, :j, n] = 5.0
    ess, largest, _ = weight_diagnostics(log_w)
    torch.testing.assert_close(ess, torch.tensor([1.0, 2.0, 4.0]).expand(2, 3))
    torch.testing.assert_close(largest, torch.tensor([1.0, 0.5, 0.25]).expand(2, 3))


@pytest.mark.parametrize("k", [-0.3, 0.0, 0.3, 0.7, 1.2])
def test_pareto_k_of_pareto_weights(k):
    """Weights whose tail is a generalised Pareto distribution of known shape."""
    u = torch.rand(10_000, 40)
    w = 1 + (-u.log() if k == 0 else (u**-k - 1) / k)
    found = pareto_k(w.log())
    error = found.std() / 40**0.5
    assert abs(found.mean() - k) < 4 * error + 0.02  # ten weights of 300 are as if of shape 1/2
    assert error < 0.02


def test_pareto_k_of_a_guide():
    """Of w = p(z) / q(z) for normal densities, the shape is 1 - (sigma_q / sigma_p)^2."""
    for scale in (0.5, 0.7, 0.9):
        z = scale * torch.randn(200_000, 20)
        k = pareto_k(-0.5 * z**2 + 0.5 * (z / scale) ** 2)
        assert k.mean() == pytest.approx(1 - scale**2, abs=0.12)


def test_what_pareto_k_cannot_say():
    assert pareto_k(torch.randn(20, 3)).isnan().all()
    assert not pareto_k(torch.randn(21, 3)).isnan().any()
    assert (pareto_k(torch.zeros(100, 2)) == -math.inf).all()
    assert pareto_k(torch.randn(100, 2, dtype=torch.float32)).dtype == torch.float32


def test_advice():
    heavy, light = 4 * torch.randn(1, 500, 2).abs().exp(), torch.rand(1, 500, 2)
    assert "above 0.7 for 2 of 2" in weight_diagnostics(heavy).advice()
    assert "can be relied upon" in weight_diagnostics(light).advice()
    assert "K is too small" in weight_diagnostics(light[:, :10]).advice()


def test_pareto_k_of_weights_of_which_many_are_equal():
    """As those of discrete draws: a number, and advice of all data."""
    log_w = torch.randn(1, 1000, 3)
    # More than a quarter, but not all, of the 95 largest are equal to the next one.
    log_w[..., 0] = (torch.arange(1000) < 50).to(log_w)
    found = weight_diagnostics(log_w)
    assert not found.pareto_k.isnan().any()
    assert "too small" not in found.advice()
    assert "nan" not in found.advice()
