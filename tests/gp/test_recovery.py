"""A shallow GP with each likelihood finds the parameters that its data were simulated with."""

import pytest
import torch

from pyro_dgp import DRegIWELBO, GaussianLikelihood, LatentDGP, fit
from pyro_dgp.gp import likelihoods
from pyro_dgp.infer import annealed_adam

pytestmark = pytest.mark.statistical

N = 1500

#: The likelihood that simulates, that which learns, parameters to compare with relative
#: tolerances (some three standard errors), and what is given per row.
CASES = {
    "gaussian": lambda: (GaussianLikelihood(0.04), GaussianLikelihood(0.01), {"variance": 0.12}),
    "heteroscedastic": lambda: (
        likelihoods.HeteroscedasticGaussian(0.04),
        likelihoods.HeteroscedasticGaussian(0.3, noise_scale=1.0),
        {},
    ),
    "student_t": lambda: (
        likelihoods.StudentT(0.15, 3.0), likelihoods.StudentT(0.1, 5.0),
        {"scale": 0.12, "df": 0.35},
    ),
    "bernoulli": lambda: (likelihoods.Bernoulli(), likelihoods.Bernoulli(), {}),
    "probit": lambda: (likelihoods.Bernoulli("probit"), likelihoods.Bernoulli("probit"), {}),
    "binomial": lambda: (
        likelihoods.Binomial(), likelihoods.Binomial(), {}, {"total_count": torch.full((N,), 12)},
    ),
    "categorical": lambda: (likelihoods.Categorical(3), likelihoods.Categorical(3), {}),
    "ordinal": lambda: (likelihoods.Ordinal(4), likelihoods.Ordinal(4), {}),
    "poisson": lambda: (likelihoods.Poisson(2.0), likelihoods.Poisson(), {}),
    "exposure": lambda: (
        likelihoods.Poisson(2.0), likelihoods.Poisson(), {}, {"exposure": 0.1 + torch.rand(N)},
    ),
    "negative_binomial": lambda: (
        likelihoods.NegativeBinomial(3.0, 2.0), likelihoods.NegativeBinomial(),
        {"concentration": 0.25},
    ),
    "gamma": lambda: (likelihoods.Gamma(1.0, 5.0), likelihoods.Gamma(), {"shape": 0.12}),
    "log_normal": lambda: (
        likelihoods.LogNormal(1.0, 0.05), likelihoods.LogNormal(), {"variance": 0.12},
    ),
    "beta": lambda: (likelihoods.Beta(0.5, 14.0), likelihoods.Beta(), {"concentration": 0.12}),
    "rounded": lambda: (
        likelihoods.Rounded(0.5, 0.0, 0.2), likelihoods.Rounded(0.5, 0.0, 0.4), {"scale": 0.1},
    ),
    "zero_inflated": lambda: (
        likelihoods.ZeroInflated(GaussianLikelihood(0.04), 0.25),
        likelihoods.ZeroInflated(GaussianLikelihood(0.01), 0.25),
        {"likelihood.variance": 0.16},
    ),
}  # fmt: skip


def attribute(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return torch.as_tensor(module)


@pytest.mark.parametrize("name", CASES)
def test_simulated_parameters_come_back(name):
    true, learner, parameters, given = (*CASES[name](), {})[:4]
    X = torch.rand(N, 1) * 4 - 2
    waves = torch.stack([(2 * X[:, 0] + shift).sin() for shift in range(true.num_functions)])
    loc = true.functions(waves.unsqueeze(-1), torch.zeros_like(waves).unsqueeze(-1))[0].squeeze(-1)
    with torch.no_grad():
        truth = true.marginal(loc, torch.full_like(loc, 1e-12), **given)
        y = truth.sample()
    starts = {path: attribute(learner, path).item() for path in parameters}
    dgp = LatentDGP.from_data(X, y, likelihood=learner, num_layers=1, latent_dim=0, num_inducing=15)
    fit(
        dgp.model, dgp.guide, DRegIWELBO(K=1), {"X": X, "y": y, **given}, num_steps=300,
        batch_size=300, optim=annealed_adam(0.08, 300), progress=False,
    )  # fmt: skip
    for path, tolerance in parameters.items():
        # It started elsewhere.
        assert abs(starts[path] / attribute(true, path) - 1) > tolerance
        found, expected = (attribute(m, path).item() for m in (dgp.likelihood, true))
        assert found == pytest.approx(expected, rel=tolerance), path
    predictive = dgp.predict(X, 1, **given)
    if name == "categorical":
        assert (predictive.probs - truth.probs).abs().mean() < 0.04
        return
    error = (predictive.mean - truth.mean).square().mean().sqrt()
    assert error < 0.2 * truth.mean.std()
    torch.testing.assert_close(predictive.stddev.mean(), truth.stddev.mean(), rtol=0.1, atol=0)
    # The density is as good as the true one, within what so many rows can tell.
    gap = truth.log_prob(y) - predictive.log_prob(y)
    assert gap.mean() < 0.02
