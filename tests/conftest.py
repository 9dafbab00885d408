import os

import pyro
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # there are as many processes as cores


@pytest.fixture(autouse=True)
def _clean_state():
    """Every test starts from an empty param store, one seed and float64."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    torch.set_default_dtype(previous)
    pyro.clear_param_store()
