"""Names of the classes of a target."""

import re
from collections.abc import Collection, Sequence

import numpy as np

from pyro_dgp.table.packages import pd

__all__ = ["EXACT", "as_classes", "as_text", "as_texts", "classes_of", "labels", "without"]

# Largest number of classes; more are probably names, or numbers that were not recognised.
_MOST_CLASSES = 50
#: From here on, not all whole numbers are floats.
EXACT = 2**53


def as_text(value: object) -> str:
    """A value as it would stand in a text file."""
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < EXACT
        return str(int(value)) if whole else f"{value:.15g}"
    return str(value)


def as_texts(column: pd.Series) -> pd.Series:
    """A column as texts; NaN where missing.

    :raises ValueError: If it has codes of so many digits that different ones are equal as floats.
    """
    long = column.map(lambda v: isinstance(v, float) and EXACT <= abs(v) < np.inf)
    if long.any():
        raise ValueError(
            f"Column '{column.name}' has codes of 16 digits or more, such as "
            f"{next(iter(column[long])):.0f}, as floating-point numbers, of which the last digits "
            "are lost: write them as texts."
        )
    return column.map(as_text).where(column.notna()).astype(object)


def without(column: pd.Series, missing: Collection[str]) -> pd.Series:
    """A column of texts; NaN for those that stand for missing values."""
    return column.mask(column.isin([*missing])) if missing else column


def classes_of(target: pd.Series) -> list[str]:
    """The classes of a target, in numeric order if all are numbers, otherwise alphabetically.

    :raises ValueError: If there are more than 50.
    """
    values = as_texts(target).dropna().unique()
    if len(values) > _MOST_CLASSES:
        some = ", ".join(f"'{v}'" for v in sorted(values)[:3])
        raise ValueError(
            f"The target '{target.name}' has {len(values)} different texts such as {some}: more "
            f"than {_MOST_CLASSES} are no classes. It must hold numbers, or fewer texts."
        )
    try:
        return sorted(values.tolist(), key=float)
    except ValueError:
        return sorted(values.tolist())


def as_classes(column: pd.Series, classes: Collection[str]) -> pd.Series:
    """Texts in the spelling of the classes: 1.0 becomes 1 if that is a class, or 1 becomes 1.0."""
    spelling = {_whole(c): c for c in classes} | {c: c for c in classes}
    return column.map(
        lambda text: spelling.get(text, spelling.get(_whole(text), text)), na_action="ignore"
    )


def labels(texts: pd.Series, classes: Sequence[str]) -> np.ndarray:
    """Classes as whole numbers, in whose order they are then, or as texts; NaN if missing."""
    if not all(_plain_number(c) == c and c.lstrip("-").isdigit() for c in classes):
        return texts.to_numpy()
    found = texts.map(lambda t: int(t) if t.lstrip("-").isdigit() else t, na_action="ignore")
    return found.to_numpy(dtype=int if texts.isin(classes).all() else object)


def _whole(text: str) -> str:
    """A whole number without its decimals; other texts as they are."""
    match = re.fullmatch(r"(-?\d+)\.0*", text)
    return match[1] if match else text


def _plain_number(text: str) -> str:
    """A number in its shortest form; other texts as they are."""
    try:
        return f"{float(text):.15g}"
    except ValueError:
        return text
