import math
import sys

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO

from pyro_dgp import DRegIWELBO
from pyro_dgp.infer import fit, snr_sweep
from pyro_dgp.infer.training.callbacks import EarlyStopping, SNRAlongTraining, tensorboard


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


def stopping(scores, **options):
    module = torch.nn.Linear(1, 1)
    values = iter(scores)
    return module, EarlyStopping(module, lambda: next(values), **options)


def test_early_stopping_keeps_the_best_parameters():
    module, callback = stopping([3.0, 1.0, math.nan, 2.0, 0.0], every=2, patience=2)
    ended = []
    for step in range(8):
        with torch.no_grad():
            module.bias.fill_(step)
        ended.append(callback(step, 0.0))
    assert ended == [False] * 7 + [True]  # two scores after the best, NaN among them
    assert callback.steps == [2, 4, 6, 8]
    assert callback.best == 1
    callback.restore_best()
    assert module.bias.item() == 3

    again = EarlyStopping(module, lambda: 0.5, every=2, patience=2)
    again.load_state_dict(callback.state_dict())
    assert again.best == 1
    assert again(9, 0.0) is False
    assert again.best == 4


def test_a_callback_ends_training_and_is_resumed(tmp_path):
    X = torch.randn(20, 1)

    def model(x):
        loc = pyro.param("loc", torch.zeros(()))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc, 1.0), obs=x[:, 0])

    def go(num_steps, callback):
        pyro.clear_param_store()
        return fit(
            model, lambda x: None, Trace_ELBO(max_plate_nesting=1), (X,), num_steps=num_steps,
            progress=False, checkpoint=tmp_path / "c.pt", callback=callback,
        )  # fmt: skip

    _, callback = stopping([3.0, 2.0], every=1, patience=2)
    assert not go(2, callback).stopped
    _, callback = stopping([4.0, 5.0, 6.0], every=1, patience=2)
    history = go(9, callback)
    assert history.stopped
    assert len(history.losses) == 4
    assert callback.scores == [3.0, 2.0, 4.0, 5.0]
    assert go(9, None).losses == history.losses


def test_signal_to_noise_ratios_along_training(tmp_path):
    """They come at the steps asked for, change nothing, and are in the checkpoint."""
    X = torch.randn(20, 1)

    def model(x):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x[:, 0])

    def guide(x):
        slope = pyro.param("slope", torch.tensor(0.1))
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(slope * x[:, 0], 1.0))

    def measure():
        estimators = {"DReG": DRegIWELBO}
        return snr_sweep(model, guide, (X,), estimators, (2,), num_draws=20, progress=False)

    def go(num_steps, callback, **options):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        return fit(
            model, guide, DRegIWELBO(K=2), (X,), num_steps=num_steps, batch_size=5, progress=False,
            callback=callback, **options,
        ).losses  # fmt: skip

    alone = go(6, None)
    callback = SNRAlongTraining(measure, [2, 5])
    assert go(6, callback) == alone
    assert list(callback.sweeps) == [2, 5]
    assert callback.sweeps[2].points[0].snr != callback.sweeps[5].points[0].snr
    resumed = SNRAlongTraining(measure, [2, 5])
    go(3, SNRAlongTraining(measure, [2, 5]), checkpoint=tmp_path / "c.pt")
    assert go(6, resumed, checkpoint=tmp_path / "c.pt") == alone
    assert resumed.sweeps == callback.sweeps
