import json
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch

from pyro_dgp import PartiallyCollapsedIWELBO
from pyro_dgp._files import write_json
from pyro_dgp.experiments import metrics
from pyro_dgp.experiments.reproduce import STUDIES
from pyro_dgp.experiments.reproduce.predictions import LIKELIHOODS, _configs
from pyro_dgp.experiments.reproduce.study import Size
from pyro_dgp.experiments.runs import (
    RunConfig,
    checkpoint_path,
    load_data,
    load_record,
    record_path,
    run,
    train,
)
from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.infer import NaturalGradient, NonFiniteError
from tests.gp.models import data, small

pytestmark = pytest.mark.whole

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def _uci(monkeypatch):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))


def without_times(record):
    return {k: v for k, v in record.items() if not k.startswith("seconds")}


def small_model(num_outputs=None):
    X, y = data(num_outputs=num_outputs)
    return small(X, y), X, y


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


def test_calibration_of_a_known_predictive(monkeypatch):
    """Targets from the predictive itself are covered as the intervals say; others are not."""
    dgp, X, _ = small_model()

    def predict(X, num_samples):
        loc = torch.zeros(1, len(X)) if skewed is None else skewed
        scale = torch.full((len(loc), len(X)), 0.5)
        return PredictiveMixture(torch.distributions.Normal(loc.expand(-1, len(X)), scale))

    monkeypatch.setattr(dgp, "predict", predict)
    X, y, skewed = torch.zeros(4000, 2), 0.5 * torch.randn(4000), None
    found = metrics.evaluate(dgp, X, y, 10)
    for level in metrics.LEVELS:
        error = (level * (1 - level) / 4000) ** 0.5
        assert abs(found["coverage"][str(level)] - level) < 4 * error
    assert found["shapiro_wilk"] > 0.997
    wide = metrics.evaluate(dgp, X, 2 * y, 10)["coverage"]
    assert all(wide[str(level)] < level - 0.1 for level in metrics.LEVELS)
    skewed = torch.tensor([[0.0], [0.0], [0.0], [4.0]])
    assert metrics.evaluate(dgp, X[:50], y[:50], 10)["shapiro_wilk"] < 0.85


def test_repeated_evaluations():
    dgp, X, y = small_model()
    with torch.no_grad():
        dgp.layers[-1].u_loc.normal_()  # or z would change nothing
    found = metrics.evaluate(dgp, X, y, num_samples=20, num_evaluations=3)
    values = found["test_log_likelihoods"]
    assert len(set(values)) == 3
    assert found["test_log_likelihood"] == pytest.approx(sum(values) / 3)


@pytest.mark.parametrize(("name", "share", "distinct"), [("forest", 0.48, 251), ("solar", 0.83, 8)])
def test_point_masses_of_real_data(name, share, distinct):
    _, y, _, y_test = load_data(RunConfig(name))
    found = metrics.point_masses(torch.cat([y, y_test]))
    assert found["share"] == pytest.approx(share, abs=0.005)
    assert found["distinct"] == distinct
    assert metrics.point_masses(torch.randn(1000)) is None
    assert metrics.point_masses(torch.randn(10)) is None


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
    assert without_times(again) == without_times(record)


@pytest.mark.parametrize("natural_lr", [0.0, 0.01])
def test_the_noise_may_be_frozen_at_first(natural_lr, tmp_path):
    config = RunConfig(
        "solar", K=2, num_steps=5, num_test_samples=10, frozen_noise_steps=3, natural_lr=natural_lr
    )
    variances = []
    for until in (3, 5):  # the second goes on from the first
        dgp, _ = train(config, tmp_path / "m.pt", progress=False, until=until)
        variances.append(dgp.likelihood.variance.item())
    assert variances[0] == pytest.approx(config.noise_variance)
    assert variances[1] != pytest.approx(config.noise_variance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frozen_noise_steps": 5, "likelihood": "student_t"}, "needs the noise variance"),
        ({"frozen_noise_steps": -1}, "frozen_noise_steps must be"),
        ({"fit_latent_prior": True, "latent_dim": 0}, "needs a latent input"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ValueError, match=message):
        RunConfig("solar", **options)


def test_natural_gradients_are_an_option(tmp_path):
    config = RunConfig("solar", K=2, num_steps=3, num_test_samples=10, natural_lr=0.01)
    record, _ = run(config, tmp_path, progress=False)
    adam, _ = run(replace(config, natural_lr=0.0), tmp_path, progress=False)
    assert record["history"] != adam["history"]
    assert load_record(record_path(config, tmp_path)) == (config, record)


def test_the_learning_rate_may_fall_along_a_cosine():
    config = RunConfig("solar", K=2, num_steps=0, num_test_samples=10, lr=0.1, schedule="cosine")
    before, _ = train(config, progress=False)
    after, _ = train(replace(config, num_steps=2), progress=False)
    # Steps of 0.1 and, half way, 0.05: the first gradients of the noise variance are alike.
    name = "variance_unconstrained"
    moved = getattr(after.likelihood, name) - getattr(before.likelihood, name)
    assert moved.item() == pytest.approx(0.15, rel=0.01)


def test_the_fast_schedule_has_defaults_of_its_own(tmp_path):
    config = RunConfig("solar", schedule="fast")
    assert (config.K, config.batch_size, config.dtype) == (3, 200, "float32")
    assert config.name == "solar_split0_dreg_K3_schedule=fast"
    assert RunConfig("solar").name == "solar_split0_dreg_K50"
    assert replace(config, dtype="float64").name.endswith("_schedule=fast_dtype=float64")
    assert RunConfig("solar", schedule="fast", K=50, lr=0.005).K == 50

    small = replace(config, K=2, num_steps=4, num_test_samples=10)
    record, dgp = run(small, tmp_path, progress=False)
    assert next(dgp.parameters()).dtype == torch.float32
    assert load_record(record_path(small, tmp_path)) == (small, record)
    optim = small.optimizer(dgp)
    assert isinstance(optim, NaturalGradient)
    assert optim.layers == [dgp.layers[-1]]
    optim.num_steps = 2
    assert optim.step_size == pytest.approx(0.15)


def test_training_stops_part_way_along_its_schedule(tmp_path):
    config = RunConfig("solar", schedule="fast", K=2, num_steps=4, num_test_samples=10)
    whole, _ = train(config, progress=False)
    checkpoint = checkpoint_path(config, tmp_path, until=2)
    part, history = train(config, checkpoint, progress=False, until=2)
    assert len(history.losses) == 2
    loc = part.layers[-1].u_loc.detach().clone()
    rest, history = train(config, checkpoint, progress=False)
    assert len(history.losses) == 4
    assert not torch.equal(rest.layers[-1].u_loc, loc)
    assert torch.equal(rest.layers[-1].u_loc, whole.layers[-1].u_loc)


def test_a_study_of_the_fast_schedule():
    size = Size(("forest",), steps=3000, train_K=50)
    fast = size.with_options(schedule="fast")
    assert fast.config("forest", 2) == RunConfig("forest", schedule="fast")
    fast = size.with_options(schedule="fast", steps=7, lr=0.01)
    assert fast.config("solar", 2) == RunConfig("solar", schedule="fast", num_steps=7, lr=0.01)
    assert size.with_options(splits=3).config("forest", 2) == RunConfig("forest")


def test_a_study_of_likelihoods_has_the_options_that_are_given():
    size = STUDIES["likelihoods"].size

    def found(**options):
        configs = _configs(size.with_options(datasets=("demo", "solar"), **options), LIKELIHOODS)
        return {(c.batch_size, c.dtype) for c in configs.values()}

    assert found() == {(64, "float32")}
    assert found(dtype="float64") == {(64, "float64")}
    assert found(schedule="fast") == {(200, "float32")}


def test_one_model_for_two_evaluations(tmp_path):
    config = RunConfig("solar", K=2, num_inducing=8, num_steps=2, num_test_samples=10)
    run(config, tmp_path, progress=False)
    (model,) = tmp_path.glob("*.pt")
    written = model.stat().st_mtime_ns
    record, _ = run(replace(config, num_evaluations=2), tmp_path, progress=False)
    assert len(record["test_log_likelihoods"]) == 2
    fitted = replace(config, fit_latent_prior=True)
    other, dgp = run(fitted, tmp_path, progress=False)
    assert dgp.layers[0].prior_shares is not None
    assert other["test_log_likelihood"] != record["test_log_likelihood"]
    again, same = run(fitted, tmp_path, progress=False)  # it is loaded
    assert again == other
    assert torch.equal(same.layers[0].prior_shares, dgp.layers[0].prior_shares)
    assert [path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")] == [written]


def test_a_run_that_breaks_down_leaves_a_record(tmp_path, monkeypatch):
    config = RunConfig("solar", K=2, num_steps=3, num_test_samples=10)
    with monkeypatch.context() as patch:
        patch.setattr(RunConfig, "elbo", lambda self: Broken(K=2))
        with pytest.raises(NonFiniteError):
            run(config, tmp_path, progress=False)
    record = json.loads(record_path(config, tmp_path).read_text())
    assert "Step 0: the loss is not finite" in record["error"]
    assert record["steps_done"] == 0
    assert "error" not in run(config, tmp_path, progress=False)[0]  # it is tried again


class Broken(PartiallyCollapsedIWELBO):
    def loss_and_grads(self, *args):
        super().loss_and_grads(*args)
        return float("nan")


def test_killed_at_random_moments(tmp_path):
    """SIGKILL, a dozen times over: the record is that of a run which was let alone."""
    context = multiprocessing.get_context("forkserver")
    # What an optimiser imports at its first step takes seconds, which every child would need.
    context.set_forkserver_preload(["pyro_dgp.experiments.runs", "torch._dynamo"])
    config = RunConfig(
        "solar", K=2, num_layers=1, num_inducing=8, num_steps=200, num_test_samples=10, batch_size=8
    )

    def start(folder):
        child = context.Process(target=run, args=(config, folder, False, 0.0))
        child.start()
        return child

    undisturbed = start(tmp_path / "whole")
    undisturbed.join()
    expected = json.loads(record_path(config, tmp_path / "whole").read_text())
    random = np.random.default_rng(0)
    checkpoint = checkpoint_path(config, tmp_path / "killed")
    steps = set()
    for _ in range(12):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        child = start(tmp_path / "killed")
        while child.is_alive() and not (
            checkpoint.exists() and checkpoint.stat().st_mtime_ns > before
        ):
            child.join(0.005)
        child.join(random.uniform(0, 0.05))
        child.kill()
        child.join()
        steps.add(len(torch.load(checkpoint, weights_only=True)["progress"]["losses"]))
    assert len(steps) > 6  # it was killed in the middle, and went on from there
    start(tmp_path / "killed").join()
    found = json.loads(record_path(config, tmp_path / "killed").read_text())
    assert without_times(found) == without_times(expected)


def test_fixed_q_of_z_and_a_plain_deep_gp():
    common = {"num_steps": 2, "K": 2, "num_test_samples": 5, "dtype": "float32"}
    _, fixed = run(RunConfig("forest", learned_qz=False, **common), progress=False)
    assert fixed.layers[0].encoder is None
    record, plain = run(RunConfig("forest", latent_dim=0, num_layers=3, **common), progress=False)
    assert len(plain.layers) == len(record["kl"]) == 3


def test_samples_of_nothing_are_not_drawn(tmp_path, recwarn):
    """A shallow model without z has one sample, whatever the default of K is."""
    config = RunConfig(
        "forest", latent_dim=0, num_layers=1, num_inducing=5, num_steps=2, num_test_samples=10
    )
    run(config, progress=False)
    assert not [w for w in recwarn if "can do nothing" in str(w.message)]


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


def test_numbers_of_numpy_are_options():
    numbers = {"K": np.int64(3), "lr": np.float32(0.5), "learned_qz": np.bool_(False)}
    plain = RunConfig("forest", K=3, lr=0.5, learned_qz=False)
    assert json.dumps(asdict(RunConfig("forest", **numbers))) == json.dumps(asdict(plain))


def test_a_failed_write_leaves_the_old_record(tmp_path):
    path = tmp_path / "record.json"
    write_json({"a": 1}, path)
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_records_of_earlier_versions_are_read(tmp_path):
    config = RunConfig("demo", K=3)
    options = asdict(config) | {"encoder_optimizer": "adam", "encoder_batch_size": 0}
    write_json({"config": options}, tmp_path / "record.json")
    assert load_record(tmp_path / "record.json")[0] == config
    write_json({"config": options | {"K_": 3}}, tmp_path / "record.json")
    with pytest.raises(ValueError, match="is no record of a run"):
        load_record(tmp_path / "record.json")
