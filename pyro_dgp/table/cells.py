"""From texts in cells to numbers, dates and categories."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyro_dgp.table.packages import pd
from pyro_dgp.table.reading import MISSING, Table

__all__ = ["Conventions", "bad_cells", "typed"]

# Of a column of numbers, at least this share of the cells are numbers; the others are mistakes.
_NEARLY_ALL = 0.9
# Fewer different numbers than this may be codes, among which a text is one more.
_FEW_CODES = 10
_NUM_NAMED = 5

_CURRENCY = r"[$€£¥₹₽₩]|EUR|USD|GBP|CHF|JPY|SEK|NOK|DKK|PLN|CZK|kr\.?|Fr\."
_NUMBER = re.compile(
    rf"(?P<open>\()?(?P<sign>[+-])?\s*(?P<before>{_CURRENCY})?\s*(?P<sign2>[+-])?"
    r"(?P<body>[0-9.,'’ ]*[0-9][.,]?(?:[eE][+-]?[0-9]+)?)"
    rf"\s*(?P<after>{_CURRENCY}|%|‰)?(?P<close>\))?"
)
# Thousands set apart, or digits; decimals; an exponent. By the decimal mark.
_BODY = {
    mark: re.compile(
        rf"(?:[1-9]\d{{0,2}}(?:[{other}]\d{{3}})+|[1-9]\d{{0,2}}(?:['’ ]\d{{3}})+|\d*)"
        rf"(?:[{mark}]\d*)?(?:[eE].*)?"
    )
    for mark, other in (".,", ",.")
}
_TIME = (
    r"(?:[T ]+(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2})(?:[.,]\d+)?)?\s*(?:Z|[+-]\d\d:?\d\d)?)?"
)
_DATE = re.compile(
    rf"(?:(?P<y>\d{{4}})(?P<s>[-/.])(?P<m>\d{{1,2}})(?P=s)(?P<d>\d{{1,2}})"
    rf"|(?P<a>\d{{1,2}})(?P<t>[-/.])(?P<b>\d{{1,2}})(?P=t)(?P<z>\d{{4}})){_TIME}"
)


@dataclass
class Conventions:
    """How numbers and dates are written. Plain data, to be kept with a model.

    :param str decimal: The decimal mark, "." or ","; None if nothing has told.
    :param str dates: "dmy" for days first and "mdy" for months first, as in 3/4/2021; or None.
    :param list missing: What means that a number or a date is missing, beside empty cells and
        NA, NaN, null, none, ?, - and the like.
    """

    decimal: str | None = None
    dates: str | None = None
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"--decimal must be . or , but it is {self.decimal!r}.")
        if self.dates not in (None, "dmy", "mdy"):
            raise ValueError(f"--dates must be dmy or mdy, but it is {self.dates!r}.")

    def means_missing(self, text: str) -> bool:
        return text.lower() in MISSING or text in self.missing


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
    """Columns of numbers (float64), of dates, and of texts (object), each NaN where missing.

    :param Conventions conventions: Given by the user; what is None is found.
    :param Conventions usual: Those of another table, which decide where this one does not tell.
    :param numeric: Columns that must hold numbers, dates and texts; what others hold is found.
    :param dates: See ``numeric``.
    :param categorical: See ``numeric``.
    :param lenient: Numeric columns of which a cell that holds no number is missing.
    :returns: The columns, the conventions found, and notes.
    :raises ValueError: If a cell of a column of numbers holds none, or numbers or dates may be read
        in two ways.
    """
    kinds = dict.fromkeys(numeric, "number") | dict.fromkeys(dates, "date")
    kinds |= dict.fromkeys(categorical, "text") | dict.fromkeys(lenient, "lenient")
    unknown = [name for name in kinds if name not in table.frame.columns and name not in lenient]
    if unknown:
        raise ValueError(
            f"There is no column '{unknown[0]}'. The columns are {', '.join(table.frame.columns)}."
        )
    texts = {name: _texts(column) for name, column in table.frame.items() if _holds_texts(column)}
    distinct = {
        name: [t for t in column.unique() if t and not conventions.means_missing(t)]
        for name, column in texts.items()
    }
    usual = usual or Conventions()
    readers = {
        name: _Reader(name, values, conventions)
        for name, values in distinct.items()
        if kinds.get(name) not in ("text", "date")
    }
    decimal = conventions.decimal or _decimal(table, readers.values(), usual.decimal)
    order = conventions.dates or usual.dates
    found, notes, affixes = {}, [], {}
    for name, column in table.frame.items():
        kind = kinds.get(name)
        if name not in texts:
            found[name] = _of_dtype(name, column, kind)
            continue
        column, values = texts[name], distinct[name]
        if kind in (None, "date"):
            parsed, order = _dates(name, values, order, conventions.dates or usual.dates)
            if parsed is not None:
                found[name] = column.map(parsed).astype("datetime64[us]")
                continue
            if kind == "date":
                raise ValueError(_bad(table, name, column, values, "dates", _is_date))
        if kind == "text" or not values:
            found[name] = column.where(column != "").astype(object)
            continue
        numbers = readers[name].numbers(decimal)
        bad = [v for v in values if v not in numbers]
        nearly = len(numbers) > _FEW_CODES and _share(column, numbers, conventions) >= _NEARLY_ALL
        if bad and kind != "lenient" and (kind == "number" or nearly):
            raise ValueError(_bad(table, name, column, values, "numbers", numbers.__contains__))
        if bad and kind != "lenient":
            found[name] = column.where(column != "").astype(object)
            continue
        found[name] = column.map(numbers).astype("float64")
        if readers[name].affixes:
            affixes[name] = readers[name].affixes.pop()
    if decimal == "," and not conventions.decimal:
        notes.append("Numbers have decimal commas.")
    for affix in sorted(set(affixes.values())):
        where = ", ".join(name for name, own in affixes.items() if own == affix)
        notes.append(f"The sign {affix} of the numbers in {where} is left out.")
    frame = pd.DataFrame(found, index=table.frame.index)
    return frame, Conventions(decimal, order, list(conventions.missing)), notes


def _holds_texts(column: pd.Series) -> bool:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.categories.dtype == object or _is_string(column.cat.categories)
    if column.dtype != object:
        return _is_string(column)
    return column.dropna().map(type).eq(str).any()


def _is_string(column) -> bool:
    return pd.api.types.is_string_dtype(column) and column.dtype != object


def _texts(column: pd.Series) -> pd.Series:
    """With plain spaces and minus signs, "" where missing."""
    texts = column.astype(object).where(column.notna(), "").astype(str)
    return (
        texts.str.strip()
        .str.replace("\u2212", "-")
        .str.replace("[\u00a0\u202f\u2009]", " ", regex=True)
    )


def _of_dtype(name: str, column: pd.Series, kind: str | None) -> pd.Series:
    """A column that the file says the kind of."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if kind == "text":
        texts = column.map(lambda v: f"{v:.15g}" if isinstance(v, float) else str(v))
        return texts.where(column.notna()).astype(object)
    if pd.api.types.is_datetime64_any_dtype(column):
        return (column.dt.tz_localize(None) if column.dt.tz is not None else column).astype(
            "datetime64[us]"
        )
    if pd.api.types.is_timedelta64_dtype(column):
        return column.dt.total_seconds()
    try:  # numbers, truth values, decimals, also with missing ones among them
        return pd.to_numeric(column.astype(object).where(column.notna(), np.nan)).astype("float64")
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


def _share(column: pd.Series, numbers: dict, conventions: Conventions) -> float:
    present = column[(column != "") & ~column.map(conventions.means_missing)]
    return float(present.isin(numbers.keys()).mean()) if len(present) else 0.0


# Numbers.


class _Reader:
    """What the texts of a column are as numbers, by the decimal mark."""

    def __init__(self, name: str, values: Sequence[str], conventions: Conventions) -> None:
        self.name, self.values = name, values
        self.affixes: set[str] = set()
        truth = {v.lower() for v in values} <= {"true", "false"}
        self._truth = {v: float(v.lower() == "true") for v in values} if truth else None
        # All alike: of 5% and 5, who knows what the second is?
        matches = {v: m for v in values if (m := _NUMBER.fullmatch(v)) and _is_whole(m)}
        signs = {v: m["before"] or m["after"] for v, m in matches.items()}
        kinds = {sign for sign in signs.values() if sign}
        mixed = len(kinds) > 1 or ("%" in kinds and None in signs.values())
        if mixed:
            matches = {v: m for v, m in matches.items() if not signs[v]}
        elif kinds:
            self.affixes = kinds
        self._matches = matches

    def numbers(self, decimal: str) -> dict[str, float]:
        """By text, of those that are numbers."""
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


def _decimal(table: Table, readers: Iterable[_Reader], usual: str | None) -> str:
    """The mark by which all columns of numbers are such, if there is one."""
    telling, doubtful = {}, None
    for reader in readers:
        point, comma = (reader.numbers(mark) for mark in ".,")
        least = _NEARLY_ALL * len(reader.values)
        if max(len(point), len(comma)) < max(least, 1):
            continue
        if len(point) != len(comma):
            telling["." if len(point) > len(comma) else ","] = reader
        elif point != comma:
            doubtful = doubtful or (reader.name, next(v for v in point if point[v] != comma[v]))
    if len(telling) == 1:
        return next(iter(telling))
    if telling:
        names = " and ".join(f"'{reader.name}'" for reader in telling.values())
        raise ValueError(
            f"Of the columns {names}, one has decimal points and one has commas; give --decimal."
        )
    if doubtful and usual is None and table.separator not in (None, ","):
        name, example = doubtful
        raise ValueError(
            f"Column '{name}' has numbers such as {example}, of which it is not clear whether "
            "thousands or decimals are set apart; give --decimal . or --decimal ,"
        )
    return usual or "."


# Dates.


def _is_date(value: str) -> bool:
    return _DATE.fullmatch(value) is not None


def _dates(
    name: str, values: Sequence[str], order: str | None, usual: str | None
) -> tuple[dict | None, str | None]:
    """Dates by text, and the order of days and months; None if the texts are no dates."""
    matches = {value: _DATE.fullmatch(value) for value in values}
    if not values or not all(matches.values()):
        return None, order
    ambiguous = [m for m in matches.values() if m["a"]]
    own = order
    if ambiguous:
        if all(m["t"] == "." for m in ambiguous) or any(int(m["a"]) > 12 for m in ambiguous):
            own = "dmy"
        elif any(int(m["b"]) > 12 for m in ambiguous):
            own = "mdy"
        elif all(m["a"] == m["b"] for m in ambiguous):
            own = order or "dmy"
        if own is None:
            raise ValueError(
                f"Column '{name}' has dates such as {values[0]}, of which it is not clear whether "
                "days or months come first; give --dates dmy or --dates mdy, or --drop it."
            )
        if any(m["t"] != "." for m in ambiguous):
            order = own
    found = {}
    for value, m in matches.items():
        day, month = (m["a"], m["b"]) if own == "dmy" else (m["b"], m["a"])
        year, month, day = (m["y"], m["m"], m["d"]) if m["y"] else (m["z"], month, day)
        try:
            found[value] = pd.Timestamp(
                int(year), int(month), int(day), int(m["H"] or 0), int(m["M"] or 0),
                int(m["S"] or 0),
            )  # fmt: skip
        except ValueError:
            return None, order
    return found, order


# Messages.


def bad_cells(table: Table, rows: np.ndarray, values: Sequence) -> str:
    """Some cells by their line in the file."""
    named = [f"line {table.lines[i]} '{values[i]}'" for i in rows[:_NUM_NAMED]]
    more = f" and {len(rows) - _NUM_NAMED} more" if len(rows) > _NUM_NAMED else ""
    return ", ".join(named) + more


def _bad(table: Table, name: str, column: pd.Series, values, kind: str, is_good) -> str:
    bad = {v for v in values if not is_good(v)}
    rows = np.flatnonzero(column.isin(bad))
    tokens = " ".join(f"'{v}'" for v in sorted(bad)[:3])
    return (
        f"Column '{name}' holds {kind}, but not in {len(rows)} of {len(column)} rows: "
        f"{bad_cells(table, rows, column.to_numpy())}. Correct them, say that they mean missing "
        f"(--missing {tokens}), or take the column for texts (--categorical '{name}')."
    )
