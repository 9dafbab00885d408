import pyro
import pyro.poutine as poutine
import pytest
import torch
from torch.distributions import Normal

from pyro_dgp.gp import ExpectedNormal, GaussianLikelihood
from tests.quadrature import smooth_expectation


def test_log_prob_is_the_expected_log_density():
    loc, var = torch.tensor([0.3, -1.0]), torch.tensor([0.5, 2.0])
    noise, y = torch.tensor(0.2), torch.tensor(1.1)
    value = ExpectedNormal(loc, var, noise).log_prob(y)
    exact = smooth_expectation(lambda f: Normal(f, noise.sqrt()).log_prob(y), loc, var)
    torch.testing.assert_close(value, exact)
    # The logarithm of the expectation, the known wrong variant, is another number.
    wrong = Normal(loc, (var + noise).sqrt()).log_prob(y)
    assert ((wrong - value).abs() > 0.1).all()


def test_samples_are_predictive():
    d = ExpectedNormal(torch.tensor(1.0), torch.tensor(0.5), torch.tensor(0.2))
    draws = d.sample((200_000,))
    assert abs(draws.mean() - 1.0) < 4 * (0.7 / 200_000) ** 0.5
    assert abs(draws.var() - 0.7) < 4 * 0.7 * (2 / 200_000) ** 0.5
    assert d.variance == pytest.approx(0.7)


def test_expand_keeps_the_density():
    d = ExpectedNormal(torch.randn(3), torch.rand(3), torch.tensor(0.2))
    y = torch.randn(5, 3)
    torch.testing.assert_close(d.expand([5, 3]).log_prob(y), d.log_prob(y))
    assert d.expand([5, 3]).rsample().shape == (5, 3)


@pytest.mark.parametrize(
    ("variance", "event_dim", "outputs"), [(0.1, 0, 1), (0.1, 1, 2), ([0.1, 0.4], 1, 2)]
)
def test_site(variance, event_dim, outputs):
    likelihood = GaussianLikelihood(torch.tensor(variance), event_dim)
    f_loc, f_var = torch.randn(3, 4, outputs), torch.rand(3, 4, outputs)
    y = torch.randn(4, outputs) if event_dim else torch.randn(4)

    def model():
        with pyro.plate("particles", 3, dim=-2), pyro.plate("data", 4, dim=-1):
            return likelihood(f_loc, f_var, y)

    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    target = y if event_dim else y.unsqueeze(-1)
    expected = ExpectedNormal(f_loc, f_var, torch.tensor(variance)).log_prob(target).sum(-1)
    torch.testing.assert_close(trace.nodes["y"]["log_prob"], expected)
    assert trace.nodes["y"]["is_observed"]
