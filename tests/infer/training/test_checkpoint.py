"""Training that goes on from a checkpoint is training that never stopped."""

import signal

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal

from pyro_dgp import DRegIWELBO, LatentDGP, NaturalGradient, fit
from pyro_dgp.infer import Frozen, paper_optimizer

X = torch.linspace(-1, 1, 30, dtype=torch.float64).unsqueeze(-1)
Y = (3 * X).sin().squeeze(-1)

OPTIMIZERS = {
    "adam with a schedule": lambda: paper_optimizer(0.02, 0.5, 2),
    "momentum": lambda: pyro.optim.SGD({"lr": 1e-4, "momentum": 0.9}),
    "clipped adam": lambda: pyro.optim.ClippedAdam({"lr": 0.01, "lrd": 0.9}),
    "plateau": lambda: pyro.optim.ReduceLROnPlateau(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.05}, "patience": 1, "factor": 0.5}
    ),
}


def new_model():
    """Initial values are one thing that must not depend on the model's name or number."""
    pyro.set_rng_seed(3)
    return LatentDGP.from_data(X, Y, num_layers=1, num_inducing=5)


def train(dgp, num_steps, optim, **kwargs):
    options = {"batch_size": 8, "seed": 5, "progress": False} | kwargs
    return fit(
        dgp.model, dgp.guide, DRegIWELBO(K=2), (X, Y), num_steps=num_steps, optim=optim, **options
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_exact_resume(name, tmp_path):
    whole = new_model()
    expected = train(whole, 14, OPTIMIZERS[name]())
    path = tmp_path / "new" / "checkpoint.pt"
    for stop in (6, 7, 14):
        part = new_model()
        if path.exists():
            torch.randn(stop)  # a process that did other things before
        history = train(part, stop, OPTIMIZERS[name](), checkpoint=path)
        assert len(history.losses) == stop
    assert history.losses == expected.losses
    for ours, theirs in zip(part.parameters(), whole.parameters(), strict=True):
        assert ours.equal(theirs)
    assert torch.rand(1).equal(_random_number_after(whole))


def _random_number_after(whole):
    """The next number after an uninterrupted run."""
    train(new_model(), 14, paper_optimizer())
    return torch.rand(1)


@pytest.mark.parametrize("stop", [3, 7, 11])
def test_exact_resume_with_frozen_parameters(stop, tmp_path):
    def new():
        dgp = new_model()
        frozen = Frozen(paper_optimizer(0.02, 0.5, 2), dgp.likelihood.parameters(), 7)
        return dgp, NaturalGradient(dgp.layers[-1], frozen)

    whole, optim = new()
    expected = train(whole, 14, optim)
    start = [p.clone() for p in new_model().likelihood.parameters()]
    for num_steps in (stop, 14):
        part, optim = new()
        history = train(part, num_steps, optim, checkpoint=tmp_path / "checkpoint.pt")
        still = zip(part.likelihood.parameters(), start, strict=True)
        assert all(p.equal(s) for p, s in still) == (num_steps <= 7)
    assert history.losses == expected.losses
    for ours, theirs in zip(part.parameters(), whole.parameters(), strict=True):
        assert ours.equal(theirs)


@pytest.mark.parametrize("stop", [2, 4, 7])
def test_exact_resume_with_optimisers_around_each_other(stop, tmp_path):
    """Two groups of parameters that thaw one after the other, two step sizes of q(u)."""

    def new():
        pyro.set_rng_seed(3)
        dgp = LatentDGP.from_data(X, Y, num_layers=2, num_inducing=5)
        *_, first, last = dgp.layers
        optim = Frozen(paper_optimizer(0.02, 0.5, 2), dgp.likelihood.parameters(), 3)
        optim = Frozen(optim, first.kernel.parameters(), 6)
        return dgp, NaturalGradient(first, NaturalGradient(last, optim, lr=0.1), lr=0.05)

    whole, optim = new()
    expected = train(whole, 10, optim)
    for num_steps in (stop, 10):
        part, optim = new()
        history = train(part, num_steps, optim, checkpoint=tmp_path / "checkpoint.pt")
    assert history.losses == expected.losses
    for ours, theirs in zip(part.parameters(), whole.parameters(), strict=True):
        assert ours.equal(theirs)


def test_all_steps_done_only_loads(tmp_path):
    path = tmp_path / "checkpoint.pt"
    first = new_model()
    expected = train(first, 3, paper_optimizer(), checkpoint=path)
    written = path.stat().st_mtime_ns
    again = new_model()
    assert train(again, 3, paper_optimizer(), checkpoint=path).losses == expected.losses
    assert path.stat().st_mtime_ns == written
    for ours, theirs in zip(again.parameters(), first.parameters(), strict=True):
        assert ours.equal(theirs)
    with pytest.raises(ValueError, match="has 3 steps, more than num_steps=2"):
        train(new_model(), 2, paper_optimizer(), checkpoint=path)


def test_plain_functions_and_lazy_guides(tmp_path):
    def model(y):
        scale = pyro.param("scale", torch.tensor(1.0), dist.constraints.positive)
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(0, scale))
            pyro.sample("y", dist.Normal(z, 0.5), obs=y)

    def go(num_steps, **kwargs):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        guide = AutoNormal(model)
        options = {"batch_size": None, "optim": pyro.optim.Adam({"lr": 0.1}), "progress": False}
        fit(model, guide, DRegIWELBO(K=3), (Y,), num_steps=num_steps, **options, **kwargs)
        return {n: p.detach().clone() for n, p in pyro.get_param_store().items()}

    expected = go(9)
    go(4, checkpoint=tmp_path / "c.pt")
    found = go(9, checkpoint=tmp_path / "c.pt")
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_loss_that_has_been_used_is_the_same_loss(tmp_path):
    dgp, loss = new_model(), Trace_ELBO()
    for num_steps in (2, 4):
        history = fit(
            dgp.model, dgp.guide, loss, (X, Y), num_steps=num_steps, batch_size=8, progress=False,
            checkpoint=tmp_path / "c.pt",
        )  # fmt: skip
    assert len(history.losses) == 4
    with pytest.raises(ValueError, match="made with loss=Trace_ELBO"):
        train(new_model(), 5, None, checkpoint=tmp_path / "c.pt", seed=0)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("act", [lambda: signal.raise_signal(signal.SIGINT), interrupt])
def test_ctrl_c_ends_after_the_step_and_saves(act, tmp_path):
    def press(step, loss):
        if step == 3 and len(presses) < 1:
            presses.append(step)
            act()

    presses = []
    path = tmp_path / "checkpoint.pt"
    history = train(new_model(), 8, paper_optimizer(), checkpoint=path, callback=press)
    assert history.interrupted
    assert len(history.losses) == 4
    assert path.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = train(new_model(), 8, paper_optimizer(), checkpoint=path)
    assert not resumed.interrupted
    assert resumed.losses == train(new_model(), 8, paper_optimizer()).losses


def test_ctrl_c_in_the_last_step_is_not_lost():
    def press(step, loss):
        if step == 2:
            signal.raise_signal(signal.SIGINT)

    history = train(new_model(), 3, paper_optimizer(), callback=press)
    assert history.interrupted
    assert len(history.losses) == 3


def test_a_second_ctrl_c_does_not_wait():
    class Stuck(pyro.optim.PyroOptim):
        def __call__(self, params):
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
            raise AssertionError

    history = train(new_model(), 8, Stuck(torch.optim.SGD, {"lr": 0.1}))
    assert history.interrupted
    assert history.losses == []


def test_checkpoints_that_do_not_fit(tmp_path):
    path = tmp_path / "checkpoint.pt"
    train(new_model(), 2, paper_optimizer(), checkpoint=path)
    for other in (
        LatentDGP.from_data(X, Y, num_layers=1, num_inducing=6),
        LatentDGP.from_data(X, Y, num_layers=2, num_inducing=5),
        LatentDGP.from_data(X, Y, num_layers=1, num_inducing=5, latent_dim=0),
    ):
        with pytest.raises(ValueError, match="the checkpoint of another model"):
            train(other, 4, paper_optimizer(), checkpoint=path)
    for name, value in (("batch_size", 9), ("seed", 6)):
        with pytest.raises(ValueError, match=f"made with {name}=.*, not {value}"):
            train(new_model(), 4, paper_optimizer(), checkpoint=path, **{name: value})
    others = paper_optimizer(lr=0.1), pyro.optim.Adam({"lr": 0.005}), None
    for optim in others:
        model = new_model()
        optim = optim or NaturalGradient(model.layers[-1], paper_optimizer())
        before = [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
        with pytest.raises(ValueError, match="made with optim="):
            train(model, 4, optim, checkpoint=path)
        for p, q in zip(model.parameters(), before[0], strict=True):
            assert p.equal(q)
        assert torch.get_rng_state().equal(before[1])


def test_numbers_of_numpy(tmp_path):
    path = tmp_path / "checkpoint.pt"
    expected = train(new_model(), 4, paper_optimizer(0.02, 0.9)).losses
    for stop in (2, 4):
        optim = paper_optimizer(np.float64(0.02), np.float64(0.9), np.int64(1000))
        found = train(new_model(), stop, optim, checkpoint=path).losses
    assert found == expected


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", "half", "one byte"])
def test_damaged_checkpoints(tmp_path, damage):
    path = tmp_path / "checkpoint.pt"
    train(new_model(), 2, paper_optimizer(), checkpoint=path)
    content = path.read_bytes()
    if damage == "half":
        damage = content[: len(content) // 2]
    elif damage == "one byte":
        at = content.index(torch.load(path)["parameters"].popitem()[1].numpy().tobytes())
        damage = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"checkpoint.pt is no checkpoint, or a damaged one"):
        train(new_model(), 4, paper_optimizer(), checkpoint=path)


def test_a_file_that_runs_code_when_loaded_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (touched.append, (1,))

    touched = []
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": Evil()}, path)
    with pytest.raises(ValueError, match="no checkpoint"):
        train(new_model(), 4, paper_optimizer(), checkpoint=path)
    assert touched == []


def test_a_checkpoint_with_another_callback(tmp_path):
    class First:
        def __call__(self, step, loss):
            return False

        def state_dict(self):
            return {"a": 1}

        def load_state_dict(self, state):
            assert state == {"a": 1}

    class Second(First):
        pass

    path = tmp_path / "checkpoint.pt"
    train(new_model(), 2, paper_optimizer(), checkpoint=path, callback=First())
    train(new_model(), 3, paper_optimizer(), checkpoint=path, callback=First())
    with pytest.raises(ValueError, match="with a callback First, not Second"):
        train(new_model(), 4, paper_optimizer(), checkpoint=path, callback=Second())
