"""Predictive distributions on the UCI sets' published splits, beside other packages'.

python -m tests.benchmarks.densities out.csv [--splits 5] [--sets forest ...] [--methods ngboost]
python -m tests.benchmarks.densities out.csv [more.csv ...] --table log_likelihood --figure out.png

A row of metrics for each set, split and method, on the scale of ``datasets.load`` (targets have
standard deviation 1 over all rows), is appended to ``out.csv``; rows that one of the files has are
not computed again. The second line runs nothing: tables and the figure are of the rows there are,
over the splits that the first method has. Everything is seeded by the split and runs on
one thread (set ``OMP_NUM_THREADS=1``), whose time is given in seconds of the processor; a method
that fails leaves no row. The other packages:

pip install quantile-forest catboost ngboost treeffuser scikit-learn
"""

import argparse
import csv
import importlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from pyro_dgp.experiments import datasets
from pyro_dgp.experiments.datasets import Split
from pyro_dgp.sklearn import LatentDGPRegressor

# By number of rows: from 23 to 15000.
SETS = (
    "challenger", "fertility", "autos", "servo", "breastcancer", "yacht", "boston", "forest",
    "energy", "concrete", "solar", "winered", "winewhite", "kin8nm", "power", "naval", "pol",
)  # fmt: skip
METRICS = ("crps", "log_likelihood", "rmse", "coverage", "width", "pit_distance", "seconds")
# Of which less, or more log-likelihood, is better by itself.
RANKED = ("crps", "log_likelihood", "rmse", "pit_distance", "seconds")
COLUMNS = ("set", "split", "method", *METRICS)
# Targets this near to a predicted atom are on it: CatBoost's quantiles of equal targets are 1e-6
# off, float32 predictions 1e-7.
TIE = 1e-5


# Predictions


class Prediction(Protocol):
    """A distribution for each of N test rows."""

    def mean(self) -> np.ndarray:
        """[N]."""

    def crps(self, y: np.ndarray) -> np.ndarray:
        """[N]."""

    def log_density(self, y: np.ndarray) -> np.ndarray | None:
        """[N]; None for a method without a density."""

    def quantile(self, p: float) -> np.ndarray:
        """[N]."""

    def pit(self, y: np.ndarray, u: np.ndarray) -> np.ndarray:
        """[N]: F(y-) + u (F(y) - F(y-)), uniform also where there are atoms, if u is."""


@dataclass(frozen=True)
class Normal:
    """Normal distributions: ``loc`` and ``scale`` [N]."""

    loc: np.ndarray
    scale: np.ndarray

    def mean(self):
        return self.loc

    def crps(self, y):
        z = (y - self.loc) / self.scale
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        return self.scale * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))

    def log_density(self, y):
        z = (y - self.loc) / self.scale
        return -0.5 * z**2 - np.log(self.scale) - 0.5 * np.log(2 * np.pi)

    def quantile(self, p):
        return self.loc + self.scale * ndtri(p)

    def pit(self, y, u):
        return ndtr((y - self.loc) / self.scale)


@dataclass(frozen=True)
class Sample:
    """The empirical distributions of ``draws`` [N, S]."""

    draws: np.ndarray

    def mean(self):
        return self.draws.mean(1)

    def crps(self, y):
        """E|X - y| - E|X - X'| / 2, exactly."""
        draws = np.sort(self.draws, 1)
        size = draws.shape[1]
        weights = (2 * np.arange(size) - size + 1) / size**2
        return np.abs(draws - y[:, None]).mean(1) - draws @ weights

    def log_density(self, y):
        return None

    def quantile(self, p):
        return np.quantile(self.draws, p, axis=1)

    def pit(self, y, u):
        below = (self.draws < y[:, None] - TIE).mean(1)
        return below + u * ((self.draws <= y[:, None] + TIE).mean(1) - below)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles ``values`` [N, Q], ascending, of the ``levels`` [Q]; linear between them."""

    levels: np.ndarray
    values: np.ndarray

    def mean(self):
        return self.values.mean(1)

    def crps(self, y):
        """Twice the mean pinball loss."""
        error = y[:, None] - self.values
        return 2 * np.maximum(self.levels * error, (self.levels - 1) * error).mean(1)

    def log_density(self, y):
        return None

    def quantile(self, p):
        return np.array([np.interp(p, self.levels, row) for row in self.values])

    def pit(self, y, u):
        """Equal values are an atom; beyond the outer ones, F is uniform on what remains."""
        bounds = np.empty((len(y), 2))
        last = len(self.levels) - 1
        for i, (target, row) in enumerate(zip(y, self.values, strict=True)):
            first = np.searchsorted(row, target - TIE, "left")  # the first not below
            after = np.searchsorted(row, target + TIE, "right")  # the first above
            if 0 < first == after <= last:
                bounds[i] = np.interp(
                    target, row[first - 1 : first + 1], self.levels[first - 1 : first + 1]
                )
            else:
                bounds[i, 0] = 0 if first == 0 else self.levels[min(first, last)]
                bounds[i, 1] = 1 if after > last else self.levels[max(after - 1, 0)]
        return bounds[:, 0] + u * (bounds[:, 1] - bounds[:, 0])


def metrics(prediction: Prediction, y: np.ndarray) -> dict[str, float | str]:
    """Means over the test rows; of the central 90% interval, the share inside and the width."""
    low, high = prediction.quantile(0.05), prediction.quantile(0.95)
    log_density = prediction.log_density(y)
    pit = np.sort(prediction.pit(y, np.random.default_rng(0).random(len(y))))
    steps = np.arange(len(y) + 1) / len(y)
    return {
        "crps": prediction.crps(y).mean(),
        "log_likelihood": "" if log_density is None else log_density.mean(),
        "rmse": np.sqrt(np.mean((prediction.mean() - y) ** 2)),
        "coverage": np.mean((low - TIE <= y) & (y <= high + TIE)),
        "width": np.mean(high - low),
        "pit_distance": max(np.max(steps[1:] - pit), np.max(pit - steps[:-1])),
    }


# Methods


def held_out(data: Split, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training rows to stop early on, a tenth, and the others."""
    rows = np.random.default_rng(seed).permutation(len(data.X_train))
    return tuple(np.split(rows, [max(1, len(rows) // 10)]))


def quantile_forest(data: Split, seed: int) -> Prediction:
    from quantile_forest import RandomForestQuantileRegressor

    levels = np.arange(1, 100) / 100
    model = RandomForestQuantileRegressor(500, min_samples_leaf=5, random_state=seed, n_jobs=1)
    model.fit(data.X_train, data.y_train)
    return Quantiles(levels, model.predict(data.X_test, quantiles=list(levels)))


def catboost(data: Split, seed: int, **options) -> np.ndarray:
    from catboost import CatBoostRegressor

    stop, fit = held_out(data, seed)
    model = CatBoostRegressor(
        random_seed=seed, thread_count=1, verbose=0, allow_writing_files=False, **options
    )
    model.fit(
        data.X_train[fit], data.y_train[fit], eval_set=(data.X_train[stop], data.y_train[stop])
    )
    return model.predict(data.X_test, thread_count=1)


def catboost_quantiles(data: Split, seed: int) -> Prediction:
    levels = np.linspace(0.025, 0.975, 20)
    loss = "MultiQuantile:alpha=" + ",".join(f"{level:.3f}" for level in levels)
    values = catboost(data, seed, loss_function=loss, iterations=2000, early_stopping_rounds=50)
    return Quantiles(levels, np.sort(values, 1))  # they may cross


def catboost_uncertainty(data: Split, seed: int) -> Prediction:
    moments = catboost(
        data, seed, loss_function="RMSEWithUncertainty", iterations=3000, early_stopping_rounds=100
    )
    return Normal(moments[:, 0], np.sqrt(np.maximum(moments[:, 1], 1e-12)))


def ngboost(data: Split, seed: int) -> Prediction:
    from ngboost import NGBRegressor

    stop, fit = held_out(data, seed)
    model = NGBRegressor(n_estimators=2000, random_state=seed, verbose=False).fit(
        data.X_train[fit], data.y_train[fit], X_val=data.X_train[stop], Y_val=data.y_train[stop],
        early_stopping_rounds=50,
    )  # fmt: skip
    found = model.pred_dist(data.X_test)  # with all rounds, which is its default
    return Normal(found.loc, found.scale)


def treeffuser(data: Split, seed: int) -> Prediction:
    from treeffuser import Treeffuser

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # float32, names of features, deprecations
        model = Treeffuser(seed=seed, n_jobs=1, verbose=-1).fit(data.X_train, data.y_train)
        # 50 steps are the default from 0.2.0 on. In one go, as each batch of a seeded sample would
        # start from the same noise.
        draws = model.sample(data.X_test, 200, n_parallel=200, n_steps=50, seed=seed)
    return Sample(np.asarray(draws, float).reshape(200, -1).T)


def extra_trees(data: Split, seed: int) -> Prediction:
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(300, bootstrap=True, random_state=seed, n_jobs=1)
    model.fit(data.X_train, data.y_train)
    return Sample(np.stack([tree.predict(data.X_test) for tree in model.estimators_], 1))


@dataclass
class Fitted:
    """A fitted :class:`LatentDGPRegressor` at test inputs [N, D].

    A rounded target's probabilities count as densities, spread evenly over the lattice's step.
    """

    model: LatentDGPRegressor
    X: np.ndarray

    def mean(self):
        return self.model.predict(self.X)

    def crps(self, y):
        return self.model.crps(self.X, y)

    def log_density(self, y):
        lattice = self.model.predictive(self.X[:1]).lattice
        return self.model.log_density(self.X, y) - (np.log(lattice[1]) if lattice else 0.0)

    def quantile(self, p):
        return self.model.predict_quantiles(self.X, [p])[:, 0]

    def pit(self, y, u):
        below, at = (self.model.cdf(self.X, y + shift) for shift in (-TIE, TIE))
        return below + u * (at - below)


def latent_dgp(**options) -> Callable[[Split, int], Prediction]:
    """Default settings but for ``options``."""

    def predicted(data: Split, seed: int) -> Prediction:
        model = LatentDGPRegressor(random_state=seed, n_jobs=1, **options)
        return Fitted(model.fit(data.X_train, data.y_train), data.X_test)

    return predicted


METHODS: dict[str, Callable[[Split, int], Prediction]] = {
    "pyro_dgp": latent_dgp(),
    "pyro_dgp, no pool": latent_dgp(pool=False),
    "pyro_dgp, no boosting": latent_dgp(features="trees"),
    "pyro_dgp, no features": latent_dgp(features=None),
    "pyro_dgp, one noise variance": latent_dgp(likelihood="gaussian"),
    "quantile-forest": quantile_forest,
    "catboost-quantiles": catboost_quantiles,
    "catboost-uncertainty": catboost_uncertainty,
    "ngboost": ngboost,
    "treeffuser": treeffuser,
    "extra-trees": extra_trees,
}
# Imported before the clock starts.
PACKAGES = {
    "quantile-forest": "quantile_forest",
    "catboost-quantiles": "catboost",
    "catboost-uncertainty": "catboost",
    "ngboost": "ngboost",
    "treeffuser": "treeffuser",
    "extra-trees": "sklearn.ensemble",
}


# Rows


def read(paths: list[Path]) -> list[dict[str, str]]:
    rows = []
    for path in paths:
        if path.exists():
            with path.open(newline="") as file:
                rows += csv.DictReader(file)
    return rows


def append(path: Path, row: dict) -> None:
    row = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
    print(*row.values(), flush=True)
    new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def run(name: str, split: int, method: str, data: Split) -> dict:
    """One row; fits and predicts."""
    if method in PACKAGES:
        importlib.import_module(PACKAGES[method])
    start = time.process_time()
    prediction = METHODS[method](data, split)
    seconds = time.process_time() - start
    found = metrics(prediction, data.y_test)
    return {"set": name, "split": split, "method": method, **found, "seconds": seconds}


def means(rows: list[dict[str, str]], sets: list[str], methods: list[str], metric: str) -> dict:
    """Mean and its standard error over splits, [2], by set and method.

    The splits of a set are those of the first method; a method that lacks some has no mean.
    """
    values = {
        (row["set"], int(row["split"]), row["method"]): float(row[metric])
        for row in rows
        if row[metric]
    }
    found = {}
    for name in sets:
        splits = sorted({key[1] for key in values if key[0] == name and key[2] == methods[0]})
        for method in methods if splits else ():
            of = [values.get((name, split, method), np.nan) for split in splits]
            if np.isfinite(of).all():
                error = np.std(of, ddof=1) / np.sqrt(len(of)) if len(of) > 1 else np.nan
                found.setdefault(name, {})[method] = np.array([np.mean(of), error]), len(of)
    return found


def table(rows: list[dict[str, str]], sets: list[str], methods: list[str], metric: str) -> str:
    """Means with standard errors, the best in bold, and mean ranks."""
    found = means(rows, sets, methods, metric)
    sign = -1 if metric == "log_likelihood" else 1
    methods = [m for m in methods if any(m in of for of in found.values())]
    lines = ["| | splits | " + " | ".join(methods) + " |", "|" + "---|" * (len(methods) + 2)]
    ranks = {method: [] for method in methods}
    for name, of in found.items():
        scores = {method: sign * of[method][0][0] for method in methods if method in of}
        cells = []
        for method in methods:
            if method not in of:
                cells.append("-")
                continue
            (mean, error), number = of[method]
            best = "**" if scores[method] == min(scores.values()) else ""
            cells.append(f"{best}{mean:.4g}{best}" + (f" ({error:.1g})" if number > 1 else ""))
            less = sum(score < scores[method] for score in scores.values())
            equal = sum(score == scores[method] for score in scores.values())
            ranks[method].append(less + (equal + 1) / 2)
        lines.append(f"| {name} | {number} | " + " | ".join(cells) + " |")
    cells = [f"{np.mean(ranks[method]):.2f}" for method in methods]
    lines.append(f"| mean rank of {len(found)} sets | | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(rows: list[dict[str, str]], sets: list[str], methods: list[str], path: Path) -> None:
    """CRPS as a ratio to the first method's, and coverage of 90% intervals, by set."""
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(1, 2, figsize=(11, 5.5), layout="constrained", sharey=True)
    crps, coverage = (means(rows, sets, methods, metric) for metric in ("crps", "coverage"))
    rows_of = {name: len(crps) - 1 - i for i, name in enumerate(crps)}
    for method, marker in zip(methods, "osD^v<>PX*", strict=False):
        style = {"ls": "", "marker": marker, "label": method, "alpha": 0.8}
        style |= {"ms": 9, "color": "black"} if method == methods[0] else {"ms": 6}
        some = [name for name in crps if method in crps[name]]
        at = [rows_of[name] for name in some]
        first = [crps[name][methods[0]][0][0] for name in some]
        ratios = [crps[n][method][0][0] / f for n, f in zip(some, first, strict=True)]
        axes[0].plot(ratios, at, **style)
        axes[1].plot([coverage[name][method][0][0] for name in some], at, **style)
    axes[0].axvline(1, color="black", lw=0.8)
    ticks = [0.8, 1, 1.25, 1.5, 2, 3, 5]
    axes[0].set(xscale="log", xlabel=f"CRPS / CRPS of {methods[0]}; above 1 is worse")
    axes[0].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].set_xticks([], minor=True)
    axes[0].set_yticks(list(rows_of.values()), list(rows_of))
    axes[1].axvline(0.9, color="black", lw=0.8)
    axes[1].set(xlabel="share of targets in the central 90% interval")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    for ax in axes:
        ax.grid(axis="y", alpha=0.3)
    picture.savefig(path, dpi=100)
    plt.close(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", type=Path, nargs="+", help="rows go to the first")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--table", choices=RANKED, nargs="?", const="crps", help="of the rows there are"
    )
    parser.add_argument("--figure", type=Path, help="of the rows there are")
    args = parser.parse_args()
    sets = sorted(args.sets, key=SETS.index)
    rows = read(args.paths)
    some = [row for row in rows if int(row["split"]) < args.splits]
    if args.table:
        print(table(some, sets, args.methods, args.table))
    if args.figure:
        figure(some, sets, args.methods, args.figure)
    if args.table or args.figure:
        return
    done = {(row["set"], row["split"], row["method"]) for row in rows}
    for split in range(args.splits):
        for name in sets:
            todo = [m for m in args.methods if (name, str(split), m) not in done]
            data = datasets.load(name, split) if todo else None
            for method in todo:
                try:
                    append(args.paths[0], run(name, split, method, data))
                except Exception as error:
                    print(f"{name} {split} {method} failed: {error!r}", flush=True)


if __name__ == "__main__":
    main()
