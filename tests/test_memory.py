"""In processes of their own: there is no way back."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

# MiB that a process has left of 64 that it wrote to and freed.
LEFT = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def resident():
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
before = resident()
array = ctypes.c_void_p(libc.malloc(2**26))
libc.memset(array, 1, 2**26)
libc.free(array)
print(resident() - before)
"""
KEEP = "from pyro_dgp.memory import keep_freed_memory\nassert keep_freed_memory()\n"
DEFAULTS = {"MALLOC_MMAP_MAX_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
TUNABLES = "glibc.malloc.mmap_max=65536:glibc.malloc.trim_threshold=131072"


def run(code, **options):
    malloc = "MALLOC_", "GLIBC_TUNABLES"
    env = {name: value for name, value in os.environ.items() if not name.startswith(malloc)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env | options, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.splitlines()]


def test_freed_memory_is_kept_and_so_it_is_in_processes_started_later():
    assert run(LEFT)[0] < 8  # or there would be nothing to keep
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {LEFT!r}], check=True)"
    here, later = run(KEEP + LEFT + child)
    assert here > 56
    assert later > 56


@pytest.mark.parametrize("options", [DEFAULTS, {"GLIBC_TUNABLES": TUNABLES}], ids=list)
def test_options_in_the_environment_stay(options):
    assert run(KEEP + LEFT, **options)[0] < 8
