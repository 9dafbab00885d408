"""Benchmarks at the smallest size: that they run, not how fast anything is."""

import csv
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import densities, dgp_scaling, dgp_steps, measure

# GPyTorch's, on import.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

CASES = [(4, layers, 2, 8, dtype) for dtype in dgp_steps.DTYPES for layers in (1, 2)]


def test_a_grid_goes_on_where_it_stopped(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "grid.csv"
    dgp_steps.grid(path, CASES[1:2], 1)
    with path.open() as file:
        (first,) = csv.DictReader(file)
    dgp_steps.grid(path, CASES, 1)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == first
    assert [(r["layers"], r["dtype"]) for r in rows] == [
        ("2", "float64"), ("1", "float64"), ("1", "float32"), ("2", "float32"),
    ]  # fmt: skip
    assert all(float(r["DReG / floor"]) > 0 for r in rows)
    dgp_steps.grid_figure(path)
    assert path.with_suffix(".png").stat().st_size > 10_000


def test_parts_of_a_profile_add_up():
    threads = torch.get_num_threads()
    row = dgp_steps.where_time_goes(*CASES[1], 2)
    torch.set_num_threads(threads)
    parts = [value for name, value in row.items() if name.endswith(", ms")]
    assert sum(parts) == pytest.approx(row["ms"], abs=0.5)
    assert min(parts) >= 0
    assert row["optimiser, ms"] > 0
    assert row["matrix products, ms"] > 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_steps_with_memory_kept():
    """In a process of its own, whose allocator it changes."""
    code = (
        "import torch\n"
        "from tests.benchmarks.dgp_steps import with_memory_kept\n"
        "print(with_memory_kept(4, 1, 2, 8, torch.float32, 1)['DReG kept / given back'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert float(done.stdout) > 0


def test_scaling(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = dict.fromkeys(dgp_scaling.SIZES, (1, 2, 3))
    rows = [*dgp_scaling.times(1, sizes, 5), *dgp_scaling.memory((2, 3))]
    assert len(rows) == 4 * 3 + len(dgp_scaling.PREDICT_ROWS) + 2 * 2
    dgp_scaling.picture(rows, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_exponent():
    assert measure.exponent([1, 2, 4, 8], [5.0, 4.0, 16.0, 64.0]) == pytest.approx(2)


def test_peak_memory():
    peak = measure.peak_memory(lambda: torch.ones(10**7, dtype=torch.float64))
    assert peak is None or 70 < peak < 120


def test_a_table_of_densities(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [
        {"set": "solar", "split": str(split), "method": method, "crps": crps, "coverage": "0.9"}
        for method, scores in {"a": "123", "b": "245", "c": "11"}.items()
        for split, crps in enumerate(scores)
    ]
    found = densities.table(rows, ["forest", "solar"], ["a", "b", "c"], "crps").splitlines()
    # c lacks a split, and forest has none.
    assert found[2] == "| solar | 3 | **2** (0.6) | 3.667 (0.9) |"
    assert found[-1] == "| mean rank of 1 sets | | 1.00 | 2.00 |"
    densities.figure(rows, ["solar"], ["a", "b", "c"], tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000
