from itertools import islice

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO

from pyro_dgp import DRegIWELBO, fit
from pyro_dgp.infer import NonFiniteError, paper_optimizer
from pyro_dgp.infer.training.guard import non_finite
from pyro_dgp.infer.training.minibatches import minibatches

Y = torch.arange(10.0, dtype=torch.float64) / 5


def model(y):
    theta = pyro.param("theta", torch.tensor(0.0))
    with pyro.plate("data", 10, subsample=torch.arange(len(y))):
        z = pyro.sample("z", dist.Normal(theta, 1.0))
        pyro.sample("y", dist.Normal(z, 0.5), obs=y)


def guide(y):
    a, b = pyro.param("a", torch.tensor(0.0)), pyro.param("b", torch.tensor(0.0))
    with pyro.plate("data", 10, subsample=torch.arange(len(y))):
        pyro.sample("z", dist.Normal(a * y + b, 0.4))


def run(**kwargs):
    options = {"num_steps": 30, "batch_size": 4, "progress": False} | kwargs
    return fit(model, guide, DRegIWELBO(K=5), (Y,), **options)


def test_training_finds_the_posterior():
    optim = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.998})
    history = run(num_steps=1500, batch_size=5, optim=optim)
    assert np.mean(history.losses[-100:]) < np.mean(history.losses[:100])
    # The posterior of z given y is N(0.8 y + 0.2 theta, 0.2), theta the mean of y.
    assert pyro.param("theta").item() == pytest.approx(0.9, abs=0.1)
    assert pyro.param("a").item() == pytest.approx(0.8, abs=0.1)
    assert history.seconds > 0
    assert not history.interrupted


def test_same_seeds_same_run():
    results = []
    for seed in (0, 0, 1):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        results.append(run(seed=seed).losses)
    assert results[0] == results[1] != results[2]
    assert len(results[0]) == 30


def test_batches_are_shuffled_passes_end_to_end():
    X, y = torch.arange(10), torch.arange(10) * 2.0
    stream = minibatches((X, y), 4, seed=0)
    batches = [next(stream) for _ in range(10)]
    assert all(len(x) == 4 and (2 * x).equal(t.long()) for x, t in batches)
    rows = torch.cat([x for x, _ in batches]).reshape(4, 10)
    assert (rows.sort(1).values == torch.arange(10)).all()
    assert not rows[0].equal(rows[1])
    again = minibatches((X, y), 4, seed=0)
    assert all(a.equal(b) for (a, _), (b, _) in zip(batches, again, strict=False))


def test_rows_are_drawn_in_proportion_to_their_weights():
    weights = torch.tensor([0.0, 1.0, 2.5, 0.5, 0.0, 4.0, 0.0])
    share = 7 * weights / weights.sum()
    for batch_size in (3, 7, None):
        stream = minibatches((torch.arange(7),), batch_size, seed=0, weights=weights)
        rows = torch.cat([rows for (rows,) in islice(stream, 7000 // (batch_size or 7))])[:6993]
        counts = torch.stack([torch.bincount(r, minlength=7) for r in rows.split(7)])
        # In every pass a row is there a whole number of times next to its share.
        assert bool(((counts - share).abs() < 1).all())
        assert torch.allclose(counts.double().mean(0), share.double(), atol=4 * 0.5 / 999**0.5)
    # Alike, they are passes through all rows.
    stream = minibatches((torch.arange(7),), 7, seed=1, weights=torch.full((7,), 0.3))
    rows = next(stream)[0], next(stream)[0]
    assert all(r.sort().values.equal(torch.arange(7)) for r in rows)
    assert not rows[0].equal(rows[1])


@pytest.mark.parametrize("batch_size", [None, 10, 99])
def test_all_rows_at_once(batch_size):
    stream = minibatches((Y,), batch_size, seed=0)
    assert next(stream)[0].equal(Y)
    assert next(stream)[0].equal(Y)


def test_the_papers_schedule():
    optim = paper_optimizer(lr=0.1, decay=0.5, decay_steps=2)
    run(num_steps=5, optim=optim)
    rates = {s.optimizer.param_groups[0]["lr"] for s in optim.optim_objs.values()}
    assert rates == {0.1 * 0.5**2}


def test_an_optimizer_goes_on():
    pyro.set_rng_seed(0)
    optim = paper_optimizer()
    run(num_steps=3, optim=optim)
    run(num_steps=4, optim=optim)
    steps = {s.optimizer.state_dict()["state"][0]["step"].item() for s in optim.optim_objs.values()}
    assert steps == {7}


def test_other_elbos_and_callback():
    seen = []
    history = fit(
        model, guide, Trace_ELBO(), (Y,), num_steps=5, progress=False,
        callback=lambda step, loss: seen.append((step, loss)),
    )  # fmt: skip
    assert seen == list(enumerate(history.losses))


def test_interruption_returns_what_there_is():
    def stop(step, loss):
        if step == 6:
            raise KeyboardInterrupt

    history = run(num_steps=100, callback=stop)
    assert history.interrupted
    assert len(history.losses) == 7


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_step_that_did_not_happen_leaves_no_gradient(error):
    class Interrupted(pyro.optim.PyroOptim):
        def __call__(self, params):
            raise error

    try:
        run(optim=Interrupted(torch.optim.SGD, {"lr": 0.1}))
    except RuntimeError:
        assert error is RuntimeError
    assert all(p.unconstrained().grad is None for p in pyro.get_param_store().values())


def test_a_schedule_that_looks_at_the_loss():
    optim = pyro.optim.ReduceLROnPlateau(
        {"optimizer": torch.optim.SGD, "optim_args": {"lr": 1e-5}, "patience": 1, "factor": 0.5}
    )
    run(num_steps=40, optim=optim)
    rates = {s.optimizer.param_groups[0]["lr"] for s in optim.optim_objs.values()}
    assert max(rates) < 1e-5


def test_a_large_finite_gradient_is_no_error():
    gradient = {"large": torch.full((3,), 1e30, dtype=torch.float32)}
    assert non_finite(gradient) == []
    gradient["large"][1] = torch.inf
    assert non_finite(gradient | {"small": torch.ones(2)}) == ["large"]


def test_progress_bar(capsys):
    run(num_steps=3, progress=True)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Encountered NaN")
def test_a_loss_that_is_not_finite_stops_before_the_step():
    *_, (last,) = islice(minibatches((torch.arange(10),), 3, seed=0), 3)
    broken = Y.clone()
    broken[last[-1]] = float("nan")  # seen in the third batch
    before = None

    def remember(step, loss):
        nonlocal before
        before = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}

    optim = pyro.optim.SGD({"lr": 1e-3})
    with pyro.validation_enabled(False), pytest.raises(NonFiniteError) as error:
        fit(
            model, guide, DRegIWELBO(K=3), (broken,), num_steps=50, batch_size=3, optim=optim,
            callback=remember, progress=False,
        )  # fmt: skip
    assert error.value.sites == ["z", "y"]  # the guide of z reads y
    assert f"Step {error.value.step}: the loss is not finite at z, y" in str(error.value)
    assert error.value.step == 2
    for name, value in pyro.get_param_store().items():
        assert value.equal(before[name])
        assert value.unconstrained().grad is None


def test_a_distribution_that_pyro_refuses_after_the_first_step():
    def diverge(step, loss):
        pyro.param("theta").data.fill_(float("nan"))

    with pytest.raises(NonFiniteError, match="Step 1: the loss is not finite at theta") as error:
        run(callback=diverge)
    assert "to satisfy the constraint" in str(error.value.__cause__)


def test_a_gradient_that_is_not_finite_names_the_parameter():
    def bad_model(y):
        scale = pyro.param("scale", torch.tensor(0.0))
        with pyro.plate("data", 10, subsample=torch.arange(len(y))):
            z = pyro.sample("z", dist.Normal(scale.sqrt() * 0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(NonFiniteError, match="Step 0: the gradient is not finite at scale"):
        fit(bad_model, guide, DRegIWELBO(K=3), (Y,), num_steps=5, progress=False)
    assert pyro.param("scale").item() == 0
