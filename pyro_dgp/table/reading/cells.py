"""Conversion of the texts in cells to numbers, dates and categories."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import numpy as np

from pyro_dgp.table.frames import named_columns, numeric, without_zone
from pyro_dgp.table.labels import as_text, as_texts
from pyro_dgp.table.packages import pd
from pyro_dgp.table.reading.dates import DATE, date_of
from pyro_dgp.table.reading.raw import MISSING, Table

__all__ = ["Conventions", "bad_cells", "typed"]

# A column whose cells are numbers, or dates, in more than this share is a column of them with
# errors.
_MOSTLY = 0.5
# A column determines the decimal mark if this share of its texts are numbers, and if the share of
# cells that are numbers by one mark only is larger than the second value.
_NEARLY_ALL, _MISTAKES = 0.9, 0.05
# Fewer different numbers than this may be codes, and a text among them another code.
_FEW_CODES = 10
_NUM_NAMED = 5

_PLAIN = re.compile(r"[+-]?\d+(?:[.,]\d*)?")
_CURRENCY = r"[$€£¥₹₽₩]|EUR|USD|GBP|CHF|JPY|SEK|NOK|DKK|PLN|CZK|kr\.?|Fr\."
_NUMBER = re.compile(
    rf"(?P<open>\()?(?P<sign>[+-])?\s*(?P<before>{_CURRENCY})?\s*(?P<sign2>[+-])?"
    r"(?P<body>[0-9.,'’ ]*[0-9][.,]?(?:[eE][+-]?[0-9]+)?)"
    rf"\s*(?P<after>{_CURRENCY}|%|‰)?(?P<close>\))?"
)
# Digits, perhaps with thousands separators; decimals; an exponent. By the decimal mark.
_BODY = {
    mark: re.compile(
        rf"(?:[1-9]\d{{0,2}}(?:[{other}]\d{{3}})+|[1-9]\d{{0,2}}(?:['’ ]\d{{3}})+|\d*)"
        rf"(?:[{mark}]\d*)?(?:[eE].*)?"
    )
    for mark, other in (".,", ",.")
}


@dataclass
class Conventions:
    """How numbers and dates are written; plain data, saved with a model.

    :param str decimal: Decimal mark, "." or ","; None if unknown.
    :param str dates: Order in dates such as 3/4/2021: "dmy" for days first, "mdy" for months first;
        None if unknown.
    :param list missing: Texts for missing numbers or dates, besides empty cells and NA, NaN, null,
        none, ?, - and the like.
    :param dict signs: Signs of units, such as % or €, by columns.
    """

    decimal: str | None = None
    dates: str | None = None
    missing: list[str] = field(default_factory=list)
    signs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"--decimal must be . or , but it is {self.decimal!r}.")
        if self.dates not in (None, "dmy", "mdy"):
            raise ValueError(f"--dates must be dmy or mdy, but it is {self.dates!r}.")

    def means_missing(self, text: str) -> bool:
        """Whether a text stands for a missing value."""
        return text.lower() in MISSING or text in self.missing

    @property
    def missing_numbers(self) -> list[float]:
        """Entries of ``missing`` that are numbers, with either decimal mark."""
        return [float(m.replace(",", ".")) for m in self.missing if _PLAIN.fullmatch(m)]


def typed(
    table: Table,
    conventions: Conventions,
    *,
    usual: Conventions | None = None,
    numeric: Iterable[str] = (),
    dates: Iterable[str] = (),
    categorical: Iterable[str] = (),
    lenient: Iterable[str] = (),
) -> tuple[pd.DataFrame, Conventions, list[str]]:
    """Columns of numbers (float64), of dates, and of texts (object), NaN where missing.

    Columns of the dtype "category" become texts, even if these are codes, but not if these are
    dates, unless named otherwise.

    :param Table table: The table.
    :param Conventions conventions: Conventions given by the user; None means to be recognised.
    :param Conventions usual: Conventions of another table, used where this one is ambiguous.
    :param numeric: Names of columns that must contain numbers; other kinds are recognised.
    :param dates: Names of columns that must contain dates.
    :param categorical: Names of columns that must contain texts.
    :param lenient: Names of numeric columns in which a cell without a number is missing.
    :returns: The columns, the conventions found, and notes.
    :raises ValueError: If a cell of a numeric column is no number, or numbers or dates can be read
        in two ways.
    """
    numeric, dates, categorical = list(numeric), list(dates), list(categorical)
    columns = named_columns(table.frame)
    kinds = {n: "text" for n, c in columns if _holds_labels(c.dtype)}
    kinds |= dict.fromkeys(numeric, "number") | dict.fromkeys(dates, "date")
    kinds |= dict.fromkeys(categorical, "text") | dict.fromkeys(lenient, "lenient")
    unknown = [name for name in kinds if name not in table.frame.columns and name not in lenient]
    if unknown:
        raise ValueError(
            f"There is no column '{unknown[0]}'. The columns are {', '.join(table.frame.columns)}."
        )
    both = sorted({*numeric} & {*categorical})
    if both:
        raise ValueError(f"Column '{both[0]}' cannot be numeric and categorical at once.")
    given, usual = conventions, usual or Conventions()
    conventions = replace(given, missing=[*given.missing, *usual.missing])
    texts = {n: _Texts(n, c, conventions) for n, c in named_columns(table.frame) if _holds_texts(c)}
    readers = {
        name: _Reader(column)
        for name, column in texts.items()
        if kinds.get(name) not in ("text", "date")
    }
    told = conventions.decimal or _decimal(table, readers.values(), usual.decimal)
    decimal = told or usual.decimal or "."
    order = conventions.dates
    found, notes, signs = {}, [], {}
    for name, column in named_columns(table.frame):
        kind = kinds.get(name)
        if name not in texts:
            found[name] = _of_dtype(name, column, kind, conventions)
            continue
        text = texts[name]
        if kind in (None, "date") and text.values:
            parsed, order = _dates(table, text, order, usual.dates, kind == "date")
            if parsed is not None:
                found[name] = text.cells.map(parsed).astype("datetime64[us]")
                continue
        if kind == "date":
            found[name] = pd.Series(pd.NaT, column.index, "datetime64[us]")
            continue
        if kind == "text" or (kind is None and not text.values and text.exact.isna().all()):
            found[name] = text.as_texts()
            continue
        numbers = readers[name].numbers(decimal)
        bad = [v for v in text.values if v not in numbers]
        share = text.share(numbers)
        mostly = share >= _MOSTLY and len(numbers) + text.exact.nunique() > _FEW_CODES
        if bad and kind != "lenient" and (kind == "number" or mostly):
            raise ValueError(_bad(table, text, "numbers", numbers, kind is None))
        if bad and kind != "lenient":
            if share >= _MOSTLY:
                some = ", ".join(f"'{v}'" for v in bad[:3])
                notes.append(
                    f"Column '{name}' is taken for texts, because of {some} beside numbers "
                    "(--missing, --numeric)."
                )
            found[name] = text.as_texts()
            continue
        values = text.cells.map(numbers).astype("float64")
        found[name] = _without(text.exact.where(text.exact.notna(), values), conventions)
        if readers[name].affixes:
            signs[name] = next(iter(readers[name].affixes))
    if decimal == "," and not given.decimal:
        notes.append("Numbers have decimal commas.")
    seen = {name for name, text in texts.items() if text.values}
    notes += _notes_of_signs(signs, {n: s for n, s in usual.signs.items() if n in seen})
    frame = pd.DataFrame(found, index=table.frame.index)
    return frame, replace(conventions, decimal=told, dates=order, signs=signs), notes


def _notes_of_signs(signs: dict[str, str], usual: dict[str, str]) -> Iterator[str]:
    for sign in sorted(set(signs.values())):
        where = ", ".join(name for name, own in signs.items() if own == sign)
        yield f"The sign {sign} of the numbers in {where} is left out."
    for name, sign in usual.items():
        if signs.get(name) != sign:
            now = f"the sign {signs[name]}" if name in signs else "no such sign"
            yield (
                f"The numbers of '{name}' had the sign {sign} in the training rows, and have {now} "
                "here: are they in the same unit?"
            )


class _Texts:
    """The cells of a column of texts, which may contain numbers of a spreadsheet.

    :param str name: Name of the column.
    :param pandas.Series cells: Texts with plain spaces and minus signs, "" where missing.
    :param pandas.Series exact: Numbers of a spreadsheet among them, NaN elsewhere.
    :param list values: The different texts that are neither missing nor such numbers.
    """

    def __init__(self, name: str, column: pd.Series, conventions: Conventions) -> None:
        self.name, self.conventions = name, conventions
        column = column.astype(object)
        is_number = column.map(
            lambda v: isinstance(v, int | float | Decimal | np.number) and not isinstance(v, bool)
        )
        self.exact = column.where(is_number & column.notna()).astype("float64")
        texts = column.where(column.notna(), "").map(as_text)
        texts = texts.str.strip().str.replace("\u2212", "-")
        self.cells = texts.str.replace("[\u00a0\u202f\u2009]", " ", regex=True)
        values = self.cells[self.exact.isna()].unique()
        self.values = [t for t in values if t and not conventions.means_missing(t)]

    def as_texts(self) -> pd.Series:
        return self.cells.where(self.cells != "").astype(object)

    def share(self, good: Container[str]) -> float:
        """Share of the cells that are not missing which are numbers, or in ``good``."""
        present = self.cells[(self.cells != "") & ~self.cells.map(self.conventions.means_missing)]
        if not len(present):
            return 0.0
        return float(
            (present.map(good.__contains__) | self.exact.loc[present.index].notna()).mean()
        )


def _holds_labels(dtype: object) -> bool:
    """Whether a column's values are labels; dates are kept as categories to save memory."""
    if not isinstance(dtype, pd.CategoricalDtype):
        return False
    return not pd.api.types.is_datetime64_any_dtype(dtype.categories)


def _holds_texts(column: pd.Series) -> bool:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.categories.dtype == object or _is_string(column.cat.categories)
    if column.dtype != object:
        return _is_string(column)
    return column.dropna().map(type).eq(str).any()


def _is_string(column: pd.Series | pd.Index) -> bool:
    return pd.api.types.is_string_dtype(column) and column.dtype != object


def _without(numbers: pd.Series, conventions: Conventions) -> pd.Series:
    """Numbers, NaN for those that stand for missing values."""
    return numbers.mask(numbers.isin(conventions.missing_numbers))


def _of_dtype(
    name: str, column: pd.Series, kind: str | None, conventions: Conventions
) -> pd.Series:
    """A column whose kind is known from the file."""
    if kind == "text":
        return as_texts(column.astype(object))
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object).infer_objects()
    if column.isna().all() and kind == "date":
        return pd.Series(pd.NaT, column.index, "datetime64[us]")
    if pd.api.types.is_datetime64_any_dtype(column):
        return without_zone(column)
    if pd.api.types.is_timedelta64_dtype(column):
        return column.dt.total_seconds()
    try:  # numbers, truth values or decimals, some of them perhaps missing
        numbers = numeric(column.astype(object).where(column.notna(), np.nan))
        return _without(numbers.astype("float64"), conventions)
    except (TypeError, ValueError):
        pass
    try:
        return pd.to_datetime(column).astype("datetime64[us]")
    except (TypeError, ValueError):
        held = type(column.dropna().iloc[0]).__name__
        raise ValueError(
            f"Column '{name}' holds values of the kind {held}, neither numbers, texts nor dates: "
            "leave it out with --drop."
        ) from None


# Numbers.


class _Reader:
    """Reads the texts of a column as numbers, by the decimal mark."""

    def __init__(self, texts: "_Texts") -> None:
        self.name, self.values = texts.name, (values := texts.values)
        self.affixes: set[str] = set()
        truth = {v.lower() for v in values} <= {"true", "false"}
        self._truth = {v: float(v.lower() == "true") for v in values} if truth else None
        # Signs must be the same in all cells: beside 5%, the meaning of 5 is unclear.
        matches = {v: m for v in values if (m := _NUMBER.fullmatch(v)) and _is_whole(m)}
        signs = {v: m["before"] or m["after"] for v, m in matches.items()}
        kinds = {sign for sign in signs.values() if sign}
        mixed = len(kinds) > 1 or (bool(kinds & {"%", "‰"}) and None in signs.values())
        if mixed:
            matches = {v: m for v, m in matches.items() if not signs[v]}
        elif kinds:
            self.affixes = kinds
        self._matches = matches

    def numbers(self, decimal: str) -> dict[str, float]:
        """The numbers by text; texts that are no numbers are left out."""
        if self._truth is not None:
            return self._truth
        thousands = ",.'’ ".replace(decimal, "")
        found = {}
        for value, match in self._matches.items():
            body = match["body"].strip()
            if not _BODY[decimal].fullmatch(body):
                continue
            plain = body.translate({ord(mark): None for mark in thousands}).replace(decimal, ".")
            try:
                number = float(plain)
            except ValueError:
                continue
            negative = match["open"] or "-" in (match["sign"], match["sign2"])
            if np.isfinite(number):
                found[value] = -number if negative else number
        return found


def _is_whole(match: re.Match) -> bool:
    one_sign = not (match["sign"] and match["sign2"]) and not (match["before"] and match["after"])
    return one_sign and bool(match["open"]) == bool(match["close"])


def _decimal(table: Table, readers: Iterable[_Reader], usual: str | None) -> str | None:
    """The decimal mark by which all columns of numbers can be read; None if both can."""
    telling, doubtful = {}, None
    for reader in readers:
        point, comma = (reader.numbers(mark) for mark in ".,")
        if (not point and not comma) or max(len(point), len(comma)) < _NEARLY_ALL * len(
            reader.values
        ):
            continue
        differing = [v for v in point.keys() & comma.keys() if point[v] != comma[v]]
        more, less = (point, comma) if len(point) > len(comma) else (comma, point)
        # A few cells may be errors.
        if len(more) - len(less) > _MISTAKES * len(differing):
            telling["." if more is point else ","] = reader
        elif differing:
            doubtful = doubtful or (reader.name, min(differing))
    if len(telling) == 1:
        return next(iter(telling))
    if telling:
        names = " and ".join(f"'{reader.name}'" for reader in telling.values())
        raise ValueError(
            f"Of the columns {names}, one has decimal points and one has commas; give --decimal."
        )
    if doubtful is None:
        return None
    name, example = doubtful
    # Between commas, numbers have points unless they are quoted.
    of_points = table.separator == "," and "," not in example
    if (usual == ",") if of_points else (usual is None and table.separator != ","):
        raise ValueError(
            f"Column '{name}' has numbers such as {example}, of which it is not clear whether "
            "thousands or decimals are set apart; give --decimal . or --decimal ,"
        )
    return None


# Dates.


def _dates(
    table: Table, text: _Texts, order: str | None, usual: str | None, must: bool
) -> tuple[dict | None, str | None]:
    """Dates by text, and the order of days and months; None if the texts are no dates.

    :param str order: Order given by the user or found in other columns, or None.
    :param str usual: Order in the training rows, or None.
    :param bool must: Whether the column must contain dates.
    """
    matches = {v: m for v in text.values if (m := DATE.fullmatch(v))}
    if not must and len(matches) < max(_MOSTLY * len(text.values), 1):
        return None, order
    numbers = [m for m in matches.values() if m["a"]]
    ordered = [m for m in numbers if m["t"] != "."]  # with points, days always come first
    late = {"dmy": [m for m in ordered if int(m["a"]) > 12],
            "mdy": [m for m in ordered if int(m["b"]) > 12]}  # fmt: skip
    expected = order or usual
    own = expected or next((o for o in late if late[o]), None)
    against = late["mdy" if own == "dmy" else "dmy"] if own else []
    if against and expected and not late[expected]:
        raise ValueError(
            f"Column '{text.name}' has dates such as {against[0][0]}, in which the day does not "
            f"stand where --dates {expected} has it{'' if order else ', as in the training rows'}."
        )
    if ordered and own is None:
        if any(m["a"] != m["b"] for m in ordered):
            raise ValueError(
                f"Column '{text.name}' has dates such as {ordered[0][0]}, of which it is not clear "
                "whether days or months come first; give --dates dmy or --dates mdy."
            )
        own = "dmy"
    found = {}
    for value, m in matches.items():
        first = "dmy" if m["t"] == "." and order is None else own or order or "dmy"
        try:
            found[value] = date_of(m, first == "dmy")
        except ValueError:  # no such day
            continue
    if len(found) < len(text.values):
        if not must and len(found) < _MOSTLY * len(text.values):
            return None, order
        raise ValueError(_bad(table, text, "dates", found, not must))
    return found, own if ordered else order


# Messages.


def bad_cells(table: Table, rows: np.ndarray, values: Sequence) -> str:
    """Some cells with their line numbers in the file."""
    named = [f"line {table.lines[i]} '{values[i]}'" for i in rows[:_NUM_NAMED]]
    more = f" and {len(rows) - _NUM_NAMED} more" if len(rows) > _NUM_NAMED else ""
    return ", ".join(named) + more


def _bad(table: Table, text: _Texts, kind: str, good: Container[str], recognised: bool) -> str:
    bad = {v for v in text.values if v not in good}
    rows = np.flatnonzero(text.cells.isin(bad))
    tokens = " ".join(f"'{v}'" for v in sorted(bad)[:3])
    remedy = f"Correct them, or say that they mean missing (--missing {tokens})."
    if recognised:  # not what an option or the training rows say
        remedy = (
            f"Correct them, say that they mean missing (--missing {tokens}), or take the column "
            f"for texts (--categorical '{text.name}')."
        )
    return (
        f"Column '{text.name}' holds {kind}, but not in {len(rows)} of {len(text.cells)} rows: "
        f"{bad_cells(table, rows, text.cells.to_numpy())}. {remedy}"
    )
