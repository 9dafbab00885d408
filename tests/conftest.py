import os
import signal

import pyro
import pytest
import torch

from pyro_dgp.infer.training import loop as training

# Where the tests were started with Ctrl-C ignored, as by `nohup` or in the background of a script.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Estimators start no processes unless told to: what a test has changed is not changed there.
os.environ["LOKY_MAX_CPU_COUNT"] = "1"

if "PYTEST_XDIST_WORKER" in os.environ:
    # There are as many processes as cores, which have others of their own.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _clean_state():
    """Every test starts from an empty param store, one seed, float64, and with validation."""
    previous = torch.get_default_dtype()
    torch.distributions.Distribution.set_default_validate_args(True)  # Pyro may not restore it
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    torch.set_default_dtype(previous)
    pyro.clear_param_store()


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request):
    """The CPU, and the GPU where there is one."""
    return torch.device(request.param)


@pytest.fixture
def few_trees(monkeypatch):
    """Fits are small, where it matters little what is learned."""
    pytest.importorskip("sklearn")
    from tests.estimators import use_few_trees

    use_few_trees(monkeypatch)


@pytest.fixture
def ctrl_c_at(monkeypatch):
    """Has Ctrl-C pressed in the n-th training step from then on; returns the growing steps."""

    def press_at(n):
        steps, advance = [], training._advance

        def advance_and_press(*args):
            steps.append(len(steps))
            if len(steps) == n:
                signal.raise_signal(signal.SIGINT)
            return advance(*args)

        monkeypatch.setattr(training, "_advance", advance_and_press)
        return steps

    return press_at
