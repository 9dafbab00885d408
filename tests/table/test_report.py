import numpy as np
import pytest
import torch
from scipy.stats import norm

from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.table import report as module
from pyro_dgp.table.report import report


class Known:
    """The distribution that the data are drawn from, N(x, 1)."""

    def predictives(self, X):
        for some in np.array_split(X, 3):
            loc = torch.as_tensor(some[:, 0])[None]
            yield PredictiveMixture(torch.distributions.Normal(loc, 1.0))


class Coin:
    """0 or 0.5, each with probability 1/2."""

    lattice = 0.0, 0.5
    mean = torch.full((40,), 0.25)

    def predictives(self, X):
        yield self

    def log_prob(self, y):
        return torch.full_like(y, np.log(0.5))

    crps = cdf = log_prob


def test_probabilities_of_a_rounded_target_count_as_densities():
    X, y = np.zeros((40, 1)), 0.5 * (np.arange(40) % 2)
    scores = report(Coin(), X, y, X, y)
    assert scores["latent deep GP"]["log_likelihood"] == pytest.approx(0)  # 1/2 over 1/2


def test_a_narrow_target_far_from_0():
    X, y = np.zeros((4000, 1)), 1.7e9 + 10 * np.random.default_rng(0).normal(size=4000)
    normal = report(Known(), X, y, X, y)["normal distribution"]
    assert normal["log_likelihood"] == pytest.approx(norm.logpdf(0, scale=10) - 0.5, abs=0.1)


def test_the_three_are_compared_on_one_scale(monkeypatch):
    rng = np.random.default_rng(0)
    X = 3 * rng.normal(size=(1500, 1))
    y = X[:, 0] + rng.normal(size=1500)
    monkeypatch.setattr(module, "_PROBABILITIES", (np.arange(10) + 0.5) / 10)
    scores = report(Known(), X[:1000], y[:1000], X[1000:], y[1000:])
    own, normal, boosting = scores.values()
    error = 4 / 500**0.5
    assert own["log_likelihood"] == pytest.approx(-0.5 * np.log(2 * np.pi * np.e), abs=error)
    assert own["crps"] == pytest.approx(np.pi**-0.5, abs=error)  # of N(0, 1)
    assert normal["crps"] == pytest.approx(10**0.5 * np.pi**-0.5, abs=10**0.5 * error)
    assert normal["log_likelihood"] == pytest.approx(
        own["log_likelihood"] - 0.5 * np.log(10), abs=error
    )
    assert own["crps"] < boosting["crps"] < 1.25 * own["crps"]
    assert own["rmse"] < boosting["rmse"] < 1.25 * own["rmse"]
    for kind in (own, normal):
        for p, share in kind["coverage"].items():
            assert share == pytest.approx(p, abs=4 * (p * (1 - p) / 500) ** 0.5)
