import json
from pathlib import Path

import pyro
import pytest
import torch

from pyro_dgp import LatentDGP, PartiallyCollapsedIWELBO
from pyro_dgp._files import write_json
from pyro_dgp.experiments import metrics
from pyro_dgp.experiments.runs import RunConfig, run

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def _uci(monkeypatch):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))


def small_model(num_outputs=None):
    X = torch.randn(40, 2)
    y = torch.randn(40) if num_outputs is None else torch.randn(40, num_outputs)
    return LatentDGP.from_data(X, y, num_inducing=8), X, y


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_metrics_are_those_of_the_predictive_distribution(monkeypatch, num_outputs):
    dgp, X, y = small_model(num_outputs)
    monkeypatch.setattr(metrics, "_CHUNK", 500)  # five rows at a time
    pyro.set_rng_seed(0)
    found = metrics.evaluate(dgp, X, y, num_samples=100)
    pyro.set_rng_seed(0)
    assert metrics.test_log_likelihood(dgp, X, y, 100) == pytest.approx(
        found["test_log_likelihood"]
    )
    pyro.set_rng_seed(0)
    parts = [dgp.predict(x, 100) for x in X.split(5)]
    log_prob = torch.cat([p.log_prob(t) for p, t in zip(parts, y.split(5), strict=True)])
    crps = torch.cat([p.crps(t) for p, t in zip(parts, y.split(5), strict=True)])
    mean = torch.cat([p.mean for p in parts])
    assert found["test_log_likelihood"] == pytest.approx(log_prob.mean().item())
    assert found["crps"] == pytest.approx(crps.mean().item())
    assert found["rmse"] == pytest.approx((mean - y).square().mean().sqrt().item())


def test_bound_of_all_data_by_batches():
    dgp, X, y = small_model()
    loss = PartiallyCollapsedIWELBO(K=5, num_particles=20)
    whole = torch.tensor([-loss.loss(dgp.model, dgp.guide, X, y) for _ in range(30)])
    parts = torch.tensor([metrics.bound(dgp, loss, X, y, batch_size=7) for _ in range(30)])
    error = (whole.var() / 30 + parts.var() / 30).sqrt()
    assert abs(whole.mean() - parts.mean()) < 4 * error


@pytest.mark.parametrize("loss", ["dreg", "reg", "vi"])
def test_a_run_on_real_data(loss, tmp_path):
    config = RunConfig("solar", loss=loss, K=2, num_steps=3, num_test_samples=10, batch_size=16)
    record, dgp = run(config, progress=False)
    assert record["config"]["dataset"] == "solar"
    assert record["history"]["step"] == [3]
    assert record["steps_done"] == 3
    assert dgp.layers[1].num_gps == 5
    path = tmp_path / "new" / f"{config.name}.json"
    write_json(record, path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(record))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    again, _ = run(config, progress=False)
    for key in ("history", "test_log_likelihood", "train_bound", "noise_variance", "crps"):
        assert again[key] == record[key]


def test_fixed_q_of_z_and_a_plain_deep_gp():
    common = {"num_steps": 2, "K": 2, "num_test_samples": 5, "dtype": "float32"}
    _, fixed = run(RunConfig("forest", learned_qz=False, **common), progress=False)
    assert fixed.layers[0].encoder is None
    record, plain = run(RunConfig("forest", latent_dim=0, num_layers=3, **common), progress=False)
    assert len(plain.layers) == len(record["kl"]) == 3


def test_names_tell_runs_apart():
    configs = [
        RunConfig("forest"), RunConfig("forest", split=1), RunConfig("forest", loss="reg"),
        RunConfig("forest", K=5), RunConfig("forest", learned_qz=False),
        RunConfig("forest", num_layers=3), RunConfig("forest", seed=4),
        RunConfig("forest", num_steps=5), RunConfig("forest", loss="vi"),
        RunConfig("forest", latent_dim=0), RunConfig("forest", batch_size=32),
        RunConfig("forest", lr=0.1), RunConfig("forest", mixing="principal"),
        RunConfig("forest", dtype="float32"),
    ]  # fmt: skip
    assert len({config.name for config in configs}) == len(configs)


def test_targets_that_would_broadcast_are_refused():
    dgp, X, y = small_model()
    for target in (y[:, None], y[:5]):
        with pytest.raises(ValueError, match="does not fit X"):
            metrics.test_log_likelihood(dgp, X, target, 5)


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used"):
        run(RunConfig("demo", device=device, num_steps=1))


@pytest.mark.parametrize("option", [{"loss": "iwae"}, {"dtype": "int8"}])
def test_bad_options(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be one of"):
        RunConfig("forest", **option)


def test_a_failed_write_leaves_the_old_record(tmp_path):
    path = tmp_path / "record.json"
    write_json({"a": 1}, path)
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
