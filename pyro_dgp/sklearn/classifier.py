"""The latent-variable deep GP as a scikit-learn classifier."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.gp.likelihoods import LIKELIHOODS, Bernoulli, Likelihood
from pyro_dgp.sklearn.base import LatentDGPEstimator, counting
from pyro_dgp.sklearn.classes import ClassPool, indicators, probabilities
from pyro_dgp.sklearn.members import Fold
from pyro_dgp.sklearn.pool import HeldOut
from pyro_dgp.sklearn.scaling import transformed

__all__ = ["LatentDGPClassifier"]

# Most numbers in the arrays of one prediction: 2^22 doubles are 32 MiB.
_CHUNK = 2**22


class LatentDGPClassifier(ClassifierMixin, LatentDGPEstimator):
    """Classification with calibrated probabilities.

    A :class:`~pyro_dgp.gp.LatentDGP` with a likelihood of classes, whose inputs also include
    out-of-bag predictions of trees; its probabilities are pooled with those of a forest and with
    the class frequencies, with weights chosen on held-out rows.

    >>> model = LatentDGPClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X_new)  # a column for each of model.classes_

    Sources: Rudner et al. (2021) for the model; :mod:`~pyro_dgp.sklearn.features` and
    :mod:`~pyro_dgp.sklearn.classes` for features and pool.

    Parameters are those of :class:`~pyro_dgp.sklearn.LatentDGPRegressor`, but for:

    :param str likelihood: "bernoulli" for two classes, "categorical", or "ordinal" for classes
        whose order is that of ``classes_``, i.e. of numbers or of the alphabet. "auto" means
        "bernoulli" for two classes and "categorical" otherwise.
    :param features: Further inputs: "trees" for mean and log standard deviation over 200 extra
        trees of the probability of each class; "boosting" for the probabilities of gradient
        boosting; a scikit-learn classifier, for its cross-fitted probabilities; several in a tuple;
        None for none. "auto" means "trees".
    :param bool pool: Whether to pool probabilities as above. The weights, and an exponent of the
        pooled probabilities, maximise the likelihood of held-out classes.
    :param float validation_fraction: Share of the rows held out, as there; their score is the log
        loss.

    After ``fit``, ``classes_`` are the classes, sorted, and ``validation_log_loss_`` the scores
    on held-out rows; the other attributes are the regressor's.
    """

    classes_: np.ndarray
    _pool: ClassPool
    _likelihoods = ("auto", "bernoulli", "categorical", "ordinal")
    _pool_class = ClassPool
    _base = "classifier"
    _auto_features = ("trees",)

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "LatentDGPClassifier":
        """
        :param X: Inputs, [N, D]: an array or a data frame of numbers.
        :param y: Classes, [N]: numbers or strings.
        :param sample_weight: Relative weights of the rows, [N]: rows are drawn in proportion to
            them in training, and those of weight 0 never.
        :raises ValueError: If the inputs contain NaN or infinity, there is one class only, more
            than two for "bernoulli", or a parameter is out of range.
        :raises NonFiniteError: If training diverged.
        :raises CholeskyError: If it diverged so that a kernel matrix has no factor.
        """
        start = time.monotonic()
        self._check_parameters()
        inputs, targets = self._check_pair(X, y, ensure_min_samples=2)
        check_classification_targets(targets)
        inputs, targets, weights = counting(inputs, targets, sample_weight)
        self.classes_, index = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]}, where weights are positive: there "
                "is nothing to tell apart."
            )
        if self._name() == "bernoulli" and len(self.classes_) > 2:
            raise ValueError(
                f"likelihood='bernoulli' is for two classes, but y has {len(self.classes_)}: use "
                "'categorical' or 'ordinal'."
            )
        self._fit(inputs, index, weights, start)
        return self

    @property
    def validation_log_loss_(self) -> np.ndarray:
        """Mean log loss of the first member on held-out rows."""
        return np.array(self.members_[0].scores)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of classes.

        :param X: Inputs, [N, D].
        :returns: [N, C], in the order of ``classes_``.
        """
        return np.concatenate(list(self._predictions(self._check_inputs(X))))

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`.

        :param X: Inputs, [N, D].
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable classes, [N].

        :param X: Inputs, [N, D].
        """
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def _predictions(self, X: np.ndarray) -> Iterator[np.ndarray]:
        """Probabilities, in chunks of rows."""
        rows = max(1, _CHUNK // (self.num_samples * len(self.classes_)))
        for start in range(0, len(X), rows):
            part = transformed("X", self._x_scaler, X[start : start + rows])
            shares = (
                count / self.num_samples * probabilities(member.predict(part, count, generator))
                for member, count, generator in self._drawing(self.num_samples)
            )
            trees = None
            if self._pool.weights.get("trees"):
                trees = self.members_[0].features.mean(part)
            yield self._pool.pooled(sum(shares, np.zeros(())), trees)

    def _check_parameters(self) -> None:
        if not isinstance(self.likelihood, str):
            raise ValueError(
                f"likelihood must be one of {', '.join(self._likelihoods)}, but it is "
                f"{self.likelihood!r}."
            )
        super()._check_parameters()

    def _name(self) -> str:
        if isinstance(self.likelihood, str) and self.likelihood != "auto":
            return self.likelihood
        return "bernoulli" if len(self.classes_) == 2 else "categorical"

    def _start_likelihood(self, y: np.ndarray, train: np.ndarray) -> Likelihood:
        # Of all rows, as training rows may lack a class.
        return LIKELIHOODS[self._name()].for_targets(torch.as_tensor(y))

    def _can_pool(self, likelihood: Likelihood) -> bool:
        return True

    def _pool_of(self, parts: list[HeldOut], data: Fold) -> ClassPool:
        return ClassPool.fitted(parts, data, len(self.classes_)) if parts else ClassPool()

    @staticmethod
    def _columns(y: np.ndarray, likelihood: Likelihood) -> np.ndarray:
        return indicators(y, 2 if isinstance(likelihood, Bernoulli) else likelihood.num_classes)

    @staticmethod
    def _score(p: PredictiveMixture, y: Tensor) -> Tensor:
        """Log loss."""
        return -p.log_prob(y)

    def _target_state(self) -> dict:
        _check_kind(self.classes_.dtype)
        return {"classes": self.classes_.tolist(), "kind": self.classes_.dtype.str}

    def _load_targets(self, state: dict) -> None:
        kind = np.dtype(state["kind"])
        _check_kind(kind)
        self.classes_ = np.array(state["classes"], dtype=kind)


def _check_kind(dtype: np.dtype) -> None:
    """
    :raises ValueError: If a file cannot have classes of this dtype.
    """
    if dtype.kind not in "biufUO":
        raise ValueError(
            f"Classes of dtype {dtype} are no numbers or strings, and cannot be saved: convert "
            "them before fitting, with y.astype(str) for instance."
        )
