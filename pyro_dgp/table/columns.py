"""How the columns of a table become inputs of a model, in training and for new rows."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np

from pyro_dgp.table.frames import column as column_of
from pyro_dgp.table.frames import columns as columns_of
from pyro_dgp.table.frames import named_columns, without_zone
from pyro_dgp.table.labels import as_classes, as_texts, classes_of, labels, without
from pyro_dgp.table.packages import pd
from pyro_dgp.table.reading.cells import Conventions, typed
from pyro_dgp.table.reading.raw import MISSING, Table

__all__ = ["Columns", "names_of_rows"]

# Up to the first number, all categories are kept; of more, those with at least as many rows as the
# second number, and at most the third number.
_FEW_CATEGORIES, _ROWS_OF_CATEGORY, _MOST_CATEGORIES = 20, 5, 50
# Fewer values than this may be all different, or consecutive, by chance.
_ROWS_TO_JUDGE = 20
# Numbers outside the training range by more than this share of it are reported.
_FAR = 0.5
_OTHER, _MISSING = "(other)", "(missing)"


def names_of_rows(frame: pd.DataFrame) -> dict[str, str]:
    """Columns that only identify rows, with the reason.

    These are numbers that increase by one per row, and texts that are (nearly) all different.

    :param pandas.DataFrame frame: All rows in the order of the file.
    """
    found = {}
    for name, column in named_columns(_plain(frame)):
        present = column.dropna()
        if len(present) < _ROWS_TO_JUDGE:
            continue
        if pd.api.types.is_float_dtype(column):
            if len(present) == len(column) and (column.diff().iloc[1:] == 1).all():
                found[name] = "it counts the rows"
        elif column.dtype == object:
            counts = present.value_counts()
            if len(counts) == len(present):
                found[name] = "all of its texts are different"
            elif len(counts) > _FEW_CATEGORIES and counts.iloc[0] < _ROWS_OF_CATEGORY:
                found[name] = f"its texts are of fewer than {_ROWS_OF_CATEGORY} rows each"
    return found


@dataclass(frozen=True)
class Columns:
    """The roles and contents of the columns of a table; plain data, saved with a model.

    :param list targets: Names of the targets.
    :param dict numbers: Numeric inputs by name: ``median``, ``low`` and ``high`` in the training
        rows, and whether any value was ``missing``.
    :param dict dates: Inputs of dates by name: the same for each part that varies.
    :param dict categories: Inputs of texts by name: the texts ``kept``, the most frequent first,
        and whether there were ``other`` or ``missing`` ones.
    :param dict conventions: How numbers and dates are written
        (:class:`~pyro_dgp.table.reading.cells.Conventions`).
    :param list constant: Names of columns that were left out because they do not vary.
    :param list classes: Classes of the target, as texts; None if targets are numbers.
    """

    targets: list[str]
    numbers: dict[str, dict]
    dates: dict[str, dict[str, dict]]
    categories: dict[str, dict]
    conventions: dict = field(default_factory=dict)
    constant: list[str] = field(default_factory=list)
    classes: list | None = None

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        targets: Sequence[str],
        drop: Collection[str] = (),
        conventions: Conventions | None = None,
        classes: bool = False,
    ) -> "Columns":
        """Determines the columns from training rows.

        :param pandas.DataFrame frame: Numbers, dates and texts, as from
            :func:`~pyro_dgp.table.cells.typed`; other numeric types and categories are allowed.
        :param targets: Names of the target columns.
        :param drop: Names of columns to leave out.
        :param Conventions conventions: Conventions of the table, which are saved.
        :param bool classes: Whether the target, which must be the only one, has classes.
        :raises ValueError: If a name is unknown, a target is not numeric, there are too many
            classes, or no input is left.
        """
        if len({*targets, *drop}) < len(targets) + len(drop):
            raise ValueError("A column is named twice among the targets and those left out.")
        frame = _plain(frame)
        for name in (*targets, *drop):
            if name not in frame.columns:
                raise ValueError(
                    f"There is no column '{name}'. The columns are {', '.join(frame.columns)}."
                )
        numbers, dates, categories, constant = {}, {}, {}, []
        for name, column in named_columns(frame.drop(columns=[*targets, *drop])):
            if column.isna().all():
                found = None
            elif pd.api.types.is_float_dtype(column):
                found = numbers[name] = _range(name, column)
            elif pd.api.types.is_datetime64_any_dtype(column):
                parts = {part: _range(name, values) for part, values in _parts(column)}
                found = dates[name] = {
                    part: r for part, r in parts.items() if r and r["low"] < r["high"]
                }
            else:
                found = categories[name] = _kept(column)
            if not found:
                constant.append(name)
                for kind in (numbers, dates, categories):
                    kind.pop(name, None)
        columns = cls(
            list(targets), numbers, dates, categories,
            asdict(conventions or Conventions()), constant,
            classes_of(column_of(frame, targets[0])) if classes else None,
        )  # fmt: skip
        columns.target_values(frame)
        if not columns.used:
            left_out = f" ({', '.join(constant)} do not vary)" if constant else ""
            raise ValueError(f"No input column is left beside the targets{left_out}.")
        return columns

    @property
    def used(self) -> list[str]:
        """Names of the input columns."""
        return [*self.numbers, *self.dates, *self.categories]

    @property
    def num_inputs(self) -> int:
        """Number D of columns of :meth:`inputs`."""
        numbers = sum(1 + seen["missing"] for seen in self.numbers.values())
        parts = sum(
            len(own) + any(seen["missing"] for seen in own.values()) for own in self.dates.values()
        )
        texts = (len(c["kept"]) + c["other"] + c["missing"] for c in self.categories.values())
        return numbers + parts + sum(texts)

    def typed(self, table: Table, conventions: Conventions) -> tuple[pd.DataFrame, list[str]]:
        """The input columns and targets of another table.

        A target that is no number counts as missing.

        :param Table table: The table.
        :param Conventions conventions: Conventions given by the user.

        :returns: The columns, and notes.
        :raises ValueError: See :func:`~pyro_dgp.table.cells.typed`.
        """

        def there(names: Iterable[str]) -> list[str]:
            return [name for name in names if name in table.frame.columns]

        part = Table(
            columns_of(table.frame, there([*self.used, *self.targets])), table.name, table.lines,
            table.separator,
        )  # fmt: skip
        texts = self.classes is not None
        frame, _, notes = typed(
            part, conventions, usual=Conventions(**self.conventions), numeric=there(self.numbers),
            dates=there(self.dates),
            categorical=there([*self.categories, *(self.targets if texts else [])]),
            lenient=there([] if texts else self.targets),
        )  # fmt: skip
        missing = [*conventions.missing, *self.conventions["missing"]]
        classes = self.classes or ()
        for name in there(self.targets if texts else []):
            found = as_classes(without(column_of(frame, name), missing), classes)
            empty = found.map(lambda text: str(text).lower() in MISSING)
            frame[name] = found.mask(empty & ~found.isin(classes))
        return frame, notes

    def inputs(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Inputs of a model, [N, D].

        Missing numbers are replaced by the median; dates become year, month, day of the year,
        weekday and hour, as far as these varied in training; categories and missing values have
        indicator columns of 0 and 1.

        :param pandas.DataFrame frame: Rows with the input columns.

        :raises ValueError: If a column is missing or of another kind, or a number is infinite.
        """
        frame = self._input_columns(frame)
        parts: dict[str, pd.Series] = {}

        def add(name: str, values: pd.Series) -> None:
            if name in parts:
                raise ValueError(
                    f"A part of a column would be called '{name}', and the table has one of that "
                    "name: rename it."
                )
            parts[name] = values

        for name, seen in self.numbers.items():
            column = _numbers(column_of(frame, name))
            if not pd.api.types.is_float_dtype(column):
                raise ValueError(f"Column '{name}' must hold numbers.")
            _check_finite(name, column)
            add(name, column.fillna(seen["median"]))
            if seen["missing"]:
                add(f"{name} {_MISSING}", column.isna().astype("float64"))
        for name, own in self.dates.items():
            column = _dates(column_of(frame, name))
            if not pd.api.types.is_datetime64_any_dtype(column):
                raise ValueError(f"Column '{name}' must hold dates.")
            values = dict(_parts(column))
            for part, seen in own.items():
                add(f"{name} ({part})", values[part].fillna(seen["median"]))
            if any(seen["missing"] for seen in own.values()):
                add(f"{name} {_MISSING}", column.isna().astype("float64"))
        for name, seen in self.categories.items():
            column = as_classes(as_texts(column_of(frame, name)), seen["kept"])
            for category in seen["kept"]:
                add(f"{name}_{category}", (column == category).astype("float64"))
            if seen["other"]:
                other = column.notna() & ~column.isin(seen["kept"])
                add(f"{name} {_OTHER}", other.astype("float64"))
            if seen["missing"]:
                add(f"{name} {_MISSING}", column.isna().astype("float64"))
        return pd.DataFrame(parts, index=frame.index)

    def target_values(self, frame: pd.DataFrame) -> np.ndarray:
        """Targets, [N], or [N, P] if there are several, or classes; NaN where missing.

        :param pandas.DataFrame frame: Rows with the target columns.
        :raises ValueError: If they are not numeric, or infinite, or one is missing in all rows.
        """
        found = []
        for name in self.targets:
            if name not in frame.columns:
                raise ValueError(f"There is no column '{name}', the target.")
            column = column_of(_plain(columns_of(frame, [name])), name)
            if column.isna().all():
                raise ValueError(f"The target '{name}' is missing in all rows.")
            if self.classes is not None:
                return labels(as_texts(column), self.classes)
            if not pd.api.types.is_float_dtype(column):
                kind = "dates"
                if column.dtype == object:
                    some = ", ".join(f"'{v}'" for v in as_texts(column).dropna().unique()[:3])
                    kind = f"texts such as {some}"
                alone = f" For classes: --categorical '{name}'."
                if len(self.targets) > 1:
                    alone = " Fit classes by themselves."
                raise ValueError(
                    f"The target '{name}' must hold numbers, but it holds {kind}.{alone}"
                )
            _check_finite(name, column)
            found.append(column)
        values = np.column_stack(found)
        return values[:, 0] if len(self.targets) == 1 else values

    def remarks(self, frame: pd.DataFrame) -> list[str]:
        """How rows differ from the training rows, as sentences.

        :param pandas.DataFrame frame: Rows with the input columns.
        :raises ValueError: If a column is missing.
        """
        return list(self._remarks(self._input_columns(frame)))

    def _input_columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        absent = [name for name in self.used if name not in frame.columns]
        if absent:
            raise ValueError(f"The table has no column '{absent[0]}', which the model looks at.")
        return _plain(columns_of(frame, self.used))

    def _remarks(self, frame: pd.DataFrame) -> Iterator[str]:
        for name, seen in self.numbers.items():
            yield from _unlike(name, _numbers(column_of(frame, name)), seen)
        for name, own in self.dates.items():
            values = dict(_parts(_dates(column_of(frame, name))))
            for part, seen in own.items():
                yield from _unlike(f"{name} ({part})", values[part], seen)
        for name, seen in self.categories.items():
            column = as_classes(as_texts(column_of(frame, name)), seen["kept"])
            new = column.loc[column.notna() & ~column.isin(seen["kept"])]
            if len(new) and not seen["other"]:
                some = ", ".join(sorted(new.unique())[:3])
                yield (
                    f"Column '{name}' has texts in {_rows(len(new))} that were not in the training "
                    f"rows ({some}): they are none of its categories."
                )
            if column.isna().any() and not seen["missing"]:
                yield (
                    f"Column '{name}' is missing in {_rows(int(column.isna().sum()))}, as it never "
                    "was in the training rows: there it is none of its categories."
                )

    def typical(self, frame: pd.DataFrame) -> pd.DataFrame:
        """One row of medians and most frequent texts."""
        frame = self._input_columns(frame)
        return pd.DataFrame({n: [self._typical(n, column)] for n, column in named_columns(frame)})

    def _typical(self, name: str, column: pd.Series) -> Any:
        if name not in self.categories:
            return column.median()
        texts = as_texts(column).dropna()
        kept = self.categories[name]["kept"]
        return texts.mode().iat[0] if len(texts) else kept[0] if kept else np.nan

    def as_dict(self) -> dict:
        """For ``Columns(**columns)``."""
        return asdict(self)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """All columns as float64, dates or objects, whatever their dtype.

    :raises ValueError: If two columns have the same name, or a name is no text.
    """
    _check_names(frame)
    found = {}
    for name, column in named_columns(frame):
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = as_texts(column.astype(object))
        elif pd.api.types.is_string_dtype(column):
            column = column.astype(object)
        elif pd.api.types.is_numeric_dtype(column):
            column = column.astype("float64")
        elif pd.api.types.is_timedelta64_dtype(column):
            column = column.dt.total_seconds()
        if column.dtype == object and column.notna().any():
            present = column.dropna()
            if present.map(lambda v: isinstance(v, bool | int | float | np.number | Decimal)).all():
                column = column.where(column.notna(), np.nan).astype("float64")
            elif present.map(lambda v: isinstance(v, date)).all():
                column = without_zone(pd.to_datetime(column))
            else:
                column = column.where(column.notna())
        found[name] = column
    return pd.DataFrame(found, index=frame.index)


def _numbers(column: pd.Series) -> pd.Series:
    """A column of numbers, also if all are missing and the dtype does not tell."""
    return pd.Series(np.nan, column.index) if column.isna().all() else column


def _dates(column: pd.Series) -> pd.Series:
    """A column of dates, also if all are missing and the dtype does not tell."""
    return pd.Series(pd.NaT, column.index, "datetime64[us]") if column.isna().all() else column


def _check_names(frame: pd.DataFrame) -> None:
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"The table has several columns called '{twice[0]}'.")
    others = [name for name in frame.columns if not isinstance(name, str)]
    if others:
        raise ValueError(
            f"Names of columns must be texts, but one is {others[0]!r}: rename it, or all with "
            "frame.columns.astype(str)."
        )


def _range(name: str, values: pd.Series) -> dict | None:
    """Median and range of the training rows; None if they have one value only."""
    _check_finite(name, values)
    missing = bool(values.isna().any())
    low, high = float(values.min()), float(values.max())
    if low == high and not missing:
        return None
    return {"median": float(values.median()), "low": low, "high": high, "missing": missing}


def _kept(column: pd.Series) -> dict | None:
    counts = as_texts(column).value_counts()
    # The order of equally frequent texts must not depend on the order of the rows.
    counts = counts.sort_index().sort_values(ascending=False, kind="stable")
    kept = counts
    if len(counts) > _FEW_CATEGORIES:
        kept = counts.loc[counts >= _ROWS_OF_CATEGORY].iloc[:_MOST_CATEGORIES]
    missing, other = bool(column.isna().any()), len(kept) < len(counts)
    if len(kept) + missing + other < 2:
        return None
    return {"kept": kept.index.tolist(), "other": other, "missing": missing}


def _parts(dates: pd.Series) -> Iterator[tuple[str, pd.Series]]:
    at = dates.dt
    yield "year", at.year.astype("float64")
    yield "month", at.month.astype("float64")
    yield "day of year", at.day_of_year.astype("float64")
    yield "weekday", at.day_of_week.astype("float64")
    yield "hour", (at.hour + at.minute / 60).astype("float64")


def _check_finite(name: str, values: pd.Series) -> None:
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise ValueError(
            f"Column '{name}' is infinite in {_rows(infinite)}: remove or correct them."
        )


def _unlike(name: str, values: pd.Series, seen: Mapping) -> Iterator[str]:
    reach = _FAR * (seen["high"] - seen["low"])
    far = values.loc[(values < seen["low"] - reach) | (values > seen["high"] + reach)]
    if len(far):
        yield (
            f"'{name}' lies far outside the training rows, which are from {seen['low']:g} to "
            f"{seen['high']:g}, in {_rows(len(far))} (such as {far.iat[0]:g})."
        )
    missing = int(values.isna().sum())
    if missing and not seen["missing"]:
        yield (
            f"'{name}' is missing in {_rows(missing)}, as it never was in the training rows: the "
            f"median {seen['median']:g} stands for it."
        )


def _rows(number: int) -> str:
    return f"{number} row{'s' * (number != 1)}"
