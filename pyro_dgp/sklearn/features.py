r"""Predictions of other models as inputs of the deep GP.

Features of a training row must be distributed like those of a new row, so they must not depend on
the row's own target. Trees give such predictions at no cost, out of bag (Breiman 1996); any other
regressor by cross-fitting, where each fold is predicted by a copy that was not fitted to it
(Wolpert 1992, "Stacked generalization").
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

from pyro_dgp.forests import Forest, rounded_inputs

__all__ = [
    "NUM_TREES",
    "SOURCES",
    "BoostingFeatures",
    "CrossFittedFeatures",
    "Estimator",
    "Features",
    "JointFeatures",
    "TreeFeatures",
    "features_of",
]

# Number of trees of a forest.
NUM_TREES = 200
# Most rows per tree or boosted model: enough for tables of 200,000 rows, within 2 GiB.
_MOST_ROWS = 20_000
# Added to deviations over trees before their logarithm, in standard deviations of y.
_LEAST_DEVIATION = 0.01
_NUM_FOLDS = 5
# Options of boosting: more rounds do not pay on tables of up to 15,000 rows; shrinkage, few inputs
# per node and a penalty suit tables of few rows.
_BOOSTING = {
    "max_iter": 1000, "learning_rate": 0.1, "n_iter_no_change": 40, "min_samples_leaf": 10,
    "max_features": 0.5, "l2_regularization": 1.0,
}  # fmt: skip


class Estimator(Protocol):
    """A scikit-learn regressor or classifier; the base class there declares no such methods."""

    @property
    def fit(self) -> Callable[..., Any]:
        """Fits inputs and targets; most estimators also take ``sample_weight``."""
        ...

    def predict(self, X: np.ndarray) -> Any:
        """Predictions of new rows."""
        ...

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name."""
        ...

    @property
    def set_params(self) -> Callable[..., Any]:
        """Sets parameters by name."""
        ...


class _Classifier(Estimator, Protocol):
    classes_: np.ndarray

    def predict_proba(self, X: np.ndarray) -> np.ndarray: ...


def _is_classifier(estimator: Estimator) -> TypeGuard[_Classifier]:
    return is_classifier(estimator)


class Features:
    """Functions of inputs, fitted to training rows.

    ``fitted`` also returns the features of the training rows themselves, [N, F].
    """

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Features of new rows, [N, D] -> [N, F]."""
        raise NotImplementedError

    def samples(self, X: np.ndarray) -> np.ndarray | None:
        """Samples of each row's targets, [S, N, P]; None if there are none."""
        return None

    def mean(self, X: np.ndarray) -> np.ndarray | None:
        """Means of the samples, [N, P]; None if there are none."""
        return None

    def state(self) -> dict:
        """Tensors and plain data, for a file."""
        return {}


class TreeFeatures(Features):
    """Mean and log standard deviation over extra trees; out of bag for training rows.

    :param Forest forest: A forest fitted to standardised targets, [N, P].
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest

    @classmethod
    def fitted(
        cls, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple["TreeFeatures", np.ndarray]:
        """
        :param numpy.ndarray X: Inputs, [N, D].
        :param numpy.ndarray y: Standardised targets, [N, P].
        :param weights: Weights of the rows, positive, [N], or None.
        :param int seed: Seed of the trees.
        """
        forest, moments = Forest.fitted(
            X, y, num_trees=NUM_TREES, max_samples=_MOST_ROWS if len(X) > _MOST_ROWS else None,
            sample_weight=weights, seed=seed,
        )  # fmt: skip
        return cls(forest), cls._columns(*moments)

    def transform(self, X: np.ndarray) -> np.ndarray:
        return self._columns(*self.forest.moments(X))

    def samples(self, X: np.ndarray) -> np.ndarray:
        return self.forest.predictions(X)

    def mean(self, X: np.ndarray) -> np.ndarray:
        return self.forest.moments(X)[0]

    def state(self) -> dict:
        return self.forest.state()

    @classmethod
    def from_state(cls, state: dict) -> "TreeFeatures":
        return cls(Forest.from_state(state))

    @staticmethod
    def _columns(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        return np.concatenate([mean, np.log(deviation + _LEAST_DEVIATION)], 1)


class CrossFittedFeatures(Features):
    """Cross-fitted predictions of five copies of a scikit-learn estimator.

    A training row is predicted by the copy that was not fitted to it, a new row by the mean of all
    copies. Classifiers predict probabilities.

    :param list estimators: The fitted copies.
    :param int num_columns: Number Q of columns of the predictions.
    """

    def __init__(self, estimators: list[Estimator], num_columns: int) -> None:
        self.estimators, self.num_columns = estimators, num_columns

    @classmethod
    def fitted(
        cls,
        estimator: Estimator,
        X: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray | None,
        seed: int,
        *,
        max_samples: int | None = None,
    ) -> tuple["CrossFittedFeatures", np.ndarray]:
        """
        :param estimator: Any regressor or classifier; it is not changed.
        :param numpy.ndarray X: Inputs, [N, D].
        :param numpy.ndarray y: Standardised targets, or indicators of classes, [N, Q].
        :param weights: Weights of the rows, positive, [N], or None; ignored by estimators without
            ``sample_weight``.
        :param int seed: Seed of the folds and of the estimators.
        :param int max_samples: Largest number of rows per copy; None for all.
        """
        made, values = cls([], y.shape[1]), np.empty(y.shape)
        if not has_fit_parameter(estimator, "sample_weight"):
            weights = None
        if is_classifier(estimator):
            y = y.argmax(1)
        elif y.shape[1] == 1:
            y = y[:, 0]
        folds = KFold(min(_NUM_FOLDS, len(X)), shuffle=True, random_state=seed % 2**32)
        rng = np.random.default_rng(seed)
        for train, test in folds.split(X):
            if max_samples is not None and len(train) > max_samples:
                train = np.sort(rng.choice(train, max_samples, replace=False))
            options = {} if weights is None else {"sample_weight": weights[train]}
            one = _seeded(estimator, seed)
            if is_classifier(estimator) and len(np.unique(y[train])) == 1:
                one = DummyClassifier()  # most others refuse a single class
            made.estimators.append(one.fit(X[train], y[train], **options))
            values[test] = made._predicted(made.estimators[-1], X[test])
        return made, values

    def transform(self, X: np.ndarray) -> np.ndarray:
        return np.mean([self._predicted(estimator, X) for estimator in self.estimators], 0)

    def _predicted(self, estimator: Estimator, X: np.ndarray) -> np.ndarray:
        """[N, Q]."""
        if not _is_classifier(estimator):
            return np.asarray(estimator.predict(X), dtype=np.float64).reshape(len(X), -1)
        # The training rows of a fold may lack a class.
        found = np.zeros((len(X), self.num_columns))
        found[:, estimator.classes_] = estimator.predict_proba(X)
        return found

    def state(self) -> dict:
        raise ValueError(
            "A model whose features are of an estimator cannot be saved to a file that runs no "
            "code. Use features='trees' or None, or pickle the model."
        )


def _seeded(estimator: Estimator, seed: int) -> Estimator:
    """A copy in which random states that are None are replaced by the seed."""
    copy: Estimator = clone(estimator)  # pyright: ignore[reportAssignmentType]
    states = {
        name: seed
        for name, value in copy.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    return copy.set_params(**states)


class BoostingFeatures(Features):
    """Cross-fitted predictions of gradient-boosted trees.

    A boosted model stops when the predictions of a held-out tenth of its rows stop improving.

    Sources: Friedman (2001) for boosting; Ke et al. (2017), LightGBM, for trees of histograms.

    :param list forests: The mean of the cross-fitted copies, one forest per target.
    """

    def __init__(self, forests: list[Forest]) -> None:
        self.forests = forests

    @classmethod
    def fitted(
        cls, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple["BoostingFeatures", np.ndarray]:
        """
        :param numpy.ndarray X: Inputs, [N, D].
        :param numpy.ndarray y: Standardised targets, [N, P].
        :param weights: Weights of the rows, positive, [N], or None.
        :param int seed: Seed of the trees.
        """
        model = HistGradientBoostingRegressor(
            # A share of the training rows of a fold is held out for this.
            early_stopping=len(X) > 2,  # pyright: ignore[reportArgumentType]
            **_BOOSTING,
        )
        X, forests, values = rounded_inputs(X), [], []
        for column in y.T:
            found, value = CrossFittedFeatures.fitted(
                model, X, column[:, None], weights, seed, max_samples=_MOST_ROWS
            )
            forests.append(Forest.of_boosting(found.estimators))
            values.append(value)
        return cls(forests), np.concatenate(values, 1)

    def transform(self, X: np.ndarray) -> np.ndarray:
        return np.concatenate([forest.moments(X)[0] for forest in self.forests], 1)

    def state(self) -> dict:
        return {str(p): forest.state() for p, forest in enumerate(self.forests)}

    @classmethod
    def from_state(cls, state: dict) -> "BoostingFeatures":
        return cls([Forest.from_state(state[str(p)]) for p in range(len(state))])


class JointFeatures(Features):
    """Features of several sources, concatenated; without sources there are none.

    :param dict parts: Features by the name of their source.
    """

    def __init__(self, parts: dict[str, Features]) -> None:
        self.parts = parts

    def transform(self, X: np.ndarray) -> np.ndarray:
        return _side_by_side(X, [part.transform(X) for part in self.parts.values()])

    def samples(self, X: np.ndarray) -> np.ndarray | None:
        return self.parts["trees"].samples(X) if "trees" in self.parts else None

    def mean(self, X: np.ndarray) -> np.ndarray | None:
        return self.parts["trees"].mean(X) if "trees" in self.parts else None

    def state(self) -> dict:
        return {name: part.state() for name, part in self.parts.items()}

    @classmethod
    def from_state(cls, state: dict) -> "JointFeatures":
        if unknown := state.keys() - SOURCES.keys():
            raise ValueError(f"The model has features from {sorted(unknown)}, which are unknown.")
        return cls({name: SOURCES[name].from_state(part) for name, part in state.items()})


# Sources of features by name.
SOURCES = {"trees": TreeFeatures, "boosting": BoostingFeatures}


def features_of(
    sources: Sequence[str | Estimator],
    X: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None,
    seed: int,
) -> tuple[JointFeatures, np.ndarray]:
    """Fitted features, and their values for the training rows.

    :param sources: Names of :data:`SOURCES`, regressors or classifiers. Regressors of a single
        target are fitted to each.
    :param numpy.ndarray X: Inputs, [N, D].
    :param numpy.ndarray y: Standardised targets, or indicators of classes, [N, Q].
    :param weights: Weights of the rows, positive, [N], or None.
    :param int seed: Seed of all sources.
    """
    parts, values = {}, []
    for i, source in enumerate(sources):
        if isinstance(source, str):
            parts[source], found = SOURCES[source].fitted(X, y, weights, seed)
            values.append(found)
            continue
        for p, targets in enumerate(_at_once(source, y)):
            part, found = CrossFittedFeatures.fitted(source, X, targets, weights, seed)
            parts[f"estimator {i}.{p}"] = part
            values.append(found)
    return JointFeatures(parts), _side_by_side(X, values)


def _at_once(estimator: Estimator, y: np.ndarray) -> list[np.ndarray]:
    """The targets that an estimator is fitted to together: one, if it does not say that it can."""
    if is_classifier(estimator) or get_tags(estimator).target_tags.multi_output:
        return [y]
    return np.split(y, y.shape[1], 1)


def _side_by_side(X: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty((len(X), 0)), *parts], 1)
