"""Long training: nothing breaks down, nothing piles up."""

from pathlib import Path

import numpy as np
import pyro
import pytest
import torch

from pyro_dgp import DRegIWELBO, LatentDGP, fit
from pyro_dgp.experiments import datasets

STATUS = Path("/proc/self/status")


def memory() -> float:
    """MiB of this process; NaN where Linux does not say."""
    if not STATUS.exists():
        return float("nan")
    (line,) = [x for x in STATUS.read_text().splitlines() if x.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["power", "pol"])
def test_twenty_thousand_steps_in_single_precision(dataset):
    data = datasets.load(dataset, 0)
    X, y = (torch.as_tensor(a, dtype=torch.float32) for a in (data.X_train, data.y_train))
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(X, y)
    used = []

    def watch(step, loss):
        if step % 1000 == 999:
            used.append(memory())

    history = fit(
        dgp.model, dgp.guide, DRegIWELBO(K=5), (X, y), num_steps=20_000, batch_size=64,
        progress=False, callback=watch,
    )  # fmt: skip
    print(dataset, "MiB each 1000 steps:", [round(m) for m in used if m == m])
    windows = np.array(history.losses).reshape(20, 1000).mean(1) / len(X)
    print("loss a row:", windows.round(3))
    assert len(history.losses) == 20_000
    assert np.isfinite(history.losses).all()
    assert windows[-1] < windows[1] < windows[0]
    assert all(torch.isfinite(p).all() for p in dgp.parameters())
    # The heap settles within the first thousands of steps.
    assert not used[-1] - used[4] > 16
