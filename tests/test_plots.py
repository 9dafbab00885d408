import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pyro_dgp import plots
from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.gp.likelihoods.intervals import RoundedNormal
from pyro_dgp.infer import TrainingHistory
from pyro_dgp.infer.snr.sweeps import SNRPoint, SNRSweep
from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    return (
        LatentDGPRegressor(
            num_layers=1, num_inducing=8, K=2, num_steps=5, num_samples=30, random_state=0
        ).fit(X, 3 + X[:, 0]),
        X,
    )


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    figure.canvas.draw()
    plt.close(figure)


def test_densities_are_those_of_the_model(model, ax):
    model, X = model
    assert plots.marginal_densities(model, X[:2], [1.0, 2.0], ax=ax) is ax
    for line, row in zip(ax.lines[::2], X, strict=False):
        y, density = line.get_data()
        expected = np.exp(model.log_density(np.repeat(row[None], len(y), 0), y))
        assert np.allclose(density, expected)
    assert [line.get_xdata()[0] for line in ax.lines[1::2]] == [1.0, 2.0]


def test_densities_on_a_lattice_are_per_unit_of_the_target(ax):
    class Model:
        n_features_in_ = 1

        def predictive(self, X):
            loc = torch.full((1, len(X)), 20.0, dtype=torch.float64)
            return PredictiveMixture(RoundedNormal(loc, loc / 4, 10.0, 0.0))

    plots.marginal_densities(Model(), np.zeros((1, 1)), ax=ax)
    y, density = ax.lines[0].get_data()
    assert (y % 10 == 0).all()
    assert density.sum() * 10 == pytest.approx(1, abs=2e-3)


def test_quantiles_are_those_of_the_model(model, ax):
    model, X = model
    assert plots.fan_chart(model, X, 1, num_points=5, ax=ax) is ax
    x, median = ax.lines[0].get_data()
    assert x[[0, -1]].tolist() == [X[:, 1].min(), X[:, 1].max()]
    rows = np.column_stack([np.full(5, np.median(X[:, 0])), x])
    assert np.allclose(median, model.predict_quantiles(rows, [0.5])[:, 0])
    outer = ax.collections[0].get_paths()[0].vertices[:, 1]
    ends = model.predict_quantiles(rows, [0.01, 0.99])
    assert outer.min() == pytest.approx(ends.min())
    assert outer.max() == pytest.approx(ends.max())


def test_density_along_an_input(model, ax):
    model, X = model
    assert plots.density_along_input(model, X, 0, row=[0.0, 1.0], num_points=6, ax=ax) is ax
    shades = ax.collections[0].get_array().reshape(6, 6)
    assert np.allclose(shades.max(0), 1)
    assert ax.get_xlabel() == "x0"


def test_latent_traversal(model, ax):
    model, X = model
    plots.latent_traversal(model, X, 0, values=[-1, 1], num_points=4, ax=ax)
    x, mean = ax.lines[1].get_data()
    rows = np.column_stack([x, np.full(4, np.median(X[:, 1]))])
    assert np.allclose(mean, model.predictive(rows, z=[1.0]).mean)
    with pytest.raises(ValueError, match="feature must be a column of X, 0 to 1"):
        plots.latent_traversal(model, X, 2, ax=ax)


@pytest.mark.parametrize("likelihood", ["log_normal", "gamma", "beta"])
def test_there_is_no_density_where_no_target_can_be(likelihood, model, ax):
    _, X = model
    options = {"num_layers": 1, "num_inducing": 5, "num_steps": 2, "num_samples": 5, "K": 2}
    model = LatentDGPRegressor(likelihood=likelihood, features=None, random_state=0, **options)
    model.fit(X, 1 / (2 + np.exp(2 * X[:, 0])))
    plots.marginal_densities(model, X[:2], num_points=50, ax=ax)
    y, density = ax.lines[0].get_data()
    assert y[0] < 0
    assert (density[y < 0] == 0).all()
    assert (density[(y > 0) & (y < 1)] > 0).all()
    assert np.isfinite(density).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"X": np.arange(3.0)}, r"X must be inputs \[N, D\], X\[:, None\] if D is 1; it has shape"),
        ({"X": np.zeros((0, 2))}, r"it has shape \(0, 2\)"),
        ({"feature": "size"}, "feature must be an integer, but it is 'size'"),
        ({"feature": -1}, "feature must be at least 0"),
        ({"row": [1.0, 2.0, 3.0]}, r"row must have a value for each of the 2 columns of X"),
        ({"row": 1.0}, r"row must have a value .* shape \(\)"),
    ],
)
def test_inputs_along_which_nothing_can_be_drawn(model, ax, options, message):
    model, X = model
    with pytest.raises(ValueError, match=message):
        plots.fan_chart(model, **{"X": X, "feature": 0, **options}, ax=ax)


def test_calibration(ax):
    pit = np.array([0.1, 0.4, 0.45, 0.9])
    assert plots.calibration_curve(pit, ax=ax) is ax
    x, share = ax.lines[-1].get_data()
    assert dict(zip(x, share, strict=True))[0.45] == 0.75
    ax.clear()
    assert plots.pit_histogram(pit, num_bins=2, ax=ax) is ax
    assert [bar.get_height() for bar in ax.patches[-2:]] == [1.5, 0.5]


@pytest.mark.parametrize("value", [np.nan, -0.2, 7.0])
def test_what_is_no_probability_is_not_drawn(value):
    """A histogram would leave it out, and a curve would take it for the largest."""
    figures = plt.get_fignums()
    for draw in (plots.pit_histogram, plots.calibration_curve):
        with pytest.raises(ValueError, match="pit must be numbers from 0 to 1"):
            draw([0.1, value])
        with pytest.raises(ValueError, match=r"pit must be .* at least one"):
            draw([])
    with pytest.raises(ValueError, match="probability must be numbers from 0 to 1"):
        plots.reliability_curve([0.1, value], [0, 1])
    assert plt.get_fignums() == figures


def test_pictures_of_rows_of_another_number(model, ax):
    model, X = model
    with pytest.raises(ValueError, match="same size, but they have 2 and 3"):
        plots.reliability_curve([0.1, 0.2], [0, 1, 1], ax=ax)
    with pytest.raises(ValueError, match="y must have a value for each of the 2 rows of X"):
        plots.marginal_densities(model, X[:2], X[:, 0], ax=ax)
    with pytest.raises(ValueError, match="labels must have a value for each of the 2 rows"):
        plots.marginal_densities(model, X[:2], labels=["a"], ax=ax)


def test_densities_of_several_targets_are_refused(ax):
    class Model:
        def predictive(self, X, z=None):
            loc = torch.zeros((1, len(X), 2), dtype=torch.float64)
            return PredictiveMixture(torch.distributions.Normal(loc, loc + 1), 1)

    rows = np.eye(3)
    calls = [plots.density_along_input, plots.fan_chart, plots.latent_traversal]
    for draw in (*calls, lambda model, X, _, ax: plots.marginal_densities(model, X, ax=ax)):
        with pytest.raises(ValueError, match=r"model has 2 targets, but pictures .* are of one"):
            draw(Model(), rows, 0, ax=ax)


def test_training_curve(ax):
    history = TrainingHistory(losses=[4.0, 2.0, 3.0, 1.0, 8.0])
    assert plots.training_curve(history, ([2, 4], [0.5, 0.4]), window=2, ax=ax) is ax
    steps, means = ax.lines[0].get_data()
    assert steps.tolist() == [2, 4, 5]
    assert means.tolist() == [3.0, 2.0, 8.0]


def test_a_history_without_steps_has_no_curve():
    with pytest.raises(ValueError, match="history has no steps"):
        plots.training_curve(TrainingHistory())


def test_snr_along_training(ax):
    def sweep(snr):
        return SNRSweep([SNRPoint("DReG", 10, 1, None, "encoder", 100, 0, snr, 0.1, snr, 0.1, 0)])

    plots.snr_along_training({20: sweep(3.0), 10: sweep(2.0)}, "encoder", ax=ax)
    assert ax.lines[0].get_xydata().tolist() == [[10, 2], [20, 3]]
    with pytest.raises(ValueError, match="No sweep has a group 'decoder'"):
        plots.snr_along_training({10: sweep(2.0)}, "decoder", ax=ax)


def test_settings_of_one_step_have_lines_of_their_own(ax):
    def point(batch_size, seed, snr):
        return SNRPoint("REG", 10, 1, batch_size, "encoder", 100, seed, snr, 0.1, snr, 0.1, 0)

    sweeps = {
        step: SNRSweep([point(4, step, 1.0 + step), point(None, step, 2.0 + step)])
        for step in (1, 2)
    }
    plots.snr_along_training(sweeps, "encoder", ax=ax)
    lines = {c.get_label(): c.lines[0].get_xydata().tolist() for c in ax.containers}
    assert lines == {
        "REG, K = 10, batch_size = 4": [[1, 2], [2, 3]],
        "REG, K = 10, batch_size = None": [[1, 3], [2, 4]],
    }


def test_a_new_figure_where_none_is_given():
    ax = plots.pit_histogram([0.2, 0.7])
    assert ax.get_title() == "PIT histogram"
    plt.close(ax.figure)


def test_reliability_is_of_bins_with_as_many_predictions(ax):
    probability = np.linspace(0, 1, 40)
    happened = probability > 0.5
    assert plots.reliability_curve(probability, happened, num_bins=4, ax=ax) is ax
    x, share = ax.lines[1].get_data()
    np.testing.assert_allclose(x, probability.reshape(4, 10).mean(1))
    assert share.tolist() == [0, 0, 1, 1]
    plots.reliability_curve(probability[:12], happened[:12], ax=ax)
    assert len(ax.lines[3].get_xdata()) == 1  # too few for more


def test_probabilities_of_classes_fill_the_picture(ax):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = LatentDGPClassifier(
        num_layers=1, num_inducing=8, K=2, num_steps=5, num_samples=30, random_state=0,
        features=None, pool=False,
    ).fit(X, np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)])  # fmt: skip
    assert plots.probabilities_along_input(model, X, 1, num_points=5, ax=ax) is ax
    grid = np.linspace(X[:, 1].min(), X[:, 1].max(), 5)
    rows = np.column_stack([np.full(5, np.median(X[:, 0])), grid])
    first = ax.collections[0].get_paths()[0].vertices
    found = {round(x, 9): y for x, y in first if y > 0}
    expected = model.predict_proba(rows)[:, 0]
    assert [found[round(x, 9)] for x in rows[:, 1]] == pytest.approx(expected.tolist())
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["no", "yes"]


def test_importances_are_sorted_and_named(ax):
    found = {"a": (0.1, 0.01), "b": (0.5, 0.1), "c": (-0.02, 0.01)}
    assert plots.importances(found, "CRPS", most=2, ax=ax) is ax
    assert [t.get_text() for t in ax.get_yticklabels()] == ["b", "a"]
    assert [bar.get_width() for bar in ax.patches] == [50, 10]


def test_names_are_no_formulas_and_not_hidden(ax):
    names = ["_a", "$a^$b", "a_$", 39 * "a" + "$$"]
    shown = ["\u200b_a", "$a^$b", "a_$", 39 * "a" + "…"]

    class Model:
        feature_names_in_, classes_ = np.array(names), np.array(names)

        def predict_proba(self, X):
            return np.full((len(X), 4), 0.25)

    plots.importances(dict.fromkeys(names, (0.1, 0.01)), ax=ax)
    assert [plainly(t) for t in ax.get_yticklabels()] == shown
    ax.clear()
    plots.probabilities_along_input(Model(), np.eye(4), 1, num_points=5, ax=ax)
    assert [plainly(t) for t in ax.get_legend().get_texts()] == shown
    assert plainly(ax.xaxis.label) == "$a^$b"
    ax.clear()
    point = SNRPoint("$$_", 10, 1, None, "a$$b", 100, 0, 2.0, 0.1, 2.0, 0.1, 0)
    plots.snr_along_training({1: SNRSweep([point])}, "a$$b", ax=ax)
    assert plainly(ax.title) == "Signal-to-noise ratio, a$$b"
    assert [plainly(t) for t in ax.get_legend().get_texts()] == ["$$_, K = 10"]


def plainly(text):
    """What is drawn, if it is no formula."""
    shown, formula = text._preprocess_math(text.get_text())
    assert not formula
    return shown
