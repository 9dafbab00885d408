"""LatentDGPRegressor: scikit-learn's own checks, and what they do not look at."""

import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyro
import pytest
import torch
from scipy.stats import norm
from sklearn.exceptions import NotFittedError

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_dgp.gp.likelihoods import GaussianLikelihood
from pyro_dgp.sklearn import LatentDGPRegressor
from pyro_dgp.sklearn.members import Member
from tests.estimators import QUICK, SMALL, WHOLE, Malicious, data, regressor
from tests.quadrature import crps, moments

pytestmark = pytest.mark.whole


@parametrize_with_checks(
    [
        LatentDGPRegressor(**QUICK | SMALL),
        LatentDGPRegressor(**WHOLE | SMALL | {"features": ("trees", "boosting")}),
    ]
)
def test_estimator_checks(estimator, check, few_trees):
    name = getattr(check, "func", check).__name__
    if "array_api" in name:
        pytest.skip("needs SCIPY_ARRAY_API")
    if name == "check_sample_weight_equivalence_on_dense_data":
        pytest.skip("holds in distribution: training draws rows at random, as a forest does")
    if name == "check_regressors_train" and estimator.features is None:  # it asks for a score
        estimator.set_params(K=2, num_steps=15, lr=0.2, num_inducing=16)
    check(estimator)


@pytest.fixture(scope="module")
def fitted():
    X, y = data()
    return regressor().fit(X, y), X, y


def test_answers_come_in_the_units_of_the_targets(fitted):
    model, X, y = fitted
    # Scales whose standardised values are the same to the last bits.
    other = regressor().fit(X * 2.0**20, 2.0**-10 * y + 2.0**-6)
    mean, std = other.predict(X * 2.0**20, return_std=True)
    assert np.allclose(mean, 2.0**-10 * model.predict(X) + 2.0**-6, rtol=1e-6)
    assert np.allclose(std, 2.0**-10 * model.predict(X, return_std=True)[1], rtol=1e-5)
    there = 2.0**-10 * y + 2.0**-6
    jacobian = 10 * np.log(2.0)
    density = other.log_density(X * 2.0**20, there)
    assert np.allclose(density, model.log_density(X, y) + jacobian, atol=1e-4)
    assert np.allclose(other.crps(X * 2.0**20, there), 2.0**-10 * model.crps(X, y), rtol=1e-4)


def test_the_methods_are_of_one_distribution(fitted):
    model, X, y = fitted
    grid = np.linspace(-8, 8, 4001)
    x = np.repeat(X[:1], len(grid), 0)
    mass, *expected = moments(np.exp(model.log_density(x, grid)), grid)
    assert mass == pytest.approx(1, abs=1e-6)
    mean, std = model.predict(X[:1], return_std=True)
    assert mean[0] == pytest.approx(expected[0].item(), abs=1e-6)
    assert std[0] ** 2 == pytest.approx(expected[1].item(), rel=1e-5)
    quantiles = model.predict_quantiles(X[:1], [0.1, 0.7])
    assert quantiles.shape == (1, 2)
    assert np.allclose(model.cdf(np.repeat(X[:1], 2, 0), quantiles[0]), [0.1, 0.7], atol=1e-8)
    exact = crps(lambda v: model.cdf(np.repeat(X[:1], len(v), 0), v), y[0], -8, 8)
    assert model.crps(X[:1], y[:1])[0] == pytest.approx(exact.item(), abs=2e-3)
    draws = model.sample(X[:2], 4000, random_state=1)
    assert draws.shape == (2, 4000)
    assert abs(draws[0].mean() - mean[0]) < 4 * std[0] / 4000**0.5
    assert np.array_equal(draws, model.sample(X[:2], 4000, random_state=1))


def test_a_normal_distribution_is_learned():
    X, y = np.zeros((300, 1)), 5 + 2 * np.random.default_rng(0).normal(size=300)
    X[::2] = 1
    model = regressor(
        num_steps=150,
        lr=0.1,
        latent_dim=0,
        validation_fraction=0,
        likelihood=GaussianLikelihood(0.5),
    ).fit(X, y)
    mean, std = model.predict([[0.0], [1.0]], return_std=True)
    expected = np.array([[v.mean(), v.std()] for v in (y[1::2], y[::2])])
    assert np.allclose(mean, expected[:, 0], atol=0.3)
    assert np.allclose(std, expected[:, 1], rtol=0.1)
    assert np.allclose(
        model.log_density([[0.0]], [5.0]), norm.logpdf(5.0, mean[0], std[0]), atol=1e-6
    )


def test_threads_predict_alike(fitted):
    model, X, y = fitted
    expected = model.log_density(X, y)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: model.log_density(X, y), range(12)))
    assert all(np.array_equal(value, expected) for value in found)


def test_threads_fit_and_predict_beside_each_other():
    """Two models predict in threads while others are fitted: all is as it is alone."""
    X, y = data()
    models = [regressor(random_state=seed).fit(X, y) for seed in range(2)]
    quick = [
        *(lambda m=m, f=f: getattr(m, f)(X[:5], y[:5]) for m in models for f in ("crps", "cdf")),
        *(lambda m=m: m.sample(X[:5], random_state=0) for m in models),
        *(lambda m=m: m.predict(X[:5]) for m in models),
    ]
    fits = [
        lambda s=s: regressor(num_steps=30, random_state=s).fit(X, y).predict(X) for s in (5, 6)
    ]
    expected = {task: task() for task in (*fits, *quick)}
    with ThreadPoolExecutor(8) as pool:
        running = [(task, pool.submit(task)) for task in (*fits, *(quick * 8))]
        for task, future in running:
            assert np.array_equal(future.result(), expected[task])


def test_arrays_that_are_read_only():
    X, y = data()
    for array in (X, y):
        array.setflags(write=False)
    model = regressor().fit(X, y)
    assert np.isfinite(model.log_density(X, y)).all()


def test_several_targets():
    X, y = data(num_outputs=3)
    model = regressor().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == model.crps(X, y).shape == model.cdf(X, y).shape == (60, 3)
    assert model.predict_quantiles(X, [0.1, 0.9]).shape == (60, 2, 3)
    assert model.sample(X, 5).shape == (60, 5, 3)
    assert model.log_density(X, y).shape == (60,)
    with pytest.raises(ValueError, match="y has shape"):
        model.crps(X, y[:, :2])


def test_a_column_of_targets_comes_back_as_one():
    X, y = data()
    flat, column = regressor().fit(X, y), regressor().fit(X, y[:, None])
    assert column.predict(X).shape == column.crps(X, y[:, None]).shape == (60, 1)
    assert np.array_equal(column.predict(X)[:, 0], flat.predict(X))
    for model in (flat, column):  # those to compare with may have either shape
        for score in (model.crps, model.cdf):
            assert np.array_equal(score(X, y[:, None])[:, 0], score(X, y))
        assert np.array_equal(model.log_density(X, y[:, None]), model.log_density(X, y))
    assert column.predict_quantiles(X).shape == (60, 3, 1)
    assert column.sample(X, 4).shape == (60, 4, 1)


def test_nothing_outside_is_touched():
    pyro.param("mine", torch.ones(2))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    X, y = data()
    model = regressor(random_state=None).fit(X, y)
    model.predict(X)
    with pytest.raises(ValueError, match="strictly between"):
        model.predict_quantiles(X, [1.0])
    assert model.predict_quantiles(X.tolist()).shape == (60, 3)
    assert torch.rand(2).equal(expected)
    assert list(pyro.get_param_store().keys()) == ["mine"]


def test_model_selection():
    X, y = data()
    pipeline = make_pipeline(FunctionTransformer(), regressor())
    assert cross_val_score(pipeline, X, y, cv=2).shape == (2,)
    search = GridSearchCV(
        regressor(num_steps=3), {"latent_dim": [0, 1]}, cv=2,
        scoring=lambda model, X, y: -model.crps(X, y).mean(),
    ).fit(X, y)  # fmt: skip
    assert search.best_params_["latent_dim"] in (0, 1)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_data_frames(fitted):
    pandas = pytest.importorskip("pandas")
    _, X, y = fitted
    frame = pandas.DataFrame(X, columns=["a", "b"], index=np.arange(100, 160))
    model = regressor().fit(frame, pandas.Series(y))
    assert model.feature_names_in_.tolist() == ["a", "b"]
    quantiles = model.predict_quantiles(frame, [0.05, 0.5])
    assert quantiles.index.equals(frame.index)
    assert quantiles.columns.tolist() == ["0.05", "0.5"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["b", "a"]])
    dates = pandas.date_range("2024-01-01", periods=60, tz="UTC")
    with pytest.raises(ValueError, match="X holds dates: make numbers"):
        model.predict(frame.assign(b=dates))


def test_the_best_parameters_by_held_out_rows_are_kept():
    X, y = data(200)
    model = regressor(num_steps=100, lr=0.5, patience=None, num_inducing=40).fit(X, y)
    scores = model.validation_crps_
    assert model.validation_steps_.tolist() == list(range(2, 101, 2))
    assert scores.min() < scores[-1]
    order = np.random.default_rng(model._seed).permutation(200)[:20]
    found = model.crps(X[order], y[order]).mean() / y[np.setdiff1d(np.arange(200), order)].std()
    assert found == pytest.approx(scores.min(), rel=0.05)  # of other samples of z
    assert len(regressor(validation_fraction=0).fit(X, y).validation_crps_) == 0


def test_training_ends_when_nothing_better_comes(monkeypatch):
    scores = iter([3.0, 1.0, 2.0, 2.0, 2.0, 0.0])
    monkeypatch.setattr(Member, "_held_out_score", lambda *args: next(scores))
    model = regressor(num_steps=100, patience=3).fit(*data())
    assert model.history_.stopped
    assert len(model.history_.losses) == 10
    assert model.validation_crps_.tolist() == [3.0, 1.0, 2.0, 2.0, 2.0]


def test_interrupted_training_goes_on(tmp_path, monkeypatch):
    X, y = data()
    whole = regressor().fit(X, y)
    path = tmp_path / "checkpoint.pt"
    # A first run that is cut off at its end; then the same one again.
    from pyro_dgp.sklearn import members as module

    fit = module.fit
    monkeypatch.setattr(
        module, "fit", lambda *a, **k: fit(*a, **k | {"num_steps": 7, "checkpoint_interval": 0})
    )
    regressor(checkpoint=path).fit(X, y)
    monkeypatch.setattr(module, "fit", fit)
    resumed = regressor(checkpoint=path).fit(X, y)
    assert resumed.history_.losses == whole.history_.losses
    assert np.array_equal(resumed.validation_crps_, whole.validation_crps_)
    assert np.array_equal(resumed.predict(X), whole.predict(X))
    with pytest.raises(ValueError, match="made with loss="):
        regressor(checkpoint=path, K=3).fit(X, y)
    with pytest.raises(ValueError, match="made with data="):
        regressor(checkpoint=path).fit(X, y + 1.0 * (y > 0))
    with pytest.raises(ValueError, match="another kernel or likelihood"):
        regressor(checkpoint=path, kernel="matern12").fit(X, y)


def test_copies_and_pickles(fitted):
    model, X, _ = fitted
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict_quantiles(X), model.predict_quantiles(X))
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize("options", [{}, {"dtype": "float32", "num_layers": 2}, {"latent_dim": 0}])
@pytest.mark.parametrize("num_outputs", [None, 1, 2])
def test_model_files(options, num_outputs, tmp_path):
    X, y = data(num_outputs=num_outputs)
    model = regressor(num_steps=3, **options).fit(X, y)
    model.save(tmp_path / "new" / "m.pt", note="a")
    loaded = LatentDGPRegressor.load(tmp_path / "new" / "m.pt")
    assert np.array_equal(loaded.predict_quantiles(X), model.predict_quantiles(X))
    assert np.array_equal(loaded.log_density(X, y), model.log_density(X, y))
    assert loaded.get_params() == model.get_params()
    assert loaded.dgp_.num_data == model.dgp_.num_data
    assert loaded.history_ == model.history_
    assert loaded.extra_ == {"note": "a"}
    other = {"float32": "float64"}.get(model.dtype, "float32")
    converted = LatentDGPRegressor.load(tmp_path / "new" / "m.pt", dtype=other)
    assert next(converted.dgp_.parameters()).dtype == getattr(torch, other)
    assert np.isfinite(converted.predict(X)).all()
    loaded.save(tmp_path / "again.pt")
    again = LatentDGPRegressor.load(tmp_path / "again.pt")
    assert again.extra_ == {"note": "a"}
    assert np.array_equal(again.predict(X), model.predict(X))
    # Parameters changed after fit are not those of the model.
    again.set_params(num_layers=3, num_inducing=2).save(tmp_path / "changed.pt")
    changed = LatentDGPRegressor.load(tmp_path / "changed.pt")
    assert np.array_equal(changed.predict(X), model.predict(X))
    assert again.set_params(num_steps=1, num_layers=1).fit(X, y).extra_ == {}


def test_files_that_are_no_models(fitted, tmp_path):
    model, _, _ = fitted
    path = tmp_path / "m.pt"
    model.save(path)
    whole = path.read_bytes()
    for damaged in (b"", b"no model", whole[: len(whole) // 2], whole[:900] + b"?" + whole[901:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"m\.pt is no model of pyro_dgp, or a damaged one"):
            LatentDGPRegressor.load(path)
    torch.save({"format": "pyro_dgp model 7", "pyro_dgp": "9.0"}, path)
    with pytest.raises(ValueError, match=r"another version of pyro_dgp \(9.0; this is"):
        LatentDGPRegressor.load(path)
    torch.save({"format": "pyro_dgp checkpoint 3"}, path)
    with pytest.raises(ValueError, match="is no model of pyro_dgp, but a pyro_dgp checkpoint"):
        LatentDGPRegressor.load(path)
    with pytest.raises(FileNotFoundError):
        LatentDGPRegressor.load(tmp_path / "absent.pt")


def test_loading_runs_no_code(tmp_path):
    torch.save({"format": "pyro_dgp model 3", "parameters": Malicious()}, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="is no model of pyro_dgp"):
        LatentDGPRegressor.load(tmp_path / "m.pt")


@pytest.mark.parametrize(("num_rows", "num_steps"), [(40, 2000), (5001, 4000)])
def test_many_rows_take_twice_the_steps(monkeypatch, num_rows, num_steps):
    import pyro_dgp.sklearn.members as module

    fit, seen = module.fit, {}

    def no_steps(*args, **options):
        seen.update(options)
        return fit(*args, **options | {"num_steps": 0})

    monkeypatch.setattr(module, "fit", no_steps)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(num_rows, 1)), rng.normal(size=num_rows)
    regressor(num_steps=None, validation_fraction=0).fit(X, y)
    assert seen["num_steps"] == num_steps


def test_a_model_of_logarithms_answers_in_the_targets_units(tmp_path):
    X, y = np.linspace(0, 1, 40)[:, None], np.exp(np.random.default_rng(0).normal(size=40))
    options = WHOLE | {"num_steps": 3}
    model = LatentDGPRegressor(target_transform="log", **options).fit(X, y)
    plain = LatentDGPRegressor(**options).fit(X, np.log(y))
    np.testing.assert_allclose(model.log_density(X, y), plain.log_density(X, np.log(y)) - np.log(y))
    np.testing.assert_allclose(model.predict_quantiles(X), np.exp(plain.predict_quantiles(X)))
    np.testing.assert_allclose(model.cdf(X, y), plain.cdf(X, np.log(y)))
    draws = model.sample(X, 4000, random_state=0)
    assert (draws > 0).all()
    errors = (draws.mean(1) - model.predict(X)) / (draws.std(1) / 4000**0.5)
    assert np.abs(errors).max() < 5
    spread = np.abs(draws[:, :2000] - draws[:, 2000:]).mean(1)
    expected = np.abs(draws - y[:, None]).mean(1) - spread / 2
    np.testing.assert_allclose(model.crps(X, y), expected, rtol=0.2)
    assert model.predictive(X, z=[0.5]).cdf(torch.zeros(40)).max() == 0
    model.save(tmp_path / "m.pt")
    loaded = LatentDGPRegressor.load(tmp_path / "m.pt")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    # Parameters are for the next fit.
    before = model.predict(X)
    model.set_params(target_transform=None).save(tmp_path / "m.pt")
    assert np.array_equal(model.predict(X), before)
    assert np.array_equal(LatentDGPRegressor.load(tmp_path / "m.pt").predict(X), before)


def test_a_file_that_could_not_be_read_is_not_written(tmp_path):
    model = regressor().fit(*data())
    with pytest.raises(ValueError, match="kernel must be one of"):
        model.set_params(kernel="foo").save(tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_fit_that_fails_leaves_no_old_one():
    """Old members between new scales would predict something else."""
    X, y = data()
    model = regressor(num_steps=2).fit(X, y)
    with pytest.raises(ValueError, match="y is constant"):
        model.fit(10 * X, np.ones(len(X)))
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.fit(X, y).predict(X)


def test_rounded_targets_have_quantiles_as_they_are_written():
    X = np.linspace(-2, 2, 60)[:, None]
    y = np.digitize(X[:, 0], [-1, 0, 1]) + 1.0
    model = regressor(likelihood="auto", num_steps=2, dtype="float32").fit(X, y)
    assert model.likelihood_ == "rounded"
    assert set(np.unique(model.predict_quantiles(X, [0.1, 0.5, 0.9]))) <= {0.0, 1, 2, 3, 4, 5}
    # Several targets, each standardised, have no lattice in common.
    model.fit(X, np.column_stack([y, 5 - y]))
    assert model.likelihood_ == "heteroscedastic"


@pytest.mark.parametrize("likelihood", ["rounded", "zero_inflated"])
def test_values_with_a_probability_are_as_they_are_written(likelihood):
    """Not next to it: most claims are 0, neither 6e-5 nor 2e-16."""
    X = np.linspace(-2, 2, 60)[:, None]
    y = 1000.0 * np.digitize(X[:, 0], [0, 1])
    if likelihood == "zero_inflated":
        y *= np.random.default_rng(0).lognormal(size=60)
    model = regressor(likelihood=likelihood, num_steps=2, dtype="float32").fit(X, y)
    draws = model.sample(X, 50, random_state=0)
    assert (draws == 0).any()
    assert not ((draws != 0) & (np.abs(draws) < 1e-2)).any()
    assert (model.predict_quantiles(X, np.linspace(0.05, 0.95, 19)) == 0).any()


def test_messages_of_other_files_are_our_own(tmp_path):
    """None of torch's, which advises to load what it does not trust in another way."""

    class Command:
        def __reduce__(self):
            return os.system, ("exit 1",)

    torch.save({"format": "pyro_dgp model 4", "more": Command()}, tmp_path / "command.pt")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    for name in ("command.pt", "table.csv"):
        with pytest.raises(ValueError, match="or a damaged one") as refused:
            LatentDGPRegressor.load(tmp_path / name)
        assert not re.search("weights_only|zip|pickle|torch", str(refused.value))
