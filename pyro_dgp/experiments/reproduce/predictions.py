"""The paper's studies of predictions: Table 1 and Figures 4, 5, 6 and 7."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_dgp.experiments import datasets, figures
from pyro_dgp.experiments.config import RunConfig
from pyro_dgp.experiments.many_runs import sweep
from pyro_dgp.experiments.reproduce.log_likelihoods import FORMATS, table1
from pyro_dgp.experiments.reproduce.study import Size, Study, some_rows, trained
from pyro_dgp.experiments.runs import load_data
from pyro_dgp.gp import LatentDGP, PredictiveMixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PREDICTION_STUDIES", "by_split"]

#: Records of runs by data set, split and kind.
_Records = dict[tuple[str, int, str], dict]
#: The two kinds of model that a study compares, with the options in which they differ.
ESTIMATORS = {"reg": {"loss": "reg"}, "dreg": {"loss": "dreg"}}
VARIATIONAL = {"learned": {"learned_qz": True}, "fixed": {"learned_qz": False}}


def _configs(size: Size, kinds: dict[str, dict]) -> dict[tuple[str, int, str], RunConfig]:
    """By data set, split and kind; an option may be a dict of values by data set."""
    return {
        (dataset, split, kind): replace(
            size.config(dataset, size.only("layers")),
            split=split,
            num_test_samples=size.test_samples,
            num_evaluations=size.evaluations,
            **{
                n: v.get(dataset, v["others"]) if isinstance(v, dict) else v
                for n, v in options.items()
            },
        )
        for dataset in size.datasets
        for split in range(size.splits)
        for kind, options in kinds.items()
    }


def _records(kinds: dict[str, dict]) -> Callable[[Size, Path, bool], _Records]:
    def compute(size: Size, folder: Path, progress: bool) -> _Records:
        configs = _configs(size, kinds)
        for dataset in size.datasets:
            datasets.load(dataset)  # one clear error if it is missing, before any run
        records = sweep(list(configs.values()), folder, size.jobs, progress)
        if all("error" in record for record in records):
            raise ArithmeticError(f"all {len(records)} runs; the first: {records[0]['error']}")
        return dict(zip(configs, records, strict=True))

    return compute


def by_split(
    records: _Records, key: str = "test_log_likelihood"
) -> dict[str, dict[str, dict[int, Any]]]:
    """A number of the records, by data set, kind and split; without splits where a run failed."""
    failed = {(dataset, split) for (dataset, split, _), r in records.items() if "error" in r}
    found: dict[str, dict[str, dict[int, Any]]] = {}
    for (dataset, split, kind), record in records.items():
        if (dataset, split) not in failed:
            found.setdefault(dataset, {}).setdefault(kind, {})[split] = record[key]
    return found


def _notes(records: _Records) -> list[str]:
    """Remarks on the numbers."""
    lines = []
    for (dataset, split, kind), record in records.items():
        if "error" in record:
            lines.append(f"{dataset}, split {split}, {kind}: failed, left out: {record['error']}")
    for dataset in dict.fromkeys(dataset for dataset, _, _ in records):
        of_set = [r for (d, _, _), r in records.items() if d == dataset and "error" not in r]
        mass = of_set[0]["point_masses"] if of_set else None
        if mass is not None:
            lines.append(
                f"{dataset}: {mass['share']:.0%} of the targets are one value (of "
                f"{mass['distinct']}), where the log-likelihood can grow without limit as the "
                "noise variance falls, with no better prediction: look at the CRPS."
            )
    return lines


def _means(records: _Records) -> list[str]:
    """A Markdown table of means (and standard errors) over splits, by data set and kind."""
    keys = {
        "test log-likelihood": "test_log_likelihood", "CRPS": "crps", "RMSE": "rmse",
        "train bound": "train_bound", "noise variance": "noise_variance",
        "Shapiro-Wilk W": "shapiro_wilk", "s per step": "seconds_per_step",
    }  # fmt: skip
    lines = [f"| | splits | {' | '.join(keys)} | coverage of 50, 90, 95% |"]
    lines.append("|" + "---|" * (len(keys) + 3))
    columns = {name: by_split(records, key) for name, key in keys.items()}
    coverage = by_split(records, "coverage")
    for dataset, kinds in coverage.items():
        for kind, of_kind in kinds.items():
            cells = []
            for column in columns.values():
                values = list(column[dataset][kind].values())
                error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
                cells.append(f"{np.mean(values):.4g} ({error:.2g})")
            shares = np.mean([list(c.values()) for c in of_kind.values()], axis=0)
            cells.append(", ".join(f"{100 * share:.0f}" for share in shares))
            lines.append(f"| {dataset}, {kind} | {len(of_kind)} | {' | '.join(cells)} |")
    for dataset in dict.fromkeys(dataset for dataset, _, _ in records):
        if dataset not in coverage:
            lines += ["", f"{dataset}: left out, as every split has a run that failed."]
    return lines


def _compared(draw: Callable[[dict], "Figure"]) -> Callable[[_Records], "Figure | None"]:
    """The figure of what the splits of all kinds have in common; None if there are none."""

    def of_records(records: _Records) -> "Figure | None":
        values = by_split(records)
        return draw(values) if values else None

    return of_records


def _table1_lines(records: _Records) -> list[str]:
    values = by_split(records)
    table = [table1(values).markdown()] if values else []
    return [*table, "", *_means(records), "", *_notes(records)]


def _table1_files(records: _Records) -> dict[str, str]:
    values = by_split(records)
    if not values:
        return {}
    suffixes = {".csv": "csv", ".tex": "latex"}
    return {suffix: FORMATS[name](table1(values)) + "\n" for suffix, name in suffixes.items()}


def _learned_lines(records: _Records) -> list[str]:
    return [*_means(records), "", *_notes(records)]


# Likelihoods

#: The likelihood that suits the targets of each set, by their point masses and lattices.
SPECIAL = {
    "forest": "zero_inflated", "solar": "rounded", "pol": "rounded", "power": "student_t",
    "winewhite": "rounded", "winered": "rounded", "others": "heteroscedastic",
}  # fmt: skip
# None for the batches of the schedule, on the demo data, too.
_FEW_STEPS = {"batch_size": None, "mixing": "principal"}
LIKELIHOODS = {
    "gaussian": {"likelihood": "gaussian", **_FEW_STEPS},
    "heteroscedastic": {"likelihood": "heteroscedastic", **_FEW_STEPS},
    "free": {"likelihood": "heteroscedastic", "noise_scale": 1.0, **_FEW_STEPS},
    "special": {"likelihood": SPECIAL, **_FEW_STEPS},
}


def _likelihood_lines(records: _Records) -> list[str]:
    """Means and standard errors over splits, by data set and likelihood."""
    lines = ["| | splits | log-likelihood | CRPS | RMSE | coverage of 50, 90, 95% | seconds |"]
    lines.append("|" + "---|" * 7)
    for dataset, kind in dict.fromkeys((d, k) for d, _, k in records):
        of = [r for (d, _, k), r in records.items() if (d, k) == (dataset, kind)]
        of = [r for r in of if "error" not in r]
        if not of:
            continue
        cells = [
            _mean_and_error([r["test_log_likelihood"] - r.get("log_step", 0.0) for r in of], 3),
            _mean_and_error([r["crps"] for r in of], 4),
            _mean_and_error([r["rmse"] for r in of], 3),
            ", ".join(
                f"{100 * np.mean([r['coverage'][level] for r in of]):.0f}"
                for level in of[0]["coverage"]
            ),
            f"{np.mean([r['seconds'] for r in of]):.0f}",
        ]
        name = of[0]["config"]["likelihood"]
        if kind == "free":
            name += f", noise_scale {of[0]['config']['noise_scale']:g}"
        lines.append(f"| {dataset}, {name} | {len(of)} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Of a rounded target, the log-likelihood is that of its interval's probability over the "
        "interval's width; of a zero-inflated one, it mixes probabilities and densities, and "
        "compares with no other.",
        "",
        *_notes(records),
    ]


def _mean_and_error(values: list[float], digits: int) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{np.mean(values):.{digits}f} ({error:.{digits}f})"


# Figure 5


def _marginals(size: Size, folder: Path, progress: bool) -> dict[str, list[dict]]:
    """By data set: for some test points the target, and densities with learned and fixed q(z)."""
    found: dict[str, list[dict]] = {}
    for dataset in size.datasets:
        configs = _configs(replace(size, datasets=(dataset,), splits=1), VARIATIONAL)
        models = {
            kind: trained(config, folder, progress) for (_, _, kind), config in configs.items()
        }
        _, _, X, y = load_data(next(iter(configs.values())))
        rows = some_rows(len(X), size.points)
        pyro.set_rng_seed(0)
        predictives = {
            kind: dgp.predict(X[rows], size.test_samples) for kind, dgp in models.items()
        }
        found[dataset] = [
            {
                "row": row, "target": y[row].item(), **_densities(predictives, i),
                "there": {k: p.log_prob(y[rows])[i].exp().item() for k, p in predictives.items()},
            }
            for i, row in enumerate(rows)
        ]  # fmt: skip
    return found


def _densities(predictives: dict[str, PredictiveMixture], i: int) -> dict[str, Tensor]:
    """Densities of the i-th point on a grid that covers all of them."""
    ends = torch.stack(
        [p.quantile(torch.tensor([0.001, 0.999]))[:, i] for p in predictives.values()]
    )
    low, high = ends.min().item(), ends.max().item()
    margin = 0.05 * (high - low)
    grid = torch.linspace(low - margin, high + margin, 1000).to(ends)
    densities = {
        kind: p[i : i + 1].log_prob(grid.unsqueeze(-1)).exp().squeeze(-1)
        for kind, p in predictives.items()
    }
    return {"grid": grid, **densities}


def _marginals_table(found: dict[str, list[dict]]) -> list[str]:
    lines = ["data set   test row    target   density there: learned      fixed"]
    for dataset, points in found.items():
        for p in points:
            learned, fixed = (p["there"][kind] for kind in VARIATIONAL)
            lines.append(
                f"{dataset:<10} {p['row']:>8} {p['target']:>9.3f} {learned:>24.4g} {fixed:>10.4g}"
            )
    return lines


# Figure 7


def _demo(size: Size, folder: Path, progress: bool) -> tuple[LatentDGP, datasets.Split]:
    config = size.config(size.only("datasets"), size.only("layers"))
    if not config.dataset.startswith("demo"):
        raise ValueError(
            f"datasets must be demo data here, which have one input: not {config.dataset}."
        )
    return trained(config, folder, progress), datasets.load(config.dataset, config.split)


def _demo_table(results: tuple[LatentDGP, datasets.Split]) -> list[str]:
    dgp, data = results
    return [
        f"{len(data.X_train)} training and {len(data.X_test)} test points, "
        f"noise variance {dgp.likelihood.variance.item():.3g}"
    ]


_REAL = Size(("forest", "solar", "pol", "power", "winewhite", "winered"), steps=3000, train_K=50)
# Options of the size that studies of many runs use.
_OF_RUNS = ("splits", "test_samples", "evaluations", "jobs")

#: By name.
PREDICTION_STUDIES = {
    "figure4": Study(
        _REAL, _records(VARIATIONAL), _learned_lines, _compared(figures.violin_figure),
        options=_OF_RUNS,
    ),
    "figure5": Study(
        replace(_REAL, datasets=("forest", "winewhite"), points=3), _marginals, _marginals_table,
        figures.marginals_figure, options=("points", "test_samples"),
    ),
    "figure6": Study(
        replace(_REAL, datasets=("forest",)), _records(ESTIMATORS), _table1_lines,
        _compared(figures.ordered_figure), options=_OF_RUNS,
    ),
    "figure7": Study(
        Size(), _demo, _demo_table, lambda results: figures.demo_figure(*results)
    ),
    "likelihoods": Study(
        replace(
            _REAL, steps=2000, train_K=10, lr=0.02, schedule="cosine", splits=3, test_samples=1000,
            evaluations=1, dtype="float32",
        ),
        _records(LIKELIHOODS), _likelihood_lines, options=_OF_RUNS,
    ),
    "table1": Study(
        _REAL, _records(ESTIMATORS), _table1_lines, None, _table1_files, options=_OF_RUNS
    ),
}  # fmt: skip
