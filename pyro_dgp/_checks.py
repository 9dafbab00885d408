"""Checks of arguments that several modules share."""

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import torch

__all__ = ["check_device", "check_distinct", "check_integer", "check_jobs", "check_seed"]


def check_device(device: str | torch.device) -> None:
    """
    :raises ValueError: If torch does not know the device, or cannot use it here.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device '{device}' cannot be used: {str(error).splitlines()[0]}"
        ) from None


def check_distinct(name: str, values: Sequence) -> None:
    """
    :param str name: Name of the argument, for the error message.
    :param values: Values of the argument.
    :raises ValueError: If a value is there twice.
    """
    again = [value for i, value in enumerate(values) if value in values[:i]]
    if again:
        raise ValueError(f"{name} has {again[0]} twice.")


def check_integer(name: str, value: object, minimum: int) -> int:
    """The value as an ``int``; integers of NumPy and torch are accepted, bools and floats are not.

    :param str name: Name of the argument, for the error message.
    :param value: Value of the argument.
    :param int minimum: Least value that is allowed.
    :raises ValueError: If it is not an integer of at least ``minimum``.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, but it is {value!r}.") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, but it is {number}.")
    return number


def check_seed(name: str, value: object) -> int:
    """The value as an ``int``, if it can seed all generators.

    :param str name: Name of the argument, for the error message.
    :param value: Value of the argument.
    :raises ValueError: If it is not an integer from 0 to 2^32 - 1.
    """
    seed = check_integer(name, value, 0)
    if seed >= 2**32:  # NumPy's legacy generator, which Pyro seeds, takes no more
        raise ValueError(f"{name} must be less than 2^32, but it is {seed}.")
    return seed


def check_jobs(name: str, value: object) -> int:
    """The value as an ``int``, if it is a number of processes for joblib.

    :param str name: Name of the argument, for the error message.
    :param value: Value of the argument.
    :raises ValueError: If it is not a positive integer or -1.
    """
    jobs = check_integer(name, value, -1)
    if jobs == 0:
        raise ValueError(f"{name} must be at least 1, or -1 for one per core, but it is 0.")
    return jobs
