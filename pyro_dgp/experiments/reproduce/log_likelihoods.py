"""Table 1 of the paper: test log-likelihoods under both estimators, and a test of their difference.

From the published numbers this procedure reproduces every digit of the printed table: the mean of
the evaluations of each split; means over splits with standard errors (ddof 1); a one-sided Wilcoxon
signed-rank test of the paired splits by the normal approximation without continuity correction;
across data sets, one test of all pairs.

Source: Rudner et al. (2021), Table 1 and section 5.2.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import wilcoxon

__all__ = ["FORMATS", "Row", "Table1", "read_evaluations", "table1"]

#: Per data set and estimator ("reg", "dreg"), by split: the mean of that split's evaluations.
Splits = Mapping[str, Mapping[str, Mapping[int, float]]]

_COLUMNS = ("dataset", "estimator", "split", "eval_index", "test_log_likelihood")


def read_evaluations(path: str | Path) -> dict[str, dict[str, dict[int, float]]]:
    """Reads a CSV file with one evaluation per row, and averages those of each split.

    :param path: File with the columns dataset, estimator ("reg" or "dreg"), split, eval_index and
        test_log_likelihood.
    :returns: The mean by data set, estimator and split.
    :raises ValueError: If a column is missing, or a value not a number.
    """
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        try:
            missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(
                    f"{path} has no column {missing[0]}; it needs {', '.join(_COLUMNS)}."
                )
            for row in reader:
                estimator, value = row["estimator"], float(row["test_log_likelihood"])
                if estimator not in ("reg", "dreg") or not math.isfinite(value):
                    raise ValueError(f"estimator '{estimator}', value {value}")
                by_split = found.setdefault(row["dataset"], {"reg": {}, "dreg": {}})[estimator]
                by_split.setdefault(int(row["split"]), []).append(value)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text file.") from error
        except (TypeError, ValueError) as error:
            if str(error).startswith(str(path)):
                raise
            raise ValueError(
                f"{path}, line {reader.line_num}: {error}. Estimators are reg and dreg, splits "
                "whole numbers, log-likelihoods finite."
            ) from error
    return {
        dataset: {
            estimator: {split: float(np.mean(values)) for split, values in by_split.items()}
            for estimator, by_split in by_estimator.items()
        }
        for dataset, by_estimator in found.items()
    }


@dataclass(frozen=True)
class Row:
    """The row of one data set.

    :param str dataset: Name of the data set.
    :param tuple splits: Numbers of the splits that are used.
    :param tuple excluded: Numbers of the splits left out as outliers.
    :param dict mean: Mean over splits, by estimator.
    :param dict error: Standard error of the mean, by estimator; NaN for a single split.
    :param float p_value: p-value of the hypothesis that DReG is no better than REG.
    """

    dataset: str
    splits: tuple[int, ...]
    excluded: tuple[int, ...]
    mean: Mapping[str, float]
    error: Mapping[str, float]
    p_value: float

    def cells(self, bold: str) -> list[str]:
        """Mean and error under REG, then under DReG, and the p-value, as the paper prints them.

        :param str bold: Format of the higher mean, if the printed digits differ.
        """
        shown = {name: f"{self.mean[name]:.2f}" for name in ("reg", "dreg")}
        cells = []
        for name, other in (("reg", "dreg"), ("dreg", "reg")):
            higher = float(shown[name]) > float(shown[other])
            cells.append(bold.format(shown[name]) if higher else shown[name])
            cells.append("" if math.isnan(self.error[name]) else f"({self.error[name]:.2f})")
        return [*cells, _percent(self.p_value)]


@dataclass(frozen=True)
class Table1:
    """The table of all data sets.

    :param tuple rows: A :class:`Row` per data set.
    :param float p_value: p-value across data sets.
    """

    rows: tuple[Row, ...]
    p_value: float

    def markdown(self) -> str:
        """A Markdown table."""
        lines = [
            "| Dataset | Splits | REG | SE | DReG | SE | p-value |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            cells = [row.dataset, str(len(row.splits)), *row.cells("**{}**")]
            lines.append(f"| {' | '.join(cells)} |")
        number = sum(len(row.splits) for row in self.rows)
        lines.append(f"| Across datasets | {number} | | | | | {_percent(self.p_value)} |")
        return "\n".join(lines)

    def latex(self) -> str:
        """The rows of a LaTeX table."""
        lines = [r"\begin{tabular}{r r r c r c r}", r"\toprule"]
        lines += [r"Dataset & Splits & \textsc{reg} & SE & \textsc{dreg} & SE & $p$-value \\"]
        lines += [r"\midrule"]
        for row in self.rows:
            cells = [row.dataset.replace("_", r"\_"), str(len(row.splits))]
            cells += row.cells(r"\textbf{{{}}}")
            lines.append(" & ".join(cells).replace("%", r"\%") + r" \\")
        across = _percent(self.p_value).replace("%", r"\%")
        lines += [r"\midrule", rf"\multicolumn{{6}}{{r}}{{Across datasets:}} & {across} \\"]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def csv(self) -> str:
        """Comma-separated values with all digits."""
        lines = ["dataset,num_splits,excluded,reg_mean,reg_se,dreg_mean,dreg_se,p_value"]
        for row in self.rows:
            numbers = [row.mean["reg"], row.error["reg"], row.mean["dreg"], row.error["dreg"]]
            lines.append(
                f"{row.dataset},{len(row.splits)},{' '.join(map(str, row.excluded))},"
                + ",".join(f"{x:.6g}" for x in (*numbers, row.p_value))
            )
        number = sum(len(row.splits) for row in self.rows)
        return "\n".join([*lines, f"all,{number},,,,,,{self.p_value:.6g}"])


#: Methods of :class:`Table1` by name.
FORMATS = {"markdown": Table1.markdown, "csv": Table1.csv, "latex": Table1.latex}


def table1(values: Splits, outliers: float | None = None) -> Table1:
    """The table.

    :param values: Log-likelihoods by data set, estimator and split.
    :param float outliers: Leave a split out, for both estimators, where either value is more than
        so many standard deviations (ddof 1) from the mean of its data set and estimator; 2 in the
        paper's text. None leaves nothing out: the published numbers already lack those splits.
    :raises ValueError: If a data set has a split under one estimator only, if there is no data, or
        none is left.
    """
    if not values:
        raise ValueError("There are no log-likelihoods to make a table of.")
    if outliers is not None and not outliers > 0:
        raise ValueError(f"outliers must be a positive number, but it is {outliers}.")
    rows, differences = [], []
    for dataset, by_estimator in values.items():
        splits = sorted(by_estimator["reg"])
        other = set(splits) ^ set(by_estimator["dreg"])
        if other:
            raise ValueError(
                f"{dataset}: split {min(other)} is there under one estimator only; the test is "
                "paired, so run the other one or drop the split."
            )
        pairs = np.array([[by_estimator[e][s] for e in ("reg", "dreg")] for s in splits])
        kept = _inliers(pairs, outliers)
        if not kept.any():
            raise ValueError(f"{dataset}: outliers={outliers} leaves no split: give more.")
        pairs, difference = pairs[kept], pairs[kept, 1] - pairs[kept, 0]
        with np.errstate(invalid="ignore"):
            error = pairs.std(0, ddof=1) / math.sqrt(len(pairs)) if len(pairs) > 1 else [np.nan] * 2
        rows.append(
            Row(
                dataset,
                tuple(s for s, k in zip(splits, kept, strict=True) if k),
                tuple(s for s, k in zip(splits, kept, strict=True) if not k),
                dict(zip(("reg", "dreg"), pairs.mean(0).tolist(), strict=True)),
                dict(zip(("reg", "dreg"), map(float, error), strict=True)),
                _p_value(difference),
            )
        )
        differences.append(difference)
    return Table1(tuple(rows), _p_value(np.concatenate(differences)))


def _inliers(pairs: np.ndarray, limit: float | None) -> np.ndarray:
    if limit is None or len(pairs) < 2:
        return np.ones(len(pairs), bool)
    return (np.abs(pairs - pairs.mean(0)) <= limit * pairs.std(0, ddof=1)).all(1)


def _p_value(differences: np.ndarray) -> float:
    """p-value of differences that are symmetric about 0 or less; NaN if all are 0."""
    differences = differences[differences != 0]
    if not len(differences):
        return math.nan
    result = wilcoxon(differences, alternative="greater", correction=False, method=_normal())
    return float(result.pvalue)  # pyright: ignore[reportAttributeAccessIssue]


@cache
def _normal() -> str:
    """What SciPy calls the normal approximation: "approx" until 1.12, "asymptotic" from 1.13 on."""
    try:
        wilcoxon([1.0, 2.0], method="asymptotic")
    except ValueError:
        return "approx"
    return "asymptotic"


def _percent(p: float) -> str:
    return "" if math.isnan(p) else f"{100 * p:.1f}%"
