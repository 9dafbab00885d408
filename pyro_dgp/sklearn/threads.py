"""One thread per fit.

A step's matrices are small, so that several threads gain little, and beside other jobs, for whose
time slices they wait after every operation, they lose much (:mod:`pyro_dgp._threads`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Has torch, NumPy and scikit-learn do each operation with one thread."""
    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
