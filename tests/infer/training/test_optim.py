import warnings

import pyro
import pyro.optim
import pytest
import torch
from torch.distributions import constraints
from torch.optim.lr_scheduler import StepLR

from pyro_dgp.infer import Frozen, ScheduledAdam

OPTIONS = {"lr": 0.1, "betas": (0.8, 0.9)}
SCHEDULE = {"step_size": 2, "gamma": 0.5}


def pyros():
    return pyro.optim.StepLR({"optimizer": torch.optim.Adam, "optim_args": OPTIONS, **SCHEDULE})


def ours():
    return ScheduledAdam(StepLR, OPTIONS, **SCHEDULE)


def train(optim, which, dtype=torch.float64):
    """Steps on the parameters that ``which`` names, with gradients that differ from step to step.

    :returns: The parameters and the optimiser's state.
    """
    pyro.clear_param_store()
    start = torch.linspace(-1, 1, 7, dtype=dtype)
    for name in "abc":
        pyro.param(name, start.clone())
    params = {name: pyro.param(name).unconstrained() for name in "abc"}
    for step, names in enumerate(which):
        for i, (name, p) in enumerate(params.items()):
            p.grad = (step + i + 1) * (p.detach() - 0.3 * i).cos() if name in names else None
        optim([params[name] for name in names])
        optim.step()
    state = optim.get_state()
    return [p.detach() for p in params.values()], state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "which", [["abc"] * 6, ["a", "a", "a", "ab", "abc", "bc", "cba"]], ids=["all", "some"]
)
def test_steps_are_those_of_pyros_optimizer(which, dtype):
    """Also where a parameter comes late, with a learning rate of its own, or is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, state = train(ours(), which, dtype)
    expected, expected_state = train(pyros(), which, dtype)
    torch.testing.assert_close(found, expected)
    assert state.keys() == expected_state.keys() == set("abc")
    for name, theirs in expected_state.items():
        mine = state[name]
        assert mine["scheduler"] == theirs["scheduler"]
        mine, theirs = mine["optimizer"], theirs["optimizer"]
        # The number of steps has a dtype of its own.
        torch.testing.assert_close(mine["state"], theirs["state"], check_dtype=False)
        assert mine["param_groups"][0]["lr"] == theirs["param_groups"][0]["lr"]


def test_a_parameter_without_a_gradient_stays():
    optim = ours()
    p, q = (pyro.param(name, torch.ones(2)).unconstrained() for name in "pq")
    p.grad = torch.ones(2)
    for _ in range(3):
        optim([p, q])
    assert (p < 1).all()
    assert q.equal(torch.ones(2))


def test_gradients_that_lie_otherwise_in_memory():
    start = torch.zeros(3, 4)
    gradients = torch.tensor(1.0).expand(3, 4), torch.arange(12.0).reshape(4, 3).mT
    for gradient in gradients:
        pyro.clear_param_store()
        strange, plain = (pyro.param(name, start.clone()).unconstrained() for name in "ab")
        optim = ours()
        for _ in range(3):
            strange.grad, plain.grad = gradient, gradient.contiguous()
            optim([strange, plain])
        assert strange.equal(plain)


def test_a_parameter_that_is_a_slice():
    whole = torch.zeros(4, 6)
    parts = torch.nn.Parameter(whole[:, :3]), torch.nn.Parameter(torch.zeros(4, 3))
    for name, part in zip("ab", parts, strict=True):
        pyro.get_param_store()._param_to_name[part] = name
    optim = ours()
    for step in range(6):
        for part in parts:
            part.grad = torch.arange(12.0).reshape(4, 3) - step
        optim(parts)
    torch.testing.assert_close(*parts)
    assert whole[:, 3:].eq(0).all()


def test_complex_parameters_and_an_option_that_does_not_go_with_a_fused_step():
    found = []
    for optim in (
        ScheduledAdam(StepLR, {**OPTIONS, "foreach": True}, **SCHEDULE),
        pyros(),
    ):
        pyro.clear_param_store()
        pyro.param("a", torch.tensor([1.0 + 2.0j, -0.5j]))
        p = pyro.param("a").unconstrained()
        for step in range(4):
            p.grad = (step + 1) * p.detach().cos()
            optim([p])
            optim.step()
        found.append(p.detach())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("inner", [ours, pyros])
def test_frozen_parameters_move_when_they_may_with_the_schedule_of_the_others(inner):
    optim = Frozen(inner(), [], 3)
    p, q = (pyro.param(name, torch.ones(2)).unconstrained() for name in "pq")
    optim.parameters = [q]
    for step in range(5):
        p.grad, q.grad = torch.ones(2), torch.ones(2)
        optim([p, q])
        optim.optim.step()
        assert q.equal(torch.ones(2)) == (step < 3)
        assert not p.equal(torch.ones(2))
    # The first steps of Adam have the size of the learning rate, which has been halved once.
    torch.testing.assert_close(q.detach(), torch.full((2,), 1 - 0.05 - 0.025))


def test_what_is_frozen_must_be_what_is_optimised():
    p, q = (pyro.param(name, torch.ones(2)).unconstrained() for name in "pq")
    constrained = pyro.param("r", torch.ones(2), constraint=constraints.positive)
    with pytest.raises(ValueError, match="unconstrained"):
        Frozen(ours(), [constrained], 3)
    optim = Frozen(ours(), [q], 3)
    p.grad = torch.ones(2)
    with pytest.raises(ValueError, match="not among the optimised parameters"):
        optim([p])
