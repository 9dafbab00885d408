"""Checks of arguments that several modules share."""

import operator

__all__ = ["check_integer"]


def check_integer(name: str, value, minimum: int) -> int:
    """The value as an ``int``; NumPy's and torch's integers pass, bools and floats do not.

    :raises ValueError: If it is not an integer of at least ``minimum``; names the argument.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, but it is {value!r}.") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, but it is {number}.")
    return number
