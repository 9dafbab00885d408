"""Estimators that are fitted at once, and data for them."""

import numpy as np

from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor, features

QUICK = {
    "num_layers": 1, "num_inducing": 8, "K": 2, "num_steps": 9, "lr": 0.3, "batch_size": 32,
    "num_samples": 40, "dtype": "float64", "random_state": 0, "likelihood": "gaussian",
    "features": None, "pool": False, "validation_fraction": 0.1,
}  # fmt: skip
# All that stands beside the deep GP.
WHOLE = QUICK | {"likelihood": "auto", "features": "trees", "pool": True}
# Enough where nothing needs to be learned.
SMALL = {"K": 1, "num_steps": 2, "num_inducing": 4, "num_samples": 10}


def use_few_trees(patch):
    """Ten trees, ten rounds of boosting, two folds, 20 samples to stop and to choose a pool by
    and 64 draws to fit a prior to.

    :param pytest.MonkeyPatch patch: Undoes it.
    """
    patch.setattr("pyro_dgp.sklearn.members._SCORE_SAMPLES", 20)
    patch.setattr("pyro_dgp.sklearn.schedule._NUM_SAMPLES", 20)
    patch.setattr("pyro_dgp.sklearn.schedule._NUM_FOLDS", 2)
    patch.setattr(features, "_NUM_FOLDS", 2)
    patch.setattr(features, "NUM_TREES", 10)
    patch.setattr("pyro_dgp.gp.latent_prior._NUM_DRAWS", 64)
    patch.setitem(features._BOOSTING, "max_iter", 10)


def regressor(**options):
    return LatentDGPRegressor(**QUICK | options)


def whole(**options):
    return LatentDGPRegressor(**WHOLE | options)


def classifier(**options):
    return LatentDGPClassifier(**WHOLE | options)


def data(num_rows=60, num_outputs=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 2))
    shape = (num_rows,) if num_outputs is None else (num_rows, num_outputs)
    y = np.sin(X[:, 0]).reshape(-1, *[1] * (len(shape) - 1)) + 0.3 * rng.normal(size=shape)
    return X, y


def class_data(num_rows=90, num_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 2))
    score = X[:, :1] * np.arange(num_classes) + rng.gumbel(size=(num_rows, num_classes))
    return X, score.argmax(1)


def weights_of_three():
    """All weights of three models, on a grid, [number of them, 3]."""
    ends = [(a, b) for a in np.linspace(0, 1, 51) for b in np.linspace(0, 1 - a, 51)]
    return np.array([(a, b, 1 - a - b) for a, b in ends])


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('code of the file was run')",)
