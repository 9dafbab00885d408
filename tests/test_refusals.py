"""What the estimators for scikit-learn do not take."""

import copy

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge

from tests.estimators import class_data, classifier, data, regressor, whole
from tests.refusals import refusals

pytestmark = pytest.mark.whole


# Options


def of_regressor(**options):
    return lambda: regressor(**options).fit(*data())


def of_pool(**options):
    return lambda: whole(**options).fit(*data())


def of_classifier(**options):
    return lambda: classifier(**options).fit(*class_data())


SOURCES = "features must be 'auto', None, or of 'trees', 'boosting'"


@refusals(
    {
        "K of 0": (of_regressor(K=0), ValueError, "K must be at least 1"),
        "half a step": (of_regressor(num_steps=1.5), ValueError, "num_steps must be an integer"),
        "all rows for validation": (
            of_regressor(validation_fraction=1.0), ValueError, "validation_fraction must be"
        ),
        "a negative rate": (of_regressor(lr=-1.0), ValueError, "lr must be positive"),
        "no rate": (of_pool(lr=None), ValueError, "lr must be positive"),
        "another dtype": (
            of_regressor(dtype="float16"), ValueError, "dtype must be float32 or float64"
        ),
        "no patience": (of_regressor(patience=0), ValueError, "patience must be at least 1"),
        "no time": (of_pool(time_limit=0), ValueError, "time_limit must be positive"),
        "no processes": (of_pool(n_jobs=0), ValueError, "n_jobs must be at least 1, or -1 for one"),
        "no models": (of_pool(n_estimators=0), ValueError, "n_estimators must be at least 1"),
        "another kernel": (of_pool(kernel="linear"), ValueError, "kernel must be one of"),
        "another likelihood": (
            of_pool(likelihood="cauchy"), ValueError, "likelihood must be one of auto"
        ),
        "counts, of real numbers": (
            of_pool(likelihood="poisson"), ValueError, "Poisson takes counts"
        ),
        "zeros of two targets, which are standardised": (
            lambda: regressor(likelihood="zero_inflated").fit(
                np.ones((40, 1)), np.arange(40)[:, None].clip(20) * [1.0, 7.0] - [20.0, 139.0]
            ),
            ValueError, "fit a model to each column",
        ),
        "a checkpoint of no seed": (
            lambda: regressor(checkpoint="c.pt", random_state=None).fit(*data()),
            ValueError, "checkpoint needs an integer random_state",
        ),
        "another transform": (
            of_regressor(target_transform="sqrt"),
            ValueError, "target_transform must be None or 'log', but it is 'sqrt'",
        ),
        "logarithms of counts": (
            lambda: regressor(target_transform="log", likelihood="poisson").fit(
                np.ones((40, 1)), np.arange(40.0)
            ),
            ValueError, "target_transform",
        ),
        "logarithms of negative targets": (
            lambda: regressor(target_transform="log").fit(
                np.arange(40.0)[:, None], np.where(np.arange(40) == 3, -1.0, np.arange(1.0, 41.0))
            ),
            ValueError, "1 of 40 are not",
        ),
        "features of another name": (of_pool(features="forest"), ValueError, SOURCES),
        "features of a number": (of_pool(features=3), ValueError, SOURCES),
        "features of a class": (of_pool(features=Ridge), ValueError, SOURCES),
        "features of nothing beside trees": (
            of_pool(features=("trees", None)), ValueError, SOURCES
        ),
        "features of a classifier": (
            of_pool(features=RandomForestClassifier()),
            ValueError, "scikit-learn regressors, one or several",
        ),
        "features of one source twice": (
            of_pool(features=("trees", "trees")), ValueError, "names a source twice"
        ),
        "a likelihood of numbers for classes": (
            of_classifier(likelihood="gaussian"),
            ValueError, "likelihood must be one of auto, bernoulli",
        ),
        "no likelihood for classes": (
            of_classifier(likelihood=None), ValueError, "likelihood must be one of auto, bernoulli"
        ),
        "two classes' likelihood for three": (
            of_classifier(likelihood="bernoulli"), ValueError, "for two classes, but y has 3"
        ),
        "another name of features of classes": (
            of_classifier(features="forest"), ValueError, SOURCES + " and scikit-learn classifiers"
        ),
        "a transform of classes": (
            of_classifier(target_transform="log"),
            ValueError, "target_transform must be None, but it is 'log'",
        ),
    }
)  # fmt: skip
def test_options(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Data


def of_targets(change, make=regressor, data=data, **given):
    """Fits to changed targets, or data."""

    def call():
        X, y = data()
        made = change(X, y)
        make().fit(*(made if isinstance(made, tuple) else (X, made)), **given)

    return call


def of_classes(change, **given):
    return of_targets(change, classifier, class_data, **given)


@refusals(
    {
        "one value": (of_targets(lambda X, y: np.ones(60)), ValueError, "y is constant"),
        "one value, whatever the weights": (
            of_targets(
                lambda X, y: np.full(60, 0.1), sample_weight=np.random.default_rng(0).random(60)
            ),
            ValueError, "y is constant",
        ),
        "one value of an output": (
            of_targets(lambda X, y: np.column_stack([y, np.zeros(60)])), ValueError, "y is constant"
        ),
        "huge inputs": (
            of_targets(lambda X, y: (X * [1.0, 1e300], y)),
            ValueError, "column 1: the values are too large",
        ),
        "one row that counts": (
            of_targets(lambda X, y: y, whole, sample_weight=np.eye(60)[0]),
            ValueError, "positive for two rows",
        ),
        "one class": (
            of_classes(lambda X, y: np.zeros(90)),
            ValueError, "y has one class only, 0.0, where",
        ),
        "one class that counts": (
            of_classes(lambda X, y: y, sample_weight=(class_data()[1] == 0) * 1.0),
            ValueError, "y has one class only",
        ),
        "numbers for classes": (of_classes(lambda X, y: y + 0.5), ValueError, "Unknown label type"),
    }
)  # fmt: skip
def test_data(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Fitted models


DATES = np.arange(60).astype("datetime64[D]")


@pytest.fixture(scope="module")
def model():
    X, y = data()
    return regressor().fit(X, y), X, y


@pytest.fixture
def fitted(model):  # a copy, as a fit that fails leaves nothing fitted
    return copy.copy(model[0]), *model[1:]


@refusals(
    {
        "a value far off": (
            lambda model, X, y: model.predict(X * [1e200, 1.0]),
            ValueError, "column 0: a value is more than 1e15",
        ),
        "one quantile": (
            lambda model, X, y: model.predict_quantiles(X, 0.5),
            ValueError, "quantiles must be a list",
        ),
        "a quantile at 1": (
            lambda model, X, y: model.predict_quantiles(X, [0.5, 1.0]),
            ValueError, "strictly between 0 and 1",
        ),
        "more outputs than were learned": (
            lambda model, X, y: model.crps(X, np.stack([y, y], 1)),
            ValueError, r"y has shape \(\d+, 2\), but the model has targets of shape \[N\]",
        ),
        "targets that are dates": (
            lambda model, X, y: model.fit(X, DATES), ValueError, "y holds dates: make numbers",
        ),
        "targets that are durations": (
            lambda model, X, y: model.crps(X, DATES - DATES[0]),
            ValueError, "y holds durations: divide them by a unit",
        ),
        "inputs that are dates": (
            lambda model, X, y: model.fit(DATES[:, None], y),
            ValueError, "X holds dates: make numbers of them",
        ),
        "masked inputs": (
            lambda model, X, y: model.predict(np.ma.masked_where(X > 1, X)),
            ValueError, "X has masked entries, which are no values: leave their rows out",
        ),
        "masked targets": (
            lambda model, X, y: model.fit(X, np.ma.masked_where(y > 1, y)),
            ValueError, "y has masked entries",
        ),
        "masked weights": (
            lambda model, X, y: model.fit(X, y, np.ma.masked_where(y > 1, y**2)),
            ValueError, "sample_weight has masked entries",
        ),
        "no target among objects": (
            lambda model, X, y: model.crps(X, np.where(y > 1, None, y)),
            ValueError, "Input y contains NaN",
        ),
    }
)  # fmt: skip
def test_calls(fitted, call, error, words):
    with pytest.raises(error, match=words):
        call(*fitted)
