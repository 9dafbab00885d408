"""Targets that are numbers: predictions, scores and reports."""

import argparse
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.ensemble import HistGradientBoostingRegressor
from tqdm.auto import tqdm

from pyro_dgp.experiments.metrics import coverage, pit_bounds
from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.sklearn import LatentDGPRegressor
from pyro_dgp.sklearn.members import isolated
from pyro_dgp.sklearn.regressor import Predictive
from pyro_dgp.table.packages import pd
from pyro_dgp.table.scores import ScoreTable, mean_and_error, plain, with_error

__all__ = [
    "ESTIMATOR", "LOSS", "beside", "log_density", "losses", "marginals", "predictions", "report",
    "scores", "tables",
]  # fmt: skip

ESTIMATOR = LatentDGPRegressor
LOSS = "CRPS"

# Midpoints of 20 equal parts of (0, 1), where the mean pinball loss is half the CRPS.
_PROBABILITIES = (np.arange(20) + 0.5) / 20
_OWN = "latent deep GP"
# Values per row, [N] each.
_Rows = tuple[np.ndarray, ...]


def report(
    model: LatentDGPRegressor,
    data: tuple[ArrayLike, np.ndarray, np.ndarray | None],
    held_out: tuple[ArrayLike, np.ndarray],
    names: list[str],
    seed: int = 0,
    progress: bool = False,
) -> dict:
    """Scores on held-out rows of a model, a normal distribution and quantile gradient boosting.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor`.
    :param data: X [N, D], y, [N] or [N, P], and weights, [N] or None, of the training rows.
    :param held_out: X and y of rows that were not trained on.
    :param list names: Names of the P targets.
    :param int seed: Seed of the boosting.
    :param bool progress: Whether to show a progress bar.
    :returns: Scores as of :func:`scores`, with two further methods. The normal distribution has the
        mean and the standard deviation of the training targets for all rows. The boosting is
        scikit-learn's ``HistGradientBoostingRegressor``, one for each of 20 quantiles and one for
        the mean; its CRPS is that of the 20 quantiles.
    """
    (X_train, y_train, weights), (X, y) = data, held_out
    found = scores(model, X, y, names, progress)
    total = (len(_PROBABILITIES) + 1) * len(names)
    with tqdm(total=total, desc="boosting", disable=None if progress else True) as bar:
        for i, name in enumerate(names):
            own, target = (t.reshape(len(t), -1)[:, i] for t in (y_train, y))
            train = X_train, own, weights
            found["targets"][name] |= {
                "normal distribution": _normal_scores(own, weights, target),
                "quantile boosting": _boosting_scores(train, X, target, seed, bar),
            }
    return found


def scores(
    model: LatentDGPRegressor,
    X: ArrayLike,
    y: np.ndarray,
    names: list[str],
    progress: bool = False,
) -> dict:
    """Scores of a model on rows with targets.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor`.
    :param X: Inputs, [N, D].
    :param numpy.ndarray y: Targets, [N] or [N, P].
    :param list names: Names of the P targets.
    :param bool progress: Whether to show a progress bar.
    :returns: The number of ``rows``; by names, the ``targets``' scores by methods:
        ``log_likelihood`` (mean log density per unit of y; larger is better), ``crps`` (mean, in
        units of y; smaller is better) and their standard errors ``..._error``, ``rmse`` (in units
        of y), and ``coverage`` of central intervals by their probability. For several targets the
        ``joint`` log-likelihood, too; see :func:`log_density`.
    """
    target = np.asarray(y, dtype=float).reshape(len(y), -1)
    found: list[list[_Rows]] = [[] for _ in names]
    joint = []
    with _row_bar(len(target), "scores", progress) as bar:
        for p, part in beside(model.predictives(X), target):
            for i, one in enumerate(marginals(p)):
                found[i].append(_per_row(one, part[:, i]))
            if len(names) > 1:
                joint.append(log_density(p, part).numpy())
            bar.update(len(part))
    values = [[np.concatenate(v) for v in zip(*parts, strict=True)] for parts in found]
    described = {
        name: {_OWN: _described(t, *v)} for name, t, v in zip(names, target.T, values, strict=True)
    }
    result = {"rows": len(target), "targets": described}
    if joint:
        mean, error = mean_and_error(np.concatenate(joint))
        result["joint"] = {"log_likelihood": mean, "log_likelihood_error": error}
    return result


def beside(
    predictives: Iterable[Predictive], y: np.ndarray
) -> Iterator[tuple[Predictive, torch.Tensor]]:
    """Predictive distributions of chunks of rows, and the targets of these."""
    rest = torch.as_tensor(np.array(y))  # a copy: it may be read-only
    for p in predictives:
        part, rest = rest.tensor_split([p.batch_shape[0]])
        yield p, part


def marginals(p: Predictive) -> list[Predictive]:
    """The distribution of each target, from one of one or several targets."""
    return [p.marginal(i) for i in range(p.event_shape[-1])] if p.event_shape else [p]


def log_density(p: Predictive, y: torch.Tensor) -> torch.Tensor:
    """Log density per unit of y, joint if there are several targets.

    Probabilities of a target on a lattice, such as counts and grades, are converted to densities
    that are constant over the step of the lattice, so that all models are compared on one scale.

    :param p: A predictive distribution.
    :param torch.Tensor y: Targets, [..., N] or [..., N, P].
    """
    steps = [one.lattice[1] for one in marginals(p) if one.lattice is not None]
    return p.log_prob(y) - sum(map(math.log, steps))


def tables(found: dict, of: str = "held-out rows") -> list[ScoreTable]:
    """Tables of the scores of :func:`report` or :func:`scores`.

    :param dict found: The scores.
    :param str of: Description of the rows.
    """
    shown = []
    for name, methods in found["targets"].items():
        levels = [f"{float(p):.0%}" for p in methods[_OWN]["coverage"]]
        rows = [
            [
                method,
                with_error(s["log_likelihood"], s.get("log_likelihood_error")),
                with_error(s["crps"], s["crps_error"]),
                plain(s["rmse"]),
                *(f"{share:.0%}" for share in s["coverage"].values()),
            ]
            for method, s in methods.items()
        ]
        notes = [
            f"log-lik.: mean log density per unit of {name}, larger is better. CRPS, RMSE: in "
            f"units of {name}, smaller",
            f"is better. ±: a standard error. {', '.join(levels)}: share of the rows within the "
            "central intervals.",
        ]
        head = ["method", "log-lik.", "CRPS", "RMSE", *levels]
        shown.append(ScoreTable(f"{name} on {found['rows']} {of}", head, rows, notes))
    if "joint" in found:
        value = with_error(*found["joint"].values())
        shown[-1].notes.append(f"Log-likelihood of all targets jointly: {value}.")
    return shown


def losses(model: LatentDGPRegressor, X: ArrayLike, y: np.ndarray) -> np.ndarray:
    """CRPS per row in standard deviations of the targets; the mean over several targets, [N]."""
    crps, y = (np.asarray(t, dtype=float).reshape(len(y), -1) for t in (model.crps(X, y), y))
    scale = y.std(0)
    return (crps / np.where(scale > 0, scale, 1.0)).mean(1)


def predictions(
    model: LatentDGPRegressor,
    targets: list[str],
    X: pd.DataFrame,
    y: np.ndarray | None,
    args: argparse.Namespace,
) -> pd.DataFrame:
    """Mean, standard deviation, quantiles and what else was requested, per row.

    :param LatentDGPRegressor model: A fitted model.
    :param list targets: Names of the targets.
    :param pandas.DataFrame X: Inputs, [N, D].
    :param y: Targets, NaN where unknown, or None.
    :param args: Arguments of ``pyro-dgp predict``: ``quantiles``, ``level``, ``draws``, ``density``
        and ``seed``.
    """
    q, names = _asked_quantiles(args)
    names = ["mean", "std", *names, *(f"draw_{i + 1}" for i in range(args.draws))]
    grid = None
    if args.density:
        grid = np.linspace(args.density[0], args.density[1], int(args.density[2]))
        names += [f"density_{v:.12g}" for v in grid]
    parts, log_densities, start = [], [], 0
    with isolated(args.seed), _row_bar(len(X), None, True) as bar:
        for p in model.predictives(X):
            rows = p.batch_shape[0]
            values = [p.mean, p.stddev, *p.quantile(q), *p.sample((args.draws,))]
            if grid is not None:
                values += [*log_density(p, _on_lattice(p, torch.as_tensor(grid))).exp()]
            parts.append(torch.stack(values, -1).reshape(rows, -1))  # [rows, targets x names]
            if y is not None:
                log_densities.append(_known_log_density(p, y[start : start + rows]))
            start += rows
            bar.update(rows)
    columns = [f"{target}_{name}" for target in targets for name in names]
    found = pd.DataFrame(torch.cat(parts).numpy(), index=X.index, columns=columns)
    if y is not None and np.isfinite(y.reshape(len(y), -1)).all(1).any():
        found["log_density"] = np.concatenate(log_densities)
    return found


def _asked_quantiles(args: argparse.Namespace) -> tuple[torch.Tensor, list[str]]:
    quantiles = args.quantiles
    if quantiles is None:
        quantiles = [] if args.level else [0.05, 0.5, 0.95]
    quantiles, levels = (list(dict.fromkeys(values)) for values in (quantiles, args.level))
    for name, values in (("quantiles", quantiles), ("level", levels)):
        for p in values:
            if not 0 < p < 1:
                raise ValueError(f"--{name} must lie strictly between 0 and 1: {p}.")
    ends = [(f"{end}_{p:.12g}", 0.5 + sign * p / 2)
            for p in levels for end, sign in (("lower", -1), ("upper", 1))]  # fmt: skip
    asked = [(f"q{p:.12g}", p) for p in quantiles] + ends
    return torch.tensor([p for _, p in asked], dtype=torch.float64), [name for name, _ in asked]


def _on_lattice(p: Predictive, grid: torch.Tensor) -> torch.Tensor:
    """The points of a lattice nearest to a grid, [G, 1]; the grid if there is no lattice."""
    if p.lattice is not None:
        origin, step = p.lattice
        grid = origin + step * ((grid - origin) / step).round()
    return grid.unsqueeze(-1)


def _known_log_density(p: Predictive, y: np.ndarray) -> np.ndarray:
    """Log density per row; NaN where a target is missing."""
    known = np.isfinite(y.reshape(len(y), -1)).all(1)
    y = np.where(known.reshape((-1,) + (1,) * (y.ndim - 1)), y, p.mean.numpy())
    return np.where(known, log_density(p, torch.as_tensor(y)).numpy(), np.nan)


def _row_bar(rows: int, what: str | None, progress: bool) -> tqdm:
    return tqdm(total=rows, desc=what, disable=None if progress else True, unit="row")


def _per_row(p: Predictive, y: torch.Tensor) -> _Rows:
    """Mean, log density, CRPS, P(target < y) and P(target <= y) of one target, [N] each."""
    values = (p.mean, log_density(p, y), p.crps(y), *pit_bounds(p, y))
    return tuple(t.numpy() for t in values)


def _described(
    y: np.ndarray,
    mean: np.ndarray,
    log_density: np.ndarray | None,
    crps: np.ndarray,
    below: np.ndarray,
    above: np.ndarray,
) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(("log_likelihood", "log_likelihood_error"))
    if log_density is not None:
        found = dict(zip(found, mean_and_error(log_density), strict=True))
    found |= dict(zip(("crps", "crps_error"), mean_and_error(crps), strict=True))
    found["rmse"] = float(np.sqrt(np.mean(np.square(mean - y))))
    shares = coverage(torch.as_tensor(below), torch.as_tensor(above))
    return found | {"coverage": {f"{p:g}": share for p, share in shares.items()}}


def _normal_scores(y_train: np.ndarray, weights: np.ndarray | None, y: np.ndarray) -> dict:
    mean = np.average(y_train, weights=weights)
    scale = np.average(np.square(y_train - mean), weights=weights) ** 0.5
    loc, scale = (
        torch.full((1, len(y)), float(v), dtype=torch.float64)
        for v in (mean, max(scale, np.finfo(float).tiny))
    )
    normal = PredictiveMixture(torch.distributions.Normal(loc, scale))
    return _described(y, *_per_row(normal, torch.as_tensor(y)))


def _boosting_scores(
    train: tuple[ArrayLike, np.ndarray, np.ndarray | None],
    X: ArrayLike,
    y: np.ndarray,
    seed: int,
    bar: tqdm,
) -> dict:
    def predict(**loss: Any) -> np.ndarray:
        boosting = HistGradientBoostingRegressor(
            random_state=seed,
            early_stopping=True,  # pyright: ignore[reportArgumentType]
            **loss,
        )
        found = boosting.fit(*train).predict(X)
        bar.update()
        return found

    quantiles = np.sort([predict(loss="quantile", quantile=p) for p in _PROBABILITIES], axis=0)
    error = y - quantiles
    p = _PROBABILITIES[:, None]
    crps = 2 * np.maximum(p * error, (p - 1) * error).mean(0)
    pit = [np.interp(t, q, _PROBABILITIES, 0.0, 1.0) for t, q in zip(y, quantiles.T, strict=True)]
    return _described(y, predict(), None, crps, np.array(pit), np.array(pit))
