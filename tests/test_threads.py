"""Numbers of threads beside other jobs."""

import os

import pytest
import torch

from pyro_dgp import _threads
from pyro_dgp._threads import spare_busy_cores


@pytest.fixture
def threads(monkeypatch):
    """Four threads, which the user has not chosen."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # so that it is as before at the end
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "number"),
    [({4: 0.4, 2: 0.6, 1: 1.0}, 4), ({4: 9.0, 2: 0.6, 1: 1.0}, 2), ({4: 9.0, 2: 9.0, 1: 1.0}, 1)],
)
def test_threads_that_wait_for_others_are_not_used(threads, monkeypatch, seconds, number):
    monkeypatch.setattr(_threads, "_seconds", seconds.get)
    spare_busy_cores()
    assert torch.get_num_threads() == number
    # Otherwise joblib would give as many threads to each of several processes.
    assert os.environ.get("OMP_NUM_THREADS") == ("1" if number == 1 else None)


def test_what_the_user_has_chosen_stays(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(_threads, "_seconds", {4: 9.0, 1: 1.0}.get)
    spare_busy_cores()
    assert torch.get_num_threads() == 4


def test_a_time_is_measured_with_that_many_threads(threads):
    assert _threads._seconds(2) > 0
    assert torch.get_num_threads() == 2


def test_a_fit_has_one_thread(threads):
    one_thread = pytest.importorskip("pyro_dgp.sklearn.threads").one_thread
    numbers = []

    def fails():
        numbers.append(torch.get_num_threads())
        raise KeyError

    with pytest.raises(KeyError), one_thread():
        fails()
    assert numbers == [1]
    assert torch.get_num_threads() == 4
