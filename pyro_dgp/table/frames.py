"""From a file with a table to arrays of numbers, and what it takes to do the same tomorrow."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

try:
    import pandas as pd
    from sklearn.preprocessing import OneHotEncoder
except ImportError as error:
    raise ImportError(
        "Tables need pandas and scikit-learn: pip install 'pyro_dgp[table]'."
    ) from error

__all__ = ["Columns", "read_table"]

# More categories than this are names of rows, or ask for an encoding of their own.
_MOST_CATEGORIES = 200


def read_table(path: str | Path) -> pd.DataFrame:
    """A table from a CSV file (also compressed) or a Parquet file, by the name's ending.

    :raises ValueError: If it is no table, or an empty one.
    :raises OSError: If it cannot be read.
    :raises ImportError: If Parquet needs a package that is missing.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a CSV or Parquet file.")
    parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        frame = pd.read_parquet(path) if parquet else _read_csv(path)
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'pyro_dgp[table]'.") from error
    except OSError:
        raise
    except Exception as error:  # each parser has its own
        kind = "Parquet" if parquet else "CSV"
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} cannot be read as a {kind} file: {reason}") from error
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"{path} has several columns called '{twice[0]}'.")
    if not len(frame):
        raise ValueError(f"{path} has no rows.")
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    # Without low_memory=False, what a column holds may differ from one part to the next.
    options = {"skipinitialspace": True, "low_memory": False, "index_col": False}
    with warnings.catch_warnings():
        # Rows with more fields than there are names; their rest would be lost.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame = pd.read_csv(path, **options)
    # The names as they stand in the file: pandas would tell equal ones apart by a number.
    names = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0]
    names = names.fillna("").str.strip()
    if len(names) == len(frame.columns):
        frame.columns = names.tolist()
    if "" in frame.columns[1:]:
        raise ValueError("a column other than the first has no name")
    # A first column without a name is the row numbers that pandas writes.
    return frame.loc[:, frame.columns != ""]


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean. Plain data, to be kept with a model.

    :param list targets: Names of the targets.
    :param dict numeric: Medians of the numeric inputs, which stand for missing values.
    :param dict categorical: Categories of the other inputs, the most frequent first.
    :param bool impute: Whether missing values are allowed.
    """

    targets: list[str]
    numeric: dict[str, float]
    categorical: dict[str, list[str]]
    impute: bool = False

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        targets: Sequence[str],
        drop: Sequence[str] = (),
        impute: bool = False,
    ) -> "Columns":
        """Looks at a table.

        Numbers and truth values are numeric, texts are categories.

        :param frame: The table.
        :param targets: Names of the target columns.
        :param drop: Names of columns to leave out.
        :param bool impute: Let medians, and the most frequent category, stand for missing values.
        :raises ValueError: If a name is unknown, a column is of another kind, or no input is left.
        """
        if len({*targets, *drop}) < len(targets) + len(drop):
            raise ValueError("A column is named twice among the targets and those left out.")
        for name in (*targets, *drop):
            if name not in frame.columns:
                raise ValueError(
                    f"There is no column '{name}'. The columns are {', '.join(frame.columns)}."
                )
        numeric: dict[str, float] = {}
        categorical: dict[str, list[str]] = {}
        for name in frame.columns:
            if name in targets or name in drop:
                continue
            values = frame[name]
            if values.isna().all():
                raise ValueError(f"Column '{name}' has no values: leave it out with --drop.")
            if pd.api.types.is_numeric_dtype(values):
                numeric[name] = float(_numbers(frame, name).median())
            elif isinstance(values.dtype, pd.CategoricalDtype) or _is_text(values):
                categories = _texts(values.dropna()).value_counts(sort=True).index.tolist()
                if len(categories) > _MOST_CATEGORIES or (
                    len(categories) > 0.5 * len(frame) and len(frame) > 20
                ):
                    raise ValueError(
                        f"Column '{name}' has {len(categories)} different texts in {len(frame)} "
                        f"rows (such as '{categories[0]}'): leave it out with --drop, or make "
                        "numbers of it."
                    )
                categorical[name] = categories
            else:
                raise ValueError(
                    f"Column '{name}' holds {values.dtype}, neither numbers nor texts: leave it "
                    "out with --drop, or make numbers of it."
                )
        if not numeric and not categorical:
            raise ValueError("No input column is left beside the targets.")
        columns = cls(list(targets), numeric, categorical, impute)
        columns.target_values(frame)
        return columns

    def inputs(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Numbers for a model, [N, D]: numeric columns, then one column a category.

        :raises ValueError: If a column is missing or of another kind, a value is missing that may
            not be, or a category is new.
        """
        absent = [n for n in (*self.numeric, *self.categorical) if n not in frame.columns]
        if absent:
            raise ValueError(f"The table has no column '{absent[0]}', which the model looks at.")
        self._check_missing(frame)
        parts = [pd.DataFrame(index=frame.index)]
        for name, median in self.numeric.items():
            try:
                parts.append(_numbers(frame, name).fillna(median).rename(name))
            except (TypeError, ValueError):
                raise ValueError(f"Column '{name}' must hold numbers, but has texts.") from None
        if self.categorical:
            texts = pd.DataFrame(
                {
                    name: _texts(frame[name]).where(frame[name].notna(), categories[0])
                    for name, categories in self.categorical.items()
                }
            )
            parts.append(self._one_hot(texts))
        found = pd.concat(parts, axis=1)
        twice = found.columns[found.columns.duplicated()]
        if len(twice):
            raise ValueError(
                f"A category makes a column '{twice[0]}', and the table has one: rename it."
            )
        return found

    def target_values(self, frame: pd.DataFrame) -> np.ndarray:
        """Targets, [N], or [N, P] if there are several.

        :raises ValueError: If one is no number, or missing.
        """
        for name in self.targets:
            if name not in frame.columns:
                raise ValueError(f"There is no column '{name}', the target.")
            if not pd.api.types.is_numeric_dtype(frame[name]):
                raise ValueError(f"The target '{name}' must hold numbers, but has texts.")
            missing = int(frame[name].isna().sum())
            if missing:
                raise ValueError(
                    f"The target '{name}' is missing in {missing} of {len(frame)} rows. Remove "
                    "them."
                )
        values = np.column_stack([_numbers(frame, name) for name in self.targets])
        return values[:, 0] if len(self.targets) == 1 else values

    def as_dict(self) -> dict:
        """For ``Columns(**columns)``."""
        return asdict(self)

    def _check_missing(self, frame: pd.DataFrame) -> None:
        missing = frame[[*self.numeric, *self.categorical]].isna()
        counts = missing.sum()
        counts = counts[counts > 0]
        if len(counts) and not self.impute:
            named = ", ".join(f"{name} ({count})" for name, count in counts.items())
            raise ValueError(
                f"Values are missing in {missing.any(axis=1).sum()} of {len(frame)} rows: {named}. "
                "Fit with --impute to put medians and most frequent categories there, leave the "
                "columns out with --drop, or remove the rows from the file."
            )

    def _one_hot(self, texts: pd.DataFrame) -> pd.DataFrame:
        categories = [np.array(sorted(c), dtype=object) for c in self.categorical.values()]
        for name, known in zip(texts, categories, strict=True):
            new = sorted(set(texts[name]) - set(known))
            if new:
                raise ValueError(
                    f"Column '{name}' has values that the model was not fitted to: "
                    f"{', '.join(new[:5])}. It knows {', '.join(known[:10])}."
                )
        encoder = OneHotEncoder(categories=categories, sparse_output=False)
        encoder.set_output(transform="pandas")
        return encoder.fit(texts).transform(texts)


def _numbers(frame: pd.DataFrame, name: str) -> pd.Series:
    return frame[name].astype("float64")


def _texts(values: pd.Series) -> pd.Series:
    """As texts; whole numbers, which missing values turn into floats, without a point."""
    if pd.api.types.is_float_dtype(values):
        return values.map("{:.15g}".format).astype(object)
    return values.astype(str).astype(object)


def _is_text(values: pd.Series) -> bool:
    return pd.api.types.is_string_dtype(values) or (
        values.dtype == object and values.dropna().map(type).isin([str, bool]).all()
    )
