"""What the benchmarks share: programs timed in turn, because noise is large, and peak memory."""

import contextlib
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

__all__ = ["exponent", "in_turn", "paired", "peak_memory"]


def in_turn(
    programs: dict[str, Callable], num_rounds: int, num_warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each program, run alternately."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for round_ in range(num_warm + num_rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            if round_ >= num_warm:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def paired(seconds: list[float], others: list[float]) -> float:
    """Median of the ratios of two programs' times in the same round."""
    return median(a / b for a, b in zip(seconds, others, strict=True))


def peak_memory(program: Callable) -> float | None:
    """MiB that a program adds to this process's memory at most; None where Linux does not say."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not clear.exists():
        return None

    def read(key: str) -> int:
        (line,) = [line for line in status.read_text().splitlines() if line.startswith(key)]
        return int(line.split()[1])

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what an earlier program left with the allocator
    clear.write_text("5")
    before = read("VmRSS:")
    program()
    return (read("VmHWM:") - before) / 1024


def exponent(sizes, seconds, largest: int = 3) -> float:
    """Slope on log axes over the largest sizes, where overhead no longer counts."""
    x, y = np.log(sizes[-largest:]), np.log(seconds[-largest:])
    return float(np.polyfit(x, y, 1)[0])
