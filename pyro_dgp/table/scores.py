"""Tables of scores for a terminal or a page."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ScoreTable", "jsonable", "mean_and_error", "plain", "with_error"]

# Numbers outside this range are written with an exponent.
_SMALLEST, _LARGEST = 1e-6, 1e12


@dataclass(frozen=True)
class ScoreTable:
    """Scores of several methods.

    :param str title: Title of the table.
    :param list head: Names of the columns, the first of which has the methods.
    :param list rows: Texts of the cells, one list per method.
    :param list notes: Notes on units, and on which direction is better.
    """

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [[self.title, *self.head[1:]], *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        first, *others = widths
        texts = [
            "   ".join([name.ljust(first), *map(str.rjust, values, others)]).rstrip()
            for name, *values in lines
        ]
        return "\n".join([*texts, *self.notes])


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean over rows, and its standard error, NaN of a single row."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return float(values.mean()), float(error)


def jsonable(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores in which NaN and infinity are replaced by None, as JSON has no such numbers."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return jsonable(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: one(value) for name, value in scores.items()}


def plain(value: float | None, digits: int = 4) -> str:
    """A number with some significant digits, without an exponent where possible."""
    if value is None or not np.isfinite(value):
        return "-" if value is None or np.isnan(value) else f"{value}"
    if value != 0 and not _SMALLEST <= abs(value) < _LARGEST:
        return f"{value:.{digits - 1}e}"
    return np.format_float_positional(
        float(f"{value:.{digits}g}"), precision=digits, unique=True, fractional=False, trim="-"
    )


def with_error(value: float | None, error: float | None) -> str:
    """A number and its standard error, the latter with two digits."""
    return plain(value) if value is None or error is None else f"{plain(value)} ± {plain(error, 2)}"
