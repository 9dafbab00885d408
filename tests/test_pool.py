"""What stands beside the deep GP of a regressor: features, the pool, the schedule."""

import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.stats import norm

pytest.importorskip("sklearn")

import joblib
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.sklearn import LatentDGPRegressor, base, processes, regressor, schedule
from pyro_dgp.sklearn import features as features_module
from pyro_dgp.sklearn.features import BoostingFeatures, CrossFittedFeatures, features_of
from pyro_dgp.sklearn.members import Fold
from pyro_dgp.sklearn.pool import _cdf, likeliest_width, spread, stacking_weights
from tests.estimators import SMALL, data, weights_of_three, whole
from tests.quadrature import crps, moments

pytestmark = pytest.mark.whole


@pytest.fixture(autouse=True)
def two_folds(monkeypatch):
    """Fewer fits: what a pool is does not depend on their number."""
    monkeypatch.setattr(schedule, "_NUM_FOLDS", 2)


@pytest.mark.parametrize("sources", [["trees"], ["boosting"], [Ridge()], ["boosting", Ridge()]])
def test_a_rows_own_target_does_not_reach_its_features(sources):
    X, y = data(50)
    y = np.stack([y, -y], 1)

    def features(y):
        return features_of(sources, X, y, None, 0)

    made, before = features(y)
    for row in (0, 17, 49):
        other = y.copy()
        other[row] += 100.0
        again, after = features(other)
        assert np.array_equal(after[row], before[row])
        assert not np.allclose(np.delete(after, row, 0), np.delete(before, row, 0))
        # The features of a new row, which all that is fitted may know, would show it.
        assert not np.allclose(again.transform(X)[row], made.transform(X)[row])


def test_stacking_weights_are_the_best_of_a_grid():
    rng = np.random.default_rng(0)
    cdfs = [np.sort(rng.random((40, 30)), 1) for _ in range(3)]
    H, width = np.sort(rng.random((40, 30)) < 0.5, 1), rng.random(30)
    w = stacking_weights(cdfs, H, width)
    assert w.sum() == pytest.approx(1)
    assert (w >= 0).all()

    def score(w):
        return ((np.tensordot(w, cdfs, 1) - H) ** 2 * width).sum()

    assert score(w) <= min(score(other) for other in weights_of_three()) * (1 + 1e-6)
    # One that is right takes all.
    assert stacking_weights([cdfs[0], H.astype(float)], H, width) == pytest.approx([0, 1], abs=1e-3)


def test_distribution_functions_at_points():
    rng = np.random.default_rng(0)
    loc, points = rng.normal(size=(5, 4, 2)), np.array([-1.0, 0.2, 3.0])
    both = PredictiveMixture(torch.distributions.Normal(torch.as_tensor(loc), 0.5), 1)
    for output in (0, 1):
        expected = norm.cdf(points, loc[..., output, None], 0.5).mean(0)
        assert np.allclose(_cdf(both, points, output), expected)
        assert np.allclose(_cdf(both.marginal(output), points, 0), expected)


def test_the_likeliest_width():
    rng = np.random.default_rng(0)
    y = 0.1 * rng.normal(size=(2000, 1))
    assert likeliest_width(np.zeros((3, 2000, 1)), y, None, np.ones(2000)) == 0.1
    wide = np.where(np.arange(2000) < 1000, 1.0, 5.0)
    # Of rows that count and rows that do not.
    assert likeliest_width(np.zeros((3, 2000, 1)), y * wide[:, None], None, wide == 5) == 0.5


def test_targets_are_spread_by_weight():
    y = np.arange(1000.0)
    some = spread(Fold(y, y, None), 500, np.random.default_rng(0))
    assert some.shape == (500, 1)
    assert some.mean() == pytest.approx(y.mean(), abs=1)
    w = (y >= 750) * 1.0
    assert spread(Fold(y, y, w), 500, np.random.default_rng(0)).min() >= 750


def test_where_inputs_say_nothing_the_targets_distribution_is_the_answer():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 5)), rng.gamma(1, 1, 200)
    new, target = rng.normal(size=(300, 5)), rng.gamma(1, 1, 300)
    options = {"num_steps": 60, "num_layers": 2, "lr": 0.05, "num_inducing": 30, "num_samples": 200}
    pooled = whole(**options).fit(X, y)
    alone = whole(**options, pool=False).fit(X, y)
    assert pooled.pool_weights_["marginal"] > 0.3
    assert sum(pooled.pool_weights_.values()) == pytest.approx(1)
    assert pooled.crps(new, target).mean() < alone.crps(new, target).mean()


@pytest.mark.parametrize("num_rows", [60, 300])
def test_no_kernel_is_about_the_target_that_chooses_its_width(num_rows):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(num_rows, 3)), rng.normal(size=num_rows)
    model = whole(num_samples=500, likelihood="gaussian").fit(X, y)
    # A kernel at each target is likeliest with the smallest width, 0.01.
    assert model._pool.widths["marginal"] >= 0.2
    new, target = rng.normal(size=(400, 3)), rng.normal(size=400)
    model._pool.weights, model._pool.exponent = {"dgp": 0.0, "marginal": 1.0, "trees": 0.0}, 1.0
    best = norm.logpdf(target).mean()
    assert model.log_density(new, target).mean() == pytest.approx(best, abs=0.1)


def test_a_pool_of_several_targets_of_which_one_has_ties():
    X, y = data(40)
    both = np.column_stack([y, np.round(y)])
    model = whole(num_steps=2).fit(X, both)
    assert sum(model.pool_weights_.values()) == pytest.approx(1)
    assert np.isfinite(model.log_density(X, both)).all()


def test_a_pool_is_one_distribution():
    X, y = data(80)
    model = whole(likelihood="heteroscedastic").fit(X, y)
    grid = np.linspace(-6, 6, 3001)
    x = np.repeat(X[:1], len(grid), 0)
    mass, *expected = moments(np.exp(model.log_density(x, grid)), grid)
    assert mass == pytest.approx(1, abs=2e-3)
    mean, std = model.predict(X[:1], return_std=True)
    assert mean[0] == pytest.approx(expected[0].item(), abs=5e-3)
    assert std[0] ** 2 == pytest.approx(expected[1].item(), rel=2e-2)
    quantiles = model.predict_quantiles(X[:1], [0.1, 0.7])[0]
    assert np.allclose(model.cdf(np.repeat(X[:1], 2, 0), quantiles), [0.1, 0.7], atol=1e-6)
    exact = crps(lambda v: model.cdf(np.repeat(X[:1], len(v), 0), v), y[0], -6, 6)
    assert model.crps(X[:1], y[:1])[0] == pytest.approx(exact.item(), abs=3e-3)


@pytest.mark.parametrize("digits", [1, 6])
def test_no_outcome_is_impossible(digits):
    X, y = data(80)
    y = (0.1 * X[:, 0] + 0.01 * y).round(digits)
    model = whole(num_samples=500, validation_fraction=0.0).fit(X, y)
    assert model.likelihood_ == ("rounded" if digits == 1 else "heteroscedastic")
    model._pool.exponent = 1.0  # which may sharpen tails
    far = y.mean() + 4 * y.std() * np.sign(y.mean() - model.predict(X))
    # The normal distribution of all targets, of which one component in 500 is.
    least = norm.logpdf(4) - np.log(y.std()) - np.log(500)
    step = 0.1 if digits == 1 else 1.0
    far = far.round(digits)
    assert (model.log_density(X, far) > least + np.log(step) - 1).all()
    assert whole(pool=False).fit(X, y)._pool.counts(500) == {"dgp": 500, "normal": 0}


def test_rounded_targets_are_found(few_trees):
    X, y = data(80)
    model = whole().fit(X, np.round(3 * y) / 2)
    assert model.likelihood_ == "rounded"
    points = 0.5 * np.arange(-40, 41)
    total = sum(np.exp(model.log_density(X[:3], np.full(3, point))) for point in points)
    assert np.allclose(total, 1, atol=1e-5)
    assert np.isin(model.sample(X, 5, random_state=0).round(6), points).all()
    assert whole().fit(X, y).likelihood_ == "heteroscedastic"


PER_OUTPUT = [
    {}, {"likelihood": "student_t"}, {"features": None}, {"features": ("boosting", "trees")},
    {"features": "boosting"}, {"likelihood": "gamma"}, {"likelihood": "zero_inflated"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "num_outputs"),
    [(options, number) for options in PER_OUTPUT for number in (None, 2)]
    # Which are the same for any number of outputs.
    + [({"n_estimators": 2}, None), ({"kernel": "matern12"}, 2), ({"dtype": "float32"}, None)],
)
def test_model_files_are_the_model(options, num_outputs, tmp_path, few_trees):
    X, y = data(30, num_outputs=num_outputs)
    y = np.abs(y) + 0.1 if options.get("likelihood") == "gamma" else y
    model = whole(**SMALL | options).fit(X, y)
    model.save(tmp_path / "m.pt")
    loaded = LatentDGPRegressor.load(tmp_path / "m.pt")
    some = slice(3)
    assert np.array_equal(loaded.predict(X[some]), model.predict(X[some]))
    assert np.array_equal(loaded.crps(X[some], y[some]), model.crps(X[some], y[some]))
    assert loaded.pool_weights_ == model.pool_weights_
    assert loaded.exponent_ == model.exponent_
    assert loaded.get_params() == model.get_params()


def test_any_regressor_makes_features(tmp_path):
    X, y = data(80)
    model = whole(features=HistGradientBoostingRegressor(max_iter=5)).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert set(model.pool_weights_) == {"dgp", "marginal"}
    with pytest.raises(ValueError, match="cannot be saved to a file that runs no code"):
        model.save(tmp_path / "m.pt")
    two = whole(features=Ridge(), num_steps=3).fit(X, np.stack([y, -y], 1))
    assert two.predict(X).shape == (80, 2)


def test_a_regressor_of_one_target_makes_features_of_each():
    X, y = data(80)
    boosting, w = HistGradientBoostingRegressor(max_iter=5), np.linspace(0.5, 1.5, 80)
    two, values = features_of([boosting], X, np.stack([y, y**2], 1), w, 0)
    each = [features_of([boosting], X, target[:, None], w, 0) for target in (y, y**2)]
    assert np.array_equal(values, np.concatenate([value for _, value in each], 1))
    assert np.array_equal(two.transform(X), np.concatenate([f.transform(X) for f, _ in each], 1))
    features_of([KNeighborsRegressor(), SVR()], X, np.stack([y, -y], 1), w, 0)
    stack = StackingRegressor([("line", Ridge())])  # which has no `predict` before it is fitted
    assert features_of([stack], X, np.stack([y, -y], 1), w, 0)[1].shape == (len(X), 2)


def test_sources_stand_side_by_side():
    X, y = data(80)
    two, values = features_of(["boosting", Ridge(), "trees"], X, y[:, None], None, 0)
    parts = [
        features_of([source], X, y[:, None], None, 0) for source in ("boosting", Ridge(), "trees")
    ]
    assert np.array_equal(values, np.concatenate([value for _, value in parts], 1))
    assert np.array_equal(two.transform(X), np.concatenate([f.transform(X) for f, _ in parts], 1))
    assert np.array_equal(two.samples(X), parts[2][0].samples(X))
    assert parts[0][0].samples(X) is None


def test_boosting_is_scikit_learns():
    X, y = data(300)
    X, y = X.astype(np.float32), y[:, None]
    features, values = BoostingFeatures.fitted(X, y, None, 0)
    model = HistGradientBoostingRegressor(early_stopping=True, **features_module._BOOSTING)
    crossed, expected = CrossFittedFeatures.fitted(model, X, y, None, 0)
    assert np.array_equal(values, expected)
    assert np.corrcoef(values[:, 0], y[:, 0])[0, 1] > 0.5
    new = np.random.default_rng(1).normal(size=(500, X.shape[1])).astype(np.float32)
    assert np.allclose(features.transform(new), crossed.transform(new), rtol=0, atol=1e-12)


def test_boosting_from_a_part_of_the_rows(monkeypatch):
    monkeypatch.setattr(features_module, "_MOST_ROWS", 40)
    seen = []
    fit = HistGradientBoostingRegressor.fit
    monkeypatch.setattr(
        HistGradientBoostingRegressor,
        "fit",
        lambda self, X, y: seen.append(len(X)) or fit(self, X, y),
    )
    X, y = data(100)
    BoostingFeatures.fitted(X, y[:, None], None, 0)
    assert seen == [40] * 5


def test_random_regressors_are_seeded():
    X, y = data(60)
    one, two = (
        CrossFittedFeatures.fitted(
            make_pipeline(StandardScaler(), RandomForestRegressor(3)), X, y[:, None], None, 7
        )[1]
        for _ in range(2)
    )
    assert np.array_equal(one, two)


def test_rows_without_weight_are_not_there(few_trees):
    X, y = data(60)
    w = np.ones(60)
    w[40:] = 0
    y[40:] = 1e3
    weighted = whole().fit(X, y, sample_weight=w)
    assert np.array_equal(weighted.predict(X), whole().fit(X[:40], y[:40]).predict(X))
    assert np.array_equal(
        weighted.predict(X), whole().fit(X, y, sample_weight=7 * w).predict(X)
    )  # they are relative


def test_weights_count():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 1)), np.repeat([0.0, 1.0], 150) + 0.1 * rng.normal(size=300)
    w = np.repeat([9.0, 1.0], 150)
    options = {"num_steps": 200, "lr": 0.1, "likelihood": "gaussian"}
    for pool in (False, True):
        model = whole(**options, pool=pool, features=None).fit(X, y, sample_weight=w)
        assert model.predict(X).mean() == pytest.approx(0.1, abs=0.06)


def test_a_time_limit_is_kept_and_told(few_trees):
    X, y = data(60)
    with pytest.warns(ConvergenceWarning, match="leaves time for .* of 100000 steps"):
        model = whole(num_steps=100_000, time_limit=5.0).fit(X, y)
    assert 1 <= model.num_steps_ < 100_000
    assert np.isfinite(model.predict(X)).all()
    limited = whole(time_limit=1000.0).fit(X, y)
    assert limited.num_steps_ == 9
    assert np.array_equal(limited.predict(X), whole().fit(X, y).predict(X))


class Clock:
    """A clock that a look at it moves on by a hundredth of a second."""

    now = 0.0

    def monotonic(self):
        self.now += 0.01
        return self.now


@pytest.mark.parametrize("limit", [60.0, None])
def test_an_interrupted_fit_keeps_its_plan(limit, tmp_path, ctrl_c_at, monkeypatch, few_trees):
    X, y = data(60)
    clock = Clock()
    for module in (base, regressor, schedule):
        monkeypatch.setattr(module, "time", clock)
    options = {"num_steps": 10_000, "time_limit": 3.0, "checkpoint": tmp_path / "c.pt"}
    options["validation_fraction"] = 0.0
    steps = ctrl_c_at(20)
    model = whole(**options).fit(X, y)
    assert model.history_.interrupted
    told = f"c.pt' continues had planned {model.num_steps_} of 10000 steps, which stays so"
    with pytest.warns(ConvergenceWarning, match=told):
        again = whole(**options | {"time_limit": limit}).fit(X, y)
    assert 20 < again.num_steps_ == model.num_steps_ < 10_000
    assert len(again.history_.losses) == model.num_steps_ < len(steps)
    assert set(again.checkpoints()) == set(tmp_path.iterdir())
    assert len(again.checkpoints()) == 4  # fits, of which two are folds, and the plan


def test_a_limit_does_not_change_the_plan_of_a_fit_without_one(tmp_path, ctrl_c_at, few_trees):
    X, y = data(60)
    options = {"num_steps": 30, "checkpoint": tmp_path / "c.pt", "validation_fraction": 0.0}
    (tmp_path / "c.pt.plan").write_text('{"num_steps": 7}')  # of a fit whose checkpoint is gone
    ctrl_c_at(20)
    assert whole(**options).fit(X, y).history_.interrupted
    model = whole(**options, time_limit=1e6).fit(X, y)
    assert len(model.history_.losses) == model.num_steps_ == 30


def test_folds_that_are_late_say_nothing(monkeypatch, few_trees):
    X, y = data(60)
    monkeypatch.setattr(schedule, "_planned", lambda *args: (50, None))
    with pytest.warns(ConvergenceWarning, match="ended 3 fits before that"):
        model = whole(num_steps=50, time_limit=1e-6).fit(X, y)
    assert len(model.history_.losses) == 1
    assert model.pool_weights_ == {"dgp": 1.0}


@pytest.fixture
def little_is_enough(monkeypatch):
    """Has processes started for a few steps."""
    monkeypatch.setattr(schedule, "_LEAST_STEPS", 1)


def test_processes_make_the_same_model(little_is_enough):
    X, y = data(60)
    options = {"n_estimators": 2, "num_steps": 4}
    one, two = (whole(**options, n_jobs=n).fit(X, y) for n in (1, 2))
    assert np.allclose(one.predict(X), two.predict(X), rtol=1e-8)
    assert len(two.members_) == 2


class PressingBar:
    """A progress bar at which somebody presses Ctrl-C after some steps."""

    def __init__(self, num_steps):
        self.num_steps, self.n = num_steps, 0

    def __call__(self, **options):
        return nullcontext(self)

    def update(self, num_steps):
        assert num_steps >= 0
        before, self.n = self.n, self.n + num_steps
        if before < self.num_steps <= self.n:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_all_processes_and_keeps_their_work(tmp_path, monkeypatch, little_is_enough):
    X, y = data(60)
    options = {"num_steps": 100_000, "n_jobs": 2, "checkpoint": tmp_path / "c.pt"}
    options |= {"validation_fraction": 0.0, "pool": True}
    monkeypatch.setattr(schedule, "tqdm", PressingBar(10))
    model = whole(**options).fit(X, y)
    first = model.history_.losses
    assert model.history_.interrupted
    assert len(first) < 100_000
    assert model.pool_weights_ == {"dgp": 1.0}
    assert np.isfinite(model.predict(X)).all()
    monkeypatch.setattr(schedule, "tqdm", again := PressingBar(2 * len(first) + 500))
    second = whole(**options).fit(X, y).history_.losses
    assert len(first) < len(second) < 100_000
    assert second[: len(first)] == first
    assert again.n > len(second)  # of both processes, with the steps before


class WithALock(Ridge):
    def __init__(self, lock=None):
        super().__init__()
        self.lock = lock

    def __sklearn_clone__(self):
        return self


def test_what_cannot_be_sent_to_processes_is_told(little_is_enough):
    features = WithALock(threading.Lock())
    with pytest.raises(ValueError, match="cannot be sent to other processes: use n_jobs=1"):
        whole(num_steps=2, n_jobs=2, features=features).fit(*data(60))


def test_ctrl_c_before_a_process_has_begun(monkeypatch, little_is_enough):
    def ended(*args):
        signal.raise_signal(signal.SIGINT)
        raise BrokenProcessPool

    monkeypatch.setattr(processes.joblib, "Parallel", lambda *args, **options: ended)
    with pytest.raises(KeyboardInterrupt):
        whole(num_steps=2, n_jobs=2).fit(*data(60))


@pytest.mark.parametrize(
    ("options", "most_rows", "n_jobs"),
    [({}, 60, -1), ({}, 59, 1), ({"n_jobs": 2}, 59, 2), ({"device": "cpu:0"}, 60, -1)],
)
def test_number_of_processes_by_default(options, most_rows, n_jobs, monkeypatch):
    class Asked(Exception):
        pass

    def fit_all(*args, schedule, **options):
        raise Asked(schedule.n_jobs)

    monkeypatch.setattr(base, "fit_all", fit_all)
    monkeypatch.setattr(base, "_MOST_ROWS_BY_PROCESSES", most_rows)
    with pytest.raises(Asked, match=f"^{n_jobs}$"):
        whole(validation_fraction=0.0, **options).fit(*data(60))


def test_no_more_processes_than_are_worth_it(monkeypatch):
    monkeypatch.setattr(joblib, "effective_n_jobs", lambda n_jobs: 16)

    def number(num_folds=4, **options):
        options = {"num_steps": 1000, "num_members": 1, "pooled": True, "deadline": None} | options
        plan = schedule.Schedule(**options, n_jobs=-1, progress=False, checkpoint=None)
        return schedule._num_processes(plan, num_folds)

    assert number() == 5
    assert number(num_members=3, num_folds=1) == 4
    assert number(num_folds=0) == 1
    assert number(num_steps=100) == 1
    assert number(deadline=time.monotonic() + 30) == 1
    assert number(deadline=time.monotonic() + 600) == 5


@pytest.mark.parametrize(("workers", "span"), [(1, 2.6), (2, 1.4), (3, 1.0), (5, 1.0)])
def test_the_longest_fit_is_part_of_the_plan(workers, span):
    """One member and four folds, of which more processes than three make nothing shorter."""
    assert schedule._span([1.0, 0.4, 0.4, 0.4, 0.4], workers) == pytest.approx(span)


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "gaussian"])
def test_few_rows_and_many_columns(likelihood, few_trees):
    rng = np.random.default_rng(0)
    for shape in ((10, 3), (100, 300), (60, 2)):
        X = rng.normal(size=shape) if shape[0] != 60 else rng.integers(0, 2, shape) * 1.0
        y = rng.normal(size=shape[0])
        model = whole(likelihood=likelihood, num_steps=2).fit(X, y)
        assert np.isfinite(model.crps(X, y)).all()
        assert np.isfinite(model.log_density(X, y)).all()


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "zero_inflated"])
def test_drawn_noise_is_the_noise(likelihood):
    from pyro_dgp import LatentDGP

    torch.manual_seed(0)
    X = torch.randn(40, 1)
    targets = X[:, 0].clamp_min(0.0) if likelihood == "zero_inflated" else X[:, 0]
    dgp = LatentDGP.from_data(X, targets, likelihood=likelihood, num_inducing=10)
    p = dgp.predict(X[:5], 4000, shared_draws=True)
    q = p.drawn(torch.Generator().manual_seed(0))
    y = torch.linspace(-1, 1, 5)
    noise = getattr(q.components, "rest", q.components)
    assert isinstance(noise, torch.distributions.Normal)
    assert torch.allclose(p.cdf(y), q.cdf(y), atol=5e-3)
    assert torch.allclose(p.log_prob(y), q.log_prob(y), atol=2e-2)
    assert torch.allclose(p.stddev, q.stddev, rtol=0.05)


def two_branches(num_rows, seed):
    """Targets on one of two lines, and no input tells on which."""
    rng = np.random.default_rng(seed)
    X = rng.random((num_rows, 1))
    branch = np.where(rng.random(num_rows) < 0.3, 1.0, -1.0)
    return X, branch * (1 + 2 * X[:, 0]) + 0.1 * rng.normal(size=num_rows)


BRANCHES = {
    "features": None, "num_inducing": 15, "num_steps": 150, "random_state": 0, "lr": 0.05, "K": 5,
    "likelihood": "gaussian",
}  # fmt: skip


def test_a_prior_of_z_that_is_better_on_held_out_rows_is_kept(tmp_path, monkeypatch):
    X, y = two_branches(150, 0)
    model = LatentDGPRegressor(**BRANCHES).fit(X, y)
    assert model.latent_prior_ == "fitted"
    X_new, y_new = two_branches(500, 1)
    found = model.log_density(X_new, y_new)
    model.save(tmp_path / "model.pt")
    loaded = LatentDGPRegressor.load(tmp_path / "model.pt")
    assert loaded.latent_prior_ == "fitted"
    assert np.array_equal(loaded.log_density(X_new, y_new), found)
    model.dgp_.reset_latent_prior()
    assert found.mean() > model.log_density(X_new, y_new).mean()

    monkeypatch.setattr(schedule, "_is_better", lambda *args: False)
    other = LatentDGPRegressor(**BRANCHES | {"num_steps": 2}).fit(X, y)
    assert other.latent_prior_ == "normal"


def test_a_prior_of_z_that_is_no_better_is_not_kept():
    class Held:  # scores stand in for predictions
        def __init__(self, score):
            self.y = np.zeros((len(score), 1))
            self.rows, self.dgp = Fold(self.y, self.y[:, 0], None), score

    class Recipe:
        score = staticmethod(lambda p, y: torch.as_tensor(p))

    rng = np.random.default_rng(0)
    base, noise = rng.random(100), rng.normal(size=100)
    noise = (noise - noise.mean()) / noise.std()

    def is_better(gain):
        parts = [Held((base - gain - noise)[rows]) for rows in (slice(0, 60), slice(60, 100))]
        others = [Held(base[rows]) for rows in (slice(0, 60), slice(60, 100))]
        return schedule._is_better(parts, others, Recipe)

    assert is_better(0.11)  # the standard error is 0.1
    assert not is_better(0.09)
    assert not is_better(-0.5)


def test_without_folds_the_prior_of_z_is_fitted():
    X, y = data(40)
    fitted = LatentDGPRegressor(pool=False, **SMALL).fit(X, y)
    assert fitted.latent_prior_ == "fitted"
    plain = LatentDGPRegressor(pool=False, **SMALL | {"latent_dim": 0}).fit(X, y)
    assert plain.latent_prior_ == "normal"
