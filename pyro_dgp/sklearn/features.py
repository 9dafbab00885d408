r"""What another model says of a row, as inputs of the deep GP.

A training row's features must be those of a new row: nothing that has seen the row's own target may
make them. Trees that did not have it in their bag see to that at no cost (Breiman 1996); any other
regressor by cross-fitting, its predictions of a fold by a copy that has not seen the fold (Wolpert
1992, "Stacked generalization").
"""

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import KFold
from sklearn.utils.validation import has_fit_parameter

from pyro_dgp.forests import Forest

__all__ = [
    "NUM_TREES",
    "CrossFittedFeatures",
    "Features",
    "NoFeatures",
    "TreeFeatures",
    "features_of",
]

# Trees of a forest.
NUM_TREES = 200
# A tree grows from at most so many rows: what 200,000 rows teach, and 2 GiB hold.
_MOST_ROWS = 20_000
# The smallest deviation over trees that differs from none, in standard deviations of y.
_LEAST_DEVIATION = 0.01
_NUM_FOLDS = 5


class Features:
    """Functions of inputs, learned from training rows.

    ``fitted`` also gives the features of the training rows themselves, [N, F].
    """

    kind: str

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


class NoFeatures(Features):
    """None."""

    kind = "none"

    def transform(self, X: np.ndarray) -> np.ndarray:
        return np.empty((len(X), 0))

    @classmethod
    def from_state(cls, state: dict) -> "NoFeatures":
        return cls()


class TreeFeatures(Features):
    """Mean and log standard deviation over extra trees, for training rows over those out of bag.

    :param Forest forest: Of standardised targets [N, P].
    """

    kind = "trees"

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

    kind = "estimator"

    def __init__(self, estimators: list, num_columns: int) -> None:
        self.estimators, self.num_columns = estimators, num_columns

    @classmethod
    def fitted(
        cls, estimator, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple["CrossFittedFeatures", np.ndarray]:
        """
        :param estimator: Any regressor or classifier; it stays as it is.
        :param numpy.ndarray X: [N, D].
        :param numpy.ndarray y: [N, Q], standardised targets, or indicators of classes.
        :param weights: Positive, [N], or None. Estimators that take none are fitted without.
        """
        made, values = cls([], y.shape[1]), np.empty(y.shape)
        weighted = weights is not None and has_fit_parameter(estimator, "sample_weight")
        if is_classifier(estimator):
            y = y.argmax(1)
        elif y.shape[1] == 1:
            y = y[:, 0]
        folds = KFold(min(_NUM_FOLDS, len(X)), shuffle=True, random_state=seed % 2**32)
        for train, test in folds.split(X):
            options = {"sample_weight": weights[train]} if weighted else {}
            one = _seeded(estimator, seed)
            if is_classifier(estimator) and len(np.unique(y[train])) == 1:
                one = DummyClassifier()  # most others refuse a single class
            made.estimators.append(one.fit(X[train], y[train], **options))
            values[test] = made._predicted(made.estimators[-1], X[test])
        return made, values

    def transform(self, X: np.ndarray) -> np.ndarray:
        return np.mean([self._predicted(estimator, X) for estimator in self.estimators], 0)

    def _predicted(self, estimator, X: np.ndarray) -> np.ndarray:
        """[N, Q]."""
        if not is_classifier(estimator):
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


def _seeded(estimator, seed: int):
    """A copy whose random states, where they are None, are the seed."""
    copy = clone(estimator)
    states = {
        name: seed
        for name, value in copy.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    return copy.set_params(**states)


def features_of(
    source, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
) -> tuple[Features, np.ndarray]:
    """Features for training rows and the function for new ones.

    :param source: None, "trees", a regressor or a classifier.
    :param numpy.ndarray X: [N, D].
    :param numpy.ndarray y: [N, Q], standardised targets, or indicators of classes.
    """
    if source is None:
        return NoFeatures(), np.empty((len(X), 0))
    if isinstance(source, str):
        return TreeFeatures.fitted(X, y, weights, seed)
    return CrossFittedFeatures.fitted(source, X, y, weights, seed)
