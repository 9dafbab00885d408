"""Memory of a training loop, on the CPU."""

import ctypes
import os
import platform

__all__ = ["keep_freed_memory"]

# Of mallopt(3), with the environment variables that a process reads at its start. No array gets
# pages of its own, and the heap does not shrink.
_OPTIONS = {"MALLOC_MMAP_MAX_": (-4, 0), "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1)}


def keep_freed_memory() -> bool:
    """Lets this process, and those that it starts, keep freed memory for the next step.

    Glibc hands large arrays back to the system when they are freed. A training step takes them all
    again, page by page, each of which the system clears first: with tens of thousands of rows K B
    in a step, that is a tenth to a quarter of its time. Call this once, at any time. The price is
    that memory stays with the process after the largest step or prediction. Options that are set in
    the environment, by ``MALLOC_TRIM_THRESHOLD_`` or ``GLIBC_TUNABLES``, stay as they are.

    The ``pyro-dgp`` command calls it. It does not matter on a GPU.

    :returns: Whether it is done: only with glibc, which is the C library of most Linux systems.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    done = True
    for name, (option, value) in _OPTIONS.items():
        tunable = f"glibc.malloc.{name[len('MALLOC_') : -1].lower()}="
        if name not in os.environ and tunable not in os.environ.get("GLIBC_TUNABLES", ""):
            os.environ[name] = str(value)
            done &= library.mallopt(option, value) == 1
    return done
