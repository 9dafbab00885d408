import math
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_dgp import DRegIWELBO, PartiallyCollapsedIWELBO
from pyro_dgp.infer import SNRPoint, SNRSweep, snr_sweep
from tests.infer.models import vae

ESTIMATORS = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}


def point(K, snr, error=0.01, **values):
    values = {
        "estimator": "REG", "K": K, "num_particles": 1, "batch_size": None, "group": "g",
        "num_draws": 100, "seed": 0, "snr": snr, "snr_error": error, "debiased": snr,
        "debiased_error": error, "num_constant": 0, **values,
    }  # fmt: skip
    return SNRPoint(**values)


def test_orders_of_a_vae():
    """-1/2 and 1/2 in K for the guide, 1/2 in M; by draws in batches, so that they are many."""
    case = vae()
    case.setup()
    common = {"groups": {"guide": ["log_c"]}, "progress": False}
    args = (case.args[0][:1],)
    # The ordinary ELBO's share of the gradient does not vanish as K grows.
    mixed = {
        "CIWAE": partial(PartiallyCollapsedIWELBO, beta=0.5),
        "VI": partial(PartiallyCollapsedIWELBO, beta=1.0),
    }
    for name, order in (("REG", -0.5), ("DReG", 0.5), ("CIWAE", 0.5), ("VI", 0.5)):
        sweep = snr_sweep(
            case.model, case.guide, args, {name: (ESTIMATORS | mixed)[name]}, [8, 32, 128],
            num_draws=20_000 if name == "REG" else 5000, **common,
        )  # fmt: skip
        slope, error = sweep.slope(estimator=name, group="guide")
        assert error < 0.1
        assert abs(slope - order) < 3 * error + 0.03
    sweep = snr_sweep(
        case.model,
        case.guide,
        args,
        ESTIMATORS,
        [8],
        num_particles=[1, 4, 16],
        num_draws=5000,
        **common,
    )
    for name in ESTIMATORS:
        slope, error = sweep.slope(by="num_particles", estimator=name, group="guide")
        assert abs(slope - 0.5) < 3 * error + 0.03


def test_a_guide_narrower_than_the_posterior():
    """DReG's order is min(1/2, 1/(2k) - 3/2), k the tail index of w: 1/2 and 1/6 here."""
    x = torch.tensor([0.8], dtype=torch.float64)

    def model(tail):
        with pyro.plate("data", 1):
            z = pyro.sample("z", dist.Normal(torch.zeros_like(x), 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def guide(tail):
        loc = pyro.param("loc", 0.5 * x + 0.1)
        # w is the exponential of a squared normal variable: k = 1 - Var(q) / Var(posterior).
        scale = (0.5 * (1 - tail)) ** 0.5
        with pyro.plate("data", 1):
            pyro.sample("z", dist.Normal(loc, scale))

    orders = {}
    for tail in (0.1, 0.3):
        sweep = snr_sweep(
            model, guide, (tail,), {"DReG": DRegIWELBO}, (10, 1000), num_draws=4000, progress=False
        )
        few, many = (p.snr for p in sweep.points)
        orders[tail] = math.log(many / few) / math.log(100)
    assert orders[0.1] == pytest.approx(1 / 2, abs=0.05)
    assert orders[0.3] == pytest.approx(1 / 6, abs=0.15)


def test_slope_of_known_points():
    sweep = SNRSweep([point(K, 3 * K**-0.5) for K in (1, 10, 100)] + [point(1000, 0.001)])
    slope, error = sweep.slope(estimator="REG", group="g")
    assert slope == pytest.approx(-0.5)
    assert 0 < error < 0.1
    with pytest.raises(ValueError, match="not two values of K with a signal"):
        sweep.slope(K=1000)


def test_advice():
    falling = SNRSweep([point(K, 3 * K**-0.5) for K in (1, 10, 100)])
    assert "beyond K = 1 (SNR 3), more samples cost signal: 0.3 at K = 100" in falling.advice(
        estimator="REG"
    )
    rising = SNRSweep([point(K, K**0.5) for K in (1, 10, 100)])
    assert "no K tried costs signal" in rising.advice(estimator="REG")
    with pytest.raises(ValueError, match="not two values of K"):
        rising.advice(estimator="DReG")


def test_an_interrupted_sweep_goes_on(tmp_path, monkeypatch):
    case = vae()
    case.setup()
    path = tmp_path / "sweep.json"

    def estimator(**options):
        if options["K"] == 3:
            raise KeyboardInterrupt
        return DRegIWELBO(**options)

    options = {"num_draws": 40, "path": path, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        snr_sweep(case.model, case.guide, case.args, {"DReG": estimator}, [1, 2, 3], **options)
    assert {p.K for p in SNRSweep.load(path).points} == {1, 2}
    calls = []

    def counting(**options):
        calls.append(options["K"])
        return DRegIWELBO(**options)

    sweep = snr_sweep(case.model, case.guide, case.args, {"DReG": counting}, [1, 2, 3], **options)
    assert calls == [3]
    assert {(p.K, p.group) for p in sweep.points} == {(K, g) for K in (1, 2, 3) for g in case.init}
    assert SNRSweep.load(path) == sweep


def test_a_file_of_other_settings_is_no_answer(tmp_path):
    case = vae()
    case.setup()
    options = {"num_draws": 40, "progress": False, "path": tmp_path / "sweep.json"}
    groups = {"guide": ["a", "b"]}

    def go(**more):
        return snr_sweep(
            case.model, case.guide, case.args, {"REG": PartiallyCollapsedIWELBO}, [2],
            **options, **more,
        ).points  # fmt: skip

    (first,) = go(groups=groups)
    assert go(groups=groups) == [first]
    (other,) = go(groups=groups, seed=1)
    assert other.snr != first.snr
    assert {p.group for p in go()} == set(case.init)  # every parameter, though a group is there
    grown = go(groups=groups | {"one": ["a"]})
    assert grown[0] == first
    assert len(grown) == 2
    assert go(groups=groups | {"one": ["a"]}) == grown


def test_a_parameter_that_is_not_trained_is_left_out():
    case = vae()
    case.setup()
    pyro.get_param_store()._params["b"].requires_grad_(False)
    sweep = snr_sweep(
        case.model, case.guide, case.args, ESTIMATORS, [2], num_draws=20, progress=False
    )
    assert {p.group for p in sweep.points} == set(case.init) - {"b"}


def test_batch_sizes():
    case = vae()
    case.setup()
    options = {"num_draws": 40, "progress": False, "groups": {"guide": ["a", "b"]}}
    sweep = snr_sweep(
        case.model, case.guide, case.args, ESTIMATORS, [2], batch_sizes=[1, 4], **options
    )
    assert {p.batch_size for p in sweep.points} == {1, 4}


def test_advice_about_one_setting_with_a_signal():
    def sweep(*points):
        return SNRSweep([
            SNRPoint("REG", K, 1, size, group, 100, 0, snr, error, snr, error, 0)
            for K, size, group, snr, error in points
        ])  # fmt: skip

    two = sweep((1, None, "a", 5, 0.01), (10, None, "a", 5, 0.01), (1, None, "b", 0.1, 0.01))
    with pytest.raises(ValueError, match="give group, one of a, b"):
        two.advice(estimator="REG")
    with pytest.raises(ValueError, match="not two values of K"):
        two.advice(group="b")
    noise = sweep((1, None, "a", 0.05, 0.1), (10, None, "a", 0.0, 0.1))
    assert "no signal above its standard error" in noise.advice(group="a")
    sizes = sweep((1, None, "a", 5, 0.1), (1, 10, "a", 1, 0.1), (1, 40, "a", 2, 0.1))
    assert sizes.slope("batch_size")[0] == pytest.approx(0.5, abs=0.01)


def test_settings_may_be_numbers_of_numpy_but_in_range(tmp_path):
    path = tmp_path / "s.json"
    x = torch.randn(5)

    def model(x):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(pyro.param("m", torch.tensor(0.1)), 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(pyro.param("a", torch.tensor(0.2)), 1.0))

    options = {"num_draws": 20, "progress": False}
    K, sizes = np.array([1, 2]), [np.int64(3)]
    snr_sweep(model, guide, (x,), {"DReG": DRegIWELBO}, K, batch_sizes=sizes, path=path, **options)
    assert len(SNRSweep.load(path).points) == 4
    with pytest.raises(ValueError, match="batch_sizes must be at least 1"):
        snr_sweep(model, guide, (x,), {"DReG": DRegIWELBO}, [1], batch_sizes=[-1], **options)
