import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from pyro_dgp.experiments.metrics import coverage, pit_bounds, randomised_pit
from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.gp import likelihoods as lik
from pyro_dgp.gp.fixed import fixed_copy
from pyro_dgp.gp.likelihoods.intervals import RoundedNormal
from pyro_dgp.table import classes, densities
from pyro_dgp.table.densities import log_density
from pyro_dgp.table.scores import ScoreTable, plain


class Known:
    """The distribution that the data are drawn from, N(x, 1)."""

    def predictives(self, X):
        for some in np.array_split(X, 3):
            loc = torch.as_tensor(some[:, 0])[None]
            yield PredictiveMixture(torch.distributions.Normal(loc, 1.0))


class Coin:
    """0 or 0.5, each with probability 1/2."""

    lattice, batch_shape, event_shape = (0.0, 0.5), (40,), ()
    mean = torch.full((40,), 0.25)

    def predictives(self, X):
        yield self

    def log_prob(self, y):
        return torch.full_like(y, np.log(0.5))

    crps = cdf = log_prob


def report(model, X_train, y_train, X, y):
    """The methods' scores of one target."""
    return densities.report(model, (X_train, y_train, None), (X, y), ["y"])["targets"]["y"]


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
    monkeypatch.setattr(densities, "_PROBABILITIES", (np.arange(10) + 0.5) / 10)
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
            p = float(p)
            assert share == pytest.approx(p, abs=4 * (p * (1 - p) / 500) ** 0.5)


class Classifier:
    """Knows that the class is b with probability x."""

    classes_ = np.array(["a", "b"], dtype=object)

    def predict_proba(self, X):
        return np.column_stack([1 - X[:, 0], X[:, 0]])


def test_scores_of_classes_are_scikit_learns():
    rng = np.random.default_rng(0)
    X = rng.random((300, 1))
    y = np.where(rng.random(300) < X[:, 0], "b", "a").astype(object)
    found = classes.report(Classifier(), (X, y, None), (X, y), ["y"])["targets"]["y"]
    own, shares, _ = found.values()
    assert own["log_loss"] == pytest.approx(log_loss(y == "b", X[:, 0]))
    assert own["brier"] == pytest.approx(2 * brier_score_loss(y == "b", X[:, 0]))
    assert own["accuracy"] == pytest.approx(accuracy_score(y == "b", X[:, 0] > 0.5))
    assert own["auc"] == pytest.approx(roc_auc_score(y == "b", X[:, 0]))
    share = (y == "b").mean()
    assert shares["log_loss"] == pytest.approx(
        -share * np.log(share) - (1 - share) * np.log(1 - share)
    )
    assert shares["auc"] == 0.5
    # Log losses of the model have a mean of 1/2 nats, and a standard deviation of 1/2, too.
    assert own["log_loss"] == pytest.approx(0.5, abs=4 * 0.5 / 300**0.5)
    assert own["log_loss_error"] == pytest.approx(0.5 / 300**0.5, rel=0.3)
    alone = classes.scores(Classifier(), X[y == "a"], y[y == "a"], ["y"])
    assert alone["targets"]["y"]["latent deep GP"]["auc"] is None


def test_several_targets_have_scores_by_themselves_and_jointly():
    class Two:
        def predictives(self, X):
            loc = torch.as_tensor(np.stack([X[:, 0], -X[:, 0]], -1))[None]
            yield PredictiveMixture(torch.distributions.Normal(loc, torch.tensor([1.0, 2.0])), 1)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1))
    y = np.column_stack([X[:, 0] + rng.normal(size=200), -X[:, 0] + 2 * rng.normal(size=200)])
    found = densities.scores(Two(), X, y, ["p", "q"])
    for i, name in enumerate(["p", "q"]):
        own = found["targets"][name]["latent deep GP"]
        exact = norm.logpdf(y[:, i], (1 - 2 * i) * X[:, 0], 1 + i)
        assert own["log_likelihood"] == pytest.approx(exact.mean())
        assert own["log_likelihood_error"] == pytest.approx(exact.std(ddof=1) / 200**0.5)
    total = sum(t["latent deep GP"]["log_likelihood"] for t in found["targets"].values())
    assert found["joint"]["log_likelihood"] == pytest.approx(total)  # independent here
    assert len(densities.tables(found)) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.8, "1235000"), (0.00012345, "0.0001234"), (0, "0"), (-2.5, "-2.5"),
        (1e-9, "1.000e-09"),
        (3e13, "3.000e+13"), (None, "-"), (np.nan, "-"), (np.inf, "inf"), (12, "12"),
    ],
)  # fmt: skip
def test_plain_numbers(value, text):
    assert plain(value) == text


def test_a_table_of_scores_is_in_columns():
    rows = [["one", "1.0", "-"], ["another", "10", "3 ± 1"]]
    shown = str(ScoreTable("y on 9 rows", ["method", "a", "long name"], rows, ["a: better."]))
    assert shown.splitlines() == [
        "y on 9 rows     a   long name",
        "one           1.0           -",
        "another        10       3 ± 1",
        "a: better.",
    ]


def test_coverage_and_pit_of_a_lattice():
    """Of rounded normal targets whose distribution is known; by P(y <= target) alone it is not."""
    rng = np.random.default_rng(0)
    loc = torch.as_tensor(rng.normal(size=4000))
    p = PredictiveMixture(RoundedNormal(loc[None], torch.full((1, 4000), 0.6), 1.0, 0.0))
    y = torch.as_tensor(np.round(loc.numpy() + 0.6 * rng.normal(size=4000)))
    below, above = pit_bounds(p, y)
    np.testing.assert_allclose(below, norm.cdf((y - 0.5 - loc) / 0.6), atol=1e-6)
    np.testing.assert_allclose(above, norm.cdf((y + 0.5 - loc) / 0.6), atol=1e-6)
    exact = {}
    for level, share in coverage(below, above).items():
        low, high = (p.quantile(0.5 + sign * level / 2) for sign in (-1, 1))
        exact[level] = ((low <= y) & (y <= high)).double().mean().item()
        assert share == exact[level] >= level - 4 * (level * (1 - level) / 4000) ** 0.5
    assert coverage(above, above)[0.5] < exact[0.5] - 0.1
    assert kstest(randomised_pit(below, above), "uniform").pvalue > 0.01
    assert kstest(above, "uniform").pvalue < 1e-6


def test_densities_of_targets_on_lattices_of_their_own():
    """Probabilities over the steps 0.5 and 2; jointly over the product of both."""
    normals = torch.distributions.Normal(torch.zeros(1, 3, 2), 1.0)
    p = PredictiveMixture(normals, 1)
    assert log_density(p, torch.zeros(3, 2)).tolist() == p.log_prob(torch.zeros(3, 2)).tolist()
    rounded = RoundedNormal(torch.zeros(1, 3, 2), torch.ones(1, 3, 2), 1.0, 0.0)
    p = PredictiveMixture(rounded, 1).affine(torch.zeros(2), torch.tensor([0.5, 2.0]))
    at = torch.tensor([[0.5, 2.0]]).expand(3, 2)
    single = sum(log_density(p.marginal(i), at[:, i]) for i in range(2))
    torch.testing.assert_close(log_density(p, at), single)  # independent
    mass = np.log(norm.cdf(1.5) - norm.cdf(0.5))
    assert single[0].item() == pytest.approx(2 * mass - np.log(0.5 * 2))


@pytest.mark.statistical
def test_a_value_with_a_probability_is_calibrated():
    """Of calibrated predictions: an interval that holds the value holds all targets there."""
    likelihood = fixed_copy(lik.ZeroInflated(lik.GaussianLikelihood(1.0), 0.0, 0.8))
    f = torch.zeros(2, 1, 2000)
    p = PredictiveMixture(likelihood.marginal(*likelihood.functions(f, f + 1e-9)))
    torch.manual_seed(0)
    y = p.sample()
    below, above = pit_bounds(p, y)
    torch.testing.assert_close((above - below)[y == 0], torch.full(((y == 0).sum(),), 0.8).double())
    assert (above == below)[y != 0].all()
    assert kstest(randomised_pit(below, above).numpy(), "uniform").pvalue > 1e-3
    assert coverage(below, above)[0.5] > 0.75
