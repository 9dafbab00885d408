"""Targets that are classes: predictions, scores and reports."""

import argparse

import numpy as np
from numpy.typing import ArrayLike
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from pyro_dgp.sklearn import LatentDGPClassifier
from pyro_dgp.table.packages import pd
from pyro_dgp.table.scores import ScoreTable, mean_and_error, plain, with_error

__all__ = ["ESTIMATOR", "LOSS", "losses", "predictions", "report", "scores", "tables"]

ESTIMATOR = LatentDGPClassifier
LOSS = "log loss"

_OWN = "latent deep GP"
# Least probability in a log loss.
_LEAST = 1e-15


def report(
    model: LatentDGPClassifier,
    data: tuple[ArrayLike, np.ndarray, np.ndarray | None],
    held_out: tuple[ArrayLike, np.ndarray],
    names: list[str],
    seed: int = 0,
    progress: bool = False,
) -> dict:
    """Scores on held-out rows of a model, of class frequencies and of gradient boosting.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPClassifier`.
    :param data: X [N, D], classes [N], and weights, [N] or None, of the training rows.
    :param held_out: X and classes of rows that were not trained on.
    :param list names: Name of the target, the only entry.
    :param int seed: Seed of the boosting.
    :param bool progress: Ignored, as this is quick.
    :returns: Scores as of :func:`scores`, with two further methods: the class frequencies of the
        training rows, and scikit-learn's ``HistGradientBoostingClassifier``.
    """
    (X_train, y_train, weights), (X, y) = data, held_out
    found = scores(model, X, y, names)
    classes, index = np.unique(y_train, return_inverse=True)
    counts = np.bincount(index, weights)
    shares = np.tile(counts / counts.sum(), (len(y), 1))
    # Early stopping holds out rows of each class, and a class may have one only.
    early = bool(np.bincount(index).min() > 1) and "auto"
    boosting = HistGradientBoostingClassifier(
        random_state=seed,
        early_stopping=early,  # pyright: ignore[reportArgumentType]
    )
    boosting.fit(X_train, y_train, weights)
    found["targets"][names[0]] |= {
        "shares of classes": _described(y, classes, shares),
        "gradient boosting": _described(y, classes, boosting.predict_proba(X)),
    }
    return found


def scores(
    model: LatentDGPClassifier,
    X: ArrayLike,
    y: np.ndarray,
    names: list[str],
    progress: bool = False,
) -> dict:
    """Scores of a model on rows with classes.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPClassifier`.
    :param X: Inputs, [N, D].
    :param numpy.ndarray y: Classes that the model knows, [N].
    :param list names: Name of the target, the only entry.
    :param bool progress: Ignored.
    :returns: The number of ``rows``; by the name, of the ``targets`` the scores by methods:
        ``log_loss`` (smaller is better), ``brier`` (the squared distance of probabilities from
        indicators, 0 to 2; smaller is better), ``accuracy`` of the most probable class and their
        standard errors ``..._error``, and ``auc``, the area under the ROC curve, for several
        classes the mean over each class that occurs against the rest; None if there is one class
        only.
    """
    described = _described(y, model.classes_, model.predict_proba(X))
    return {"rows": len(y), "targets": {names[0]: {_OWN: described}}}


def tables(found: dict, of: str = "held-out rows") -> list[ScoreTable]:
    """Tables of the scores of :func:`report` or :func:`scores`.

    :param dict found: The scores.
    :param str of: Description of the rows.
    """
    ((name, methods),) = found["targets"].items()
    rows = [
        [
            method,
            *(with_error(s[k], s[f"{k}_error"]) for k in ("log_loss", "brier", "accuracy")),
            plain(s["auc"]),
        ]
        for method, s in methods.items()
    ]
    notes = [
        "log loss, Brier score: smaller is better. accuracy, AUC: larger is better. ±: a standard "
        "error."
    ]
    head = ["method", "log loss", "Brier score", "accuracy", "AUC"]
    return [ScoreTable(f"{name} on {found['rows']} {of}", head, rows, notes)]


def losses(model: LatentDGPClassifier, X: ArrayLike, y: np.ndarray) -> np.ndarray:
    """Log losses of rows, [N]."""
    return _log_loss(_indicators(y, model.classes_), model.predict_proba(X))


def predictions(
    model: LatentDGPClassifier,
    targets: list[str],
    X: pd.DataFrame,
    y: np.ndarray | None,
    args: argparse.Namespace,
) -> pd.DataFrame:
    """The most probable class and the probability of each; the log probability of known classes.

    :param LatentDGPClassifier model: A fitted model.
    :param list targets: Name of the target, the only entry.
    :param pandas.DataFrame X: Inputs, [N, D].
    :param y: Classes, missing where unknown, or None.
    :param args: Arguments of ``pyro-dgp predict``.
    """
    for name in ("quantiles", "level", "draws", "density"):
        if getattr(args, name):
            raise ValueError(f"--{name} is for targets that are numbers; these are classes.")
    probabilities = model.predict_proba(X)
    labels = [str(c) for c in model.classes_.tolist()]
    found = pd.DataFrame(
        probabilities, index=X.index, columns=[f"{targets[0]}_p_{name}" for name in labels]
    )
    likeliest = np.array(labels, dtype=object)[probabilities.argmax(1)]
    found.insert(0, f"{targets[0]}_class", likeliest)
    if y is not None and pd.notna(y).any():
        known = _indicators(y, model.classes_)
        with np.errstate(divide="ignore"):
            log_probability = np.log((known * probabilities).sum(1))
        found["log_probability"] = np.where(pd.notna(y), log_probability, np.nan)
    return found


def _indicators(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Indicators of classes, [N, C]; zeros for other values."""
    return (np.asarray(y, dtype=object)[:, None] == np.asarray(classes, dtype=object)).astype(float)


def _log_loss(known: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    return -np.log((known * probabilities).sum(1).clip(_LEAST))


def _described(y: np.ndarray, classes: np.ndarray, probabilities: np.ndarray) -> dict:
    known = _indicators(y, classes)
    per_row = {
        "log_loss": _log_loss(known, probabilities),
        "brier": np.square(known - probabilities).sum(1),
        "accuracy": known[np.arange(len(y)), probabilities.argmax(1)],
    }
    found = {}
    for name, values in per_row.items():
        found[name], found[f"{name}_error"] = mean_and_error(values)
    return found | {"auc": _auc(known, probabilities)}


def _auc(known: np.ndarray, probabilities: np.ndarray) -> float | None:
    there = known.any(0) & ~known.all(0)
    if not there.any():
        return None
    return float(roc_auc_score(known[:, there], probabilities[:, there], average="macro"))
