"""LatentDGPClassifier: scikit-learn's own checks, its pool, and probabilities that are right."""

import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from scipy.special import expit
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor
from pyro_dgp.sklearn.classes import ClassPool, indicators, likeliest_exponent, likeliest_weights
from pyro_dgp.sklearn.features import CrossFittedFeatures
from tests.estimators import SMALL, Malicious, class_data, classifier, weights_of_three

pytestmark = pytest.mark.whole

SKIPPED = {"check_sample_weight_equivalence_on_dense_data": "holds in distribution only"}


@parametrize_with_checks([classifier(**SMALL, features=None, pool=False), classifier(**SMALL)])
def test_estimator_checks(estimator, check, few_trees):
    name = getattr(check, "func", check).__name__
    if "array_api" in name:
        pytest.skip("needs SCIPY_ARRAY_API")
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    if name == "check_classifiers_train":  # it asks for a score
        estimator.set_params(K=2, num_steps=9, num_inducing=8, num_samples=40)
    check(estimator)


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical", "ordinal"])
def test_probabilities_are_learned(likelihood, monkeypatch):
    monkeypatch.setattr("pyro_dgp.sklearn.schedule._NUM_FOLDS", 2)
    X, y = class_data(600, 2)
    new, _ = class_data(300, 2, seed=1)
    true = expit(new[:, 0])
    options = {"num_steps": 250, "lr": 0.05, "likelihood": likelihood, "batch_size": 64}
    options["pool"] = likelihood == "bernoulli"  # it is the same for all
    p = classifier(**options).fit(X, y).predict_proba(new)
    assert np.allclose(p.sum(1), 1)
    assert np.abs(p[:, 1] - true).mean() < 0.06
    assert np.abs(y.mean() - true).mean() > 0.15  # what the shares alone would give


def test_classes_keep_their_names(few_trees):
    X, y = class_data()
    names = np.array(["b", "c", "a"])
    model, other = classifier().fit(X, y), classifier().fit(X, names[y])
    assert other.classes_.tolist() == ["a", "b", "c"]
    assert model.classes_.tolist() == [0, 1, 2]
    assert other.predict_proba(X).shape == (90, 3)
    assert set(other.predict(X)) <= set(names)
    assert np.mean(other.predict(X) == names[y]) > 0.5
    assert other.score(X, names[y]) == np.mean(other.predict(X) == names[y])
    assert np.allclose(np.exp(other.predict_log_proba(X)), other.predict_proba(X))
    assert model.likelihood_ == "categorical"
    assert classifier().fit(X, y > 0).likelihood_ == "bernoulli"


def test_weights_of_the_pool_are_the_likeliest_of_a_grid():
    p = np.random.default_rng(0).random((60, 3))
    row_weights = np.random.default_rng(1).random(60)
    w = likeliest_weights(p, row_weights)
    assert w.sum() == pytest.approx(1)

    def mean(w):
        return row_weights @ np.log(p @ w)

    assert mean(w) >= max(mean(other) for other in weights_of_three()) - 1e-4
    # One that is best everywhere takes all.
    best = np.column_stack([p.min(1), p.max(1) + 0.1])
    assert likeliest_weights(best, np.ones(60)).tolist() == [0, 1]


@pytest.mark.parametrize("sharpening", [0.5, 1.0, 2.0])
def test_an_exponent_undoes_blur(sharpening):
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.ones(4), 4000)
    y = (true.cumsum(1) < rng.random((4000, 1))).sum(1)
    stated = true ** (1 / sharpening)
    stated /= stated.sum(1, keepdims=True)
    assert likeliest_exponent(stated, y, np.ones(4000)) == pytest.approx(sharpening, rel=0.08)


def test_a_pool_without_evidence_stays_as_it_is():
    pool, p = ClassPool(), np.array([[0.2, 0.8], [1.0, 0.0]])
    assert np.array_equal(pool.pooled(p, None), p)


def test_where_inputs_say_nothing_shares_are_the_answer(few_trees):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 5)), rng.random(200) < 0.3
    new, target = rng.normal(size=(300, 5)), rng.random(300) < 0.3
    options = {"num_steps": 100, "lr": 0.05, "num_layers": 2, "num_inducing": 30}
    pooled = classifier(**options).fit(X, y)
    alone = classifier(**options, pool=False).fit(X, y)
    shares = log_loss(target, np.full(300, y.mean()))
    found = log_loss(target, pooled.predict_proba(new))
    assert found < log_loss(target, alone.predict_proba(new))
    assert found < shares + 0.03


@pytest.mark.parametrize("estimator", [GaussianNB(), LogisticRegression()])
def test_a_rows_own_class_does_not_reach_its_features(estimator):
    X, y = class_data(60)

    def features(y):
        return CrossFittedFeatures.fitted(estimator, X, indicators(y, 3), None, 0)

    made, before = features(y)
    assert np.allclose(before.sum(1), 1)
    for row in (0, 17, 59):
        other = y.copy()
        other[row] = (other[row] + 1) % 3
        again, after = features(other)
        assert np.array_equal(after[row], before[row])
        assert not np.allclose(again.transform(X)[row], made.transform(X)[row])


def test_a_class_of_one_row(few_trees):
    X, y = class_data()
    y[y == 2] = 1
    y[7] = 2
    for options in (
        {}, {"features": RandomForestClassifier(5)}, {"validation_fraction": 0.5},
        {"validation_fraction": 0.99},
    ):  # fmt: skip
        p = classifier(**options).fit(X, y).predict_proba(X)
        assert p.shape == (90, 3)
        assert np.allclose(p.sum(1), 1)
        assert (p[:, 2] < 0.5).mean() > 0.9


def test_one_row_against_all_others():
    X, _ = class_data()
    p = classifier(features=LogisticRegression()).fit(X, np.arange(90) == 7).predict_proba(X)
    assert (p[:, 1] < 0.5).mean() > 0.9


def test_rows_without_weight_are_not_there(few_trees):
    X, y = class_data()
    w = np.ones(90)
    w[60:] = 0
    y[60:] = 9
    weighted = classifier().fit(X, y, sample_weight=w)
    assert weighted.classes_.tolist() == [0, 1, 2]
    assert np.array_equal(
        weighted.predict_proba(X), classifier().fit(X[:60], y[:60]).predict_proba(X)
    )


def test_weights_count(few_trees):
    X, y = np.zeros((200, 1)), np.arange(200) % 2
    X[::3] = 1.0
    w = np.where(y, 4.0, 1.0)
    model = classifier(num_steps=100, lr=0.1).fit(X, y, sample_weight=w)
    assert model.predict_proba([[0.0], [1.0]])[:, 1] == pytest.approx(0.8, abs=0.07)


def test_the_best_parameters_by_held_out_rows_are_kept(few_trees):
    X, y = class_data(200)
    model = classifier(num_steps=100, lr=0.5, patience=None, pool=False).fit(X, y)
    scores = model.validation_log_loss_
    order = np.random.default_rng(model._seed).permutation(200)[:20]
    found = log_loss(y[order], model.predict_proba(X[order]))
    assert found == pytest.approx(scores.min(), rel=0.1)  # of other samples of z
    assert scores.min() < scores[-1]


@pytest.mark.parametrize(
    "options",
    [{}, {"likelihood": "ordinal"}, {"features": None, "pool": False}, {"n_estimators": 2},
     {"dtype": "float32", "num_layers": 2}],
)  # fmt: skip
@pytest.mark.parametrize("kind", [int, bool, str])
def test_model_files_are_the_model(options, kind, tmp_path, few_trees):
    X, y = class_data(num_classes=2 if kind is bool else 3)
    model = classifier(**SMALL | options).fit(X, y.astype(kind))
    model.save(tmp_path / "m.pt", note=1)
    loaded = LatentDGPClassifier.load(tmp_path / "m.pt")
    for other in (loaded, pickle.loads(pickle.dumps(model))):
        assert np.array_equal(other.predict_proba(X), model.predict_proba(X))
        assert np.array_equal(other.predict(X), model.predict(X))
        assert other.classes_.dtype == model.classes_.dtype
        assert other.get_params() == model.get_params()
        assert other.pool_weights_ == model.pool_weights_
    assert loaded.extra_ == {"note": 1}
    with pytest.raises(ValueError, match=r"is a LatentDGPClassifier, which LatentDGPClassifier\."):
        LatentDGPRegressor.load(tmp_path / "m.pt")


def test_loading_runs_no_code(tmp_path):
    torch.save({"format": "pyro_dgp model 3", "parameters": Malicious()}, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="is no model of pyro_dgp"):
        LatentDGPClassifier.load(tmp_path / "m.pt")


def test_model_selection(few_trees):
    X, y = class_data()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), classifier(num_steps=3)),
        {"latentdgpclassifier__latent_dim": [0, 1]}, cv=2, scoring="neg_log_loss",
    ).fit(X, y)  # fmt: skip
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_classes_that_a_file_cannot_have(tmp_path):
    X, y = class_data(num_classes=2)
    model = classifier(**SMALL).fit(X, np.datetime64("2020-01-01") + y)
    with pytest.raises(ValueError, match=r"are no numbers or strings.*y\.astype\(str\)"):
        model.save(tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []
