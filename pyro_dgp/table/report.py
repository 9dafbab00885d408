"""How good predictive densities are on rows that training did not see, beside simpler ones."""

import math

import numpy as np
import torch

from pyro_dgp.experiments.metrics import coverage
from pyro_dgp.gp import PredictiveMixture

try:
    from sklearn.ensemble import HistGradientBoostingRegressor
except ImportError as error:
    raise ImportError("A report needs scikit-learn: pip install 'pyro_dgp[table]'.") from error

__all__ = ["model_scores", "report"]

# The middles of 20 equal parts of (0, 1): the mean of pinball losses there is half a CRPS.
_PROBABILITIES = (np.arange(20) + 0.5) / 20


def report(model, X_train, y_train, X_test, y_test, seed: int = 0) -> dict[str, dict]:
    """Scores on test rows, of a model, a normal distribution and quantile gradient boosting.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X_train: [N, D], the rows it was fitted to.
    :param y_train: [N].
    :param X_test: [N_test, D].
    :param y_test: [N_test].
    :param int seed: Of the boosting.
    :returns: For each of the three ``log_likelihood`` (mean, per unit of y; not for quantiles),
        ``crps`` (mean, in units of y), ``rmse`` and ``coverage`` of central intervals by their
        probability. Probabilities of a rounded target count as densities, spread evenly over the
        step of its lattice. The normal distribution has the mean and deviation of ``y_train`` for
        all rows. The boosting is scikit-learn's ``HistGradientBoostingRegressor``, one for each of
        20 quantiles and one for the mean; its CRPS is that of the 20 quantiles.
    """
    return {
        "latent deep GP": model_scores(model, X_test, y_test),
        "normal distribution": _normal_scores(y_train, y_test),
        "quantile boosting": _boosting_scores(X_train, y_train, X_test, y_test, seed),
    }


def model_scores(model, X, y) -> dict:
    """Scores of a fitted model on rows with targets, and standard errors of their means.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X: [N, D].
    :param y: [N].
    :returns: ``log_likelihood``, ``crps`` and ``coverage`` as in :func:`report`, ``rmse``, and
        ``log_likelihood_error`` and ``crps_error``.
    """
    target, found, start = torch.as_tensor(np.array(y, dtype=np.float64)), [], 0
    for p in model.predictives(X):
        t = target[start : start + len(p.mean)]
        log_density = p.log_prob(t) - (math.log(p.lattice[1]) if p.lattice else 0.0)
        found.append(torch.stack([log_density, p.crps(t), (p.mean - t).square(), p.cdf(t)]))
        start += len(t)
    values = torch.cat(found, 1)
    log_likelihood, crps, square, _ = values.mean(1).tolist()
    errors = (values.std(1) / len(target) ** 0.5).tolist()
    return {
        "log_likelihood": log_likelihood,
        "log_likelihood_error": errors[0],
        "crps": crps,
        "crps_error": errors[1],
        "rmse": math.sqrt(square),
        "coverage": coverage(values[3]),
    }


def _normal_scores(y_train, y) -> dict:
    loc, scale = (
        torch.full((1, len(y)), v, dtype=torch.float64) for v in (y_train.mean(), y_train.std())
    )
    normal = PredictiveMixture(torch.distributions.Normal(loc, scale))
    target = torch.as_tensor(y)
    return {
        "log_likelihood": normal.log_prob(target).mean().item(),
        "crps": normal.crps(target).mean().item(),
        "rmse": _rmse(y_train.mean(), y),
        "coverage": coverage(normal.cdf(target)),
    }


def _boosting_scores(X_train, y_train, X, y, seed: int) -> dict:
    def predict(**loss):
        boosting = HistGradientBoostingRegressor(random_state=seed, early_stopping=True, **loss)
        return boosting.fit(X_train, y_train).predict(X)

    quantiles = np.sort([predict(loss="quantile", quantile=p) for p in _PROBABILITIES], axis=0)
    error = y - quantiles
    p = _PROBABILITIES[:, None]
    pit = [np.interp(t, q, _PROBABILITIES, 0.0, 1.0) for t, q in zip(y, quantiles.T, strict=True)]
    return {
        "log_likelihood": None,
        "crps": float(2 * np.maximum(p * error, (p - 1) * error).mean()),
        "rmse": _rmse(predict(), y),
        "coverage": coverage(torch.tensor(pit)),
    }


def _rmse(predicted, y) -> float:
    return float(np.sqrt(np.mean(np.square(predicted - y))))
