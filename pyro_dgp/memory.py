"""Memory of a training loop, on the CPU."""

import ctypes
import os
import platform

__all__ = ["keep_freed_memory"]

# Options of mallopt(3) by the environment variables that set them at the start of a process: no
# separate mappings for large arrays, and a heap that does not shrink.
_OPTIONS = {"MALLOC_MMAP_MAX_": (-4, 0), "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1)}


def keep_freed_memory() -> bool:
    """Lets this process, and those that it starts, keep freed memory for the next step.

    Glibc returns large arrays to the system when they are freed. The next training step allocates
    them again, and the system clears every page first: with tens of thousands of rows K B per step,
    this takes a tenth to a quarter of the time. Call this function once, at any time. The price is
    that the process keeps the memory of its largest step or prediction. Options that are set in the
    environment, by ``MALLOC_TRIM_THRESHOLD_`` or ``GLIBC_TUNABLES``, are left unchanged.

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
