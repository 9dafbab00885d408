r"""What another model says of a row, as inputs of the deep GP.

A training row's features must be those of a new row: nothing that has seen the row's own target may
make them. Trees that did not have it in their bag see to that at no cost (Breiman 1996); any other
regressor by cross-fitting, its predictions of a fold by a copy that has not seen the fold (Wolpert
1992, "Stacked generalization").
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold
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

# Trees of a forest.
NUM_TREES = 200
# A tree or a boosted model learns from at most so many rows: what 200,000 rows teach, and 2 GiB
# hold.
_MOST_ROWS = 20_000
# The smallest deviation over trees that differs from none, in standard deviations of y.
_LEAST_DEVIATION = 0.01
_NUM_FOLDS = 5
# Of boosting: no more rounds pay on tables of up to 15,000 rows, and shrinkage, few inputs a node
# and a penalty are what few rows need.
_BOOSTING = {
    "max_iter": 1000, "learning_rate": 0.1, "n_iter_no_change": 40, "min_samples_leaf": 10,
    "max_features": 0.5, "l2_regularization": 1.0,
}  # fmt: skip


class Estimator(Protocol):
    """A scikit-learn regressor or classifier, whose base class does not declare what they do."""

    @property
    def fit(self) -> Callable[..., Any]:
        """Of inputs, targets and, for most, ``sample_weight``."""
        ...

    def predict(self, X: np.ndarray) -> Any:
        """Of new rows."""
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
    """Functions of inputs, learned from training rows.

    ``fitted`` also gives the features of the training rows themselves, [N, F].
    """

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Of new rows, [N, D] -> [N, F]."""
        raise NotImplementedError

    def samples(self, X: np.ndarray) -> np.ndarray | None:
        """A sample of each row's targets, [S, N, P], if there is one."""
        return None

    def mean(self, X: np.ndarray) -> np.ndarray | None:
        """Their mean, [N, P]."""
        return None

    def state(self) -> dict:
        """Tensors and plain data, for a file."""
        return {}


class TreeFeatures(Features):
    """Mean and log standard deviation over extra trees, for training rows over those out of bag.

    :param Forest forest: Of standardised targets [N, P].
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest

    @classmethod
    def fitted(
        cls, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple["TreeFeatures", np.ndarray]:
        """
        :param numpy.ndarray X: [N, D].
        :param numpy.ndarray y: [N, P], standardised.
        :param weights: Positive, [N], or None.
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
    """Predictions of copies of any scikit-learn estimator, for a training row by the one of the
    five that has not seen it, for a new row their mean.

    Of a classifier they are probabilities.

    :param list estimators: Fitted.
    :param int num_columns: Q.
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
        :param estimator: Any regressor or classifier; it stays as it is.
        :param numpy.ndarray X: [N, D].
        :param numpy.ndarray y: [N, Q], standardised targets, or indicators of classes.
        :param weights: Positive, [N], or None. Estimators that take none are fitted without.
        :param int max_samples: Most rows that a copy is fitted to; None for all.
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
        # Rows of a fold may lack a class.
        found = np.zeros((len(X), self.num_columns))
        found[:, estimator.classes_] = estimator.predict_proba(X)
        return found

    def state(self) -> dict:
        raise ValueError(
            f"A model with features={type(self.estimators[0]).__name__}(...) cannot be saved to a "
            "file that runs no code. Use features='trees' or None, or pickle the model."
        )


def _seeded(estimator: Estimator, seed: int) -> Estimator:
    """A copy whose random states, where they are None, are the seed."""
    copy: Estimator = clone(estimator)  # pyright: ignore[reportAssignmentType]
    states = {
        name: seed
        for name, value in copy.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    return copy.set_params(**states)


class BoostingFeatures(Features):
    """Cross-fitted predictions of gradient-boosted trees.

    A boosted model stops where a tenth of the rows that it sees is predicted no better.

    Sources: Friedman (2001) for boosting; Ke et al. (2017), LightGBM, for trees of histograms.

    :param list forests: For each target, the mean of the copies that have each not seen a fold.
    """

    def __init__(self, forests: list[Forest]) -> None:
        self.forests = forests

    @classmethod
    def fitted(
        cls, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple["BoostingFeatures", np.ndarray]:
        """
        :param numpy.ndarray X: [N, D].
        :param numpy.ndarray y: [N, P], standardised.
        :param weights: Positive, [N], or None.
        """
        model = HistGradientBoostingRegressor(
            # Rows that a fold leaves are held out in their turn.
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
    """Those of several sources side by side; of none, no features.

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


# What has a name.
SOURCES = {"trees": TreeFeatures, "boosting": BoostingFeatures}


def features_of(
    sources: Sequence[str | Estimator],
    X: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None,
    seed: int,
) -> tuple[JointFeatures, np.ndarray]:
    """Features for training rows and the function for new ones.

    :param sources: Names of :data:`SOURCES`, regressors or classifiers.
    :param numpy.ndarray X: [N, D].
    :param numpy.ndarray y: [N, Q], standardised targets, or indicators of classes.
    """
    parts, values = {}, []
    for i, source in enumerate(sources):
        if isinstance(source, str):
            parts[source], found = SOURCES[source].fitted(X, y, weights, seed)
        else:
            parts[f"estimator {i}"], found = CrossFittedFeatures.fitted(source, X, y, weights, seed)
        values.append(found)
    return JointFeatures(parts), _side_by_side(X, values)


def _side_by_side(X: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty((len(X), 0)), *parts], 1)
