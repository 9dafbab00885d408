"""Kinds of arrays that scikit-learn takes for numbers, although they are none."""

from typing import Any

import numpy as np

__all__ = ["check_kind", "check_unmasked"]

_REMEDIES = {
    "M": "dates: make numbers of them, such as days since the first one (for the inputs, "
    "pyro_dgp.table.Columns does)",
    "m": "durations: divide them by a unit, such as numpy.timedelta64(1, 's')",
}


def check_kind(name: str, values: Any) -> None:
    """
    :param str name: Name of the argument, for the error message.
    :param values: An array, a data frame, a column of one, or a list.
    :raises ValueError: If there are masked entries, or dates or durations, of which scikit-learn
        takes the number of units, which differ (nanoseconds, microseconds, days).
    """
    check_unmasked(name, values)
    for dtype in values.dtypes if hasattr(values, "columns") else [getattr(values, "dtype", None)]:
        kind = _REMEDIES.get(getattr(dtype, "kind", ""))
        if kind is not None:
            raise ValueError(f"{name} holds {kind}.")


def check_unmasked(name: str, values: Any) -> None:
    """
    :param str name: Name of the argument, for the error message.
    :param values: An array, perhaps a masked one.
    :raises ValueError: If entries are masked.
    """
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} has masked entries, which are no values: leave their rows out, or fill them."
        )
