import sys

import pytest

from pyro_dgp.infer.callbacks import tensorboard


def test_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = tensorboard(tmp_path, every=2)
    for step in range(5):
        log(step, 10.0 - step)
    log.__closure__[1].cell_contents.flush()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(0, 10.0), (2, 8.0), (4, 6.0)]


def test_tensorboard_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro_dgp\[tensorboard\]'"):
        tensorboard(tmp_path)
