"""Numbers of threads of torch, where other jobs use the cores, too.

Two threads that wait for each other after every operation wait for the time slices of whatever else
runs on their cores: small operations then take up to a hundred times as long as with one thread.
"""

import os
import time

import torch

__all__ = ["spare_busy_cores"]

# Number of operations that are timed, and rows and columns of their matrices, as in a GP layer.
_NUM_TIMED, _ROWS, _COLUMNS = 10, 1024, 128


def spare_busy_cores() -> None:
    """Halves this process's number of threads as long as one is faster now.

    A number that the user has chosen by ``OMP_NUM_THREADS`` stays.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    number = torch.get_num_threads()
    while number > 1 and _seconds(number) > _seconds(1):
        number //= 2
    torch.set_num_threads(number)
    if number == 1:  # for scikit-learn, if it is not loaded yet, and for other processes
        os.environ["OMP_NUM_THREADS"] = "1"


def _seconds(num_threads: int) -> float:
    """Time of some products with this number of threads."""
    torch.set_num_threads(num_threads)
    a, b = torch.ones(_ROWS, _COLUMNS), torch.ones(_COLUMNS, _COLUMNS)
    torch.matmul(a, b)  # starts the threads
    start = time.perf_counter()
    for _ in range(_NUM_TIMED):
        torch.matmul(a, b)
    return time.perf_counter() - start
