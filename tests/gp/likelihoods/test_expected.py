"""E[log p(y | f)], which training needs."""

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

from pyro_dgp.gp import likelihoods as lik
from pyro_dgp.gp.likelihoods.quadrature import normal_rule
from tests.gp.likelihoods.cases import CASES
from tests.quadrature import even_nodes

# Rounding of the references, and of log densities that are differences of large numbers (as of
# 1000 trials, log Gamma(1001) = 5912).
ROUNDING = 2e-12

every_case = pytest.mark.parametrize("name", CASES)
cases_with_bends = pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if type(c.make()).bends is not lik.Likelihood.bends]
)
exact_cases = pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.loose is None])


def relative_error(found, exact):
    error = np.abs(np.asarray(found.detach()) - exact) - ROUNDING
    return error / np.maximum(np.abs(exact), 1e-9)


@every_case
def test_the_expected_log_density_is_its_integral(name):
    case = CASES[name]
    y, loc, var, given = case.grid()
    found = case.make().expected_log_prob(y, loc, var, **given)
    exact = case.expected(y, loc, var, **given)
    assert relative_error(found, exact).max() < (case.loose or 1e-6)


@pytest.mark.parametrize("ratio", [0.1, 0.499])
@cases_with_bends
def test_a_normal_that_is_narrow_beside_all_bends_needs_few_nodes(name, ratio):
    case = CASES[name]
    likelihood, (y, loc, var, given) = case.make(), case.grid(variances=(1.0,))
    bends = likelihood.bends(y, **given)
    assert len(normal_rule(loc, (0.51 * bends.width) ** 2 * var, bends)[1]) > 32
    var = ((ratio * bends.width) ** 2 * var).detach()
    assert len(normal_rule(loc, var, bends)[1]) == 32
    found = likelihood.expected_log_prob(y, loc, var, **given)
    assert relative_error(found, case.expected(y, loc, var, **given)).max() < 1e-6


@exact_cases
def test_it_lies_below_the_log_of_the_expected_density(name):
    case = CASES[name]
    likelihood, (y, loc, var, given) = case.make(), case.grid()
    found = likelihood.expected_log_prob(y, loc, var, **given)
    above = likelihood.marginal(loc, var, **given).log_prob(y)
    assert (found <= above + 1e-7 * (1 + above.abs())).all()


@every_case
def test_the_log_of_the_expected_density_is_another_number(name):
    case = CASES[name]
    y, loc, var, given = case.grid(variances=(1.0, 9.0))
    wrong = case.log_marginal(y, loc, var, **given)
    assert (wrong - case.expected(y, loc, var, **given)).max() > 0.05


@exact_cases
def test_float32_is_as_good_as_float32_can_be(name):
    case = CASES[name]
    torch.set_default_dtype(torch.float32)
    moderate = case.grid(means=(-1.0, 0.4, 3.0), variances=(1e-4, 0.3, 9.0))
    y, loc, var, given = moderate
    given = {k: v.float() for k, v in given.items()}
    found = case.make().expected_log_prob(y.float(), loc.float(), var.float(), **given)
    assert found.dtype == torch.float32
    exact = case.expected(y.float(), loc.float(), var.float(), **given)
    # y and f are rounded to 6e-8 of themselves; where y = 1000 is compared with f = 3, or log y! of
    # 1000 with its like, that is 1e-4 of the noise.
    np.testing.assert_allclose(found.detach(), exact, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("scale", [0.01, 0.05, 0.2, 1.0])
def test_float32_has_enough_nodes_for_two_bends(scale):
    """Also for derivatives, where training has its means and variances."""

    def evaluated(dtype):
        torch.set_default_dtype(dtype)
        likelihood = lik.Rounded(width=1.0, scale=scale)
        m, s = torch.meshgrid(
            torch.linspace(-4, 4, 81), torch.tensor([0.05, 0.2, 0.5, 1.0, 3.0]), indexing="ij"
        )
        m, s = (t.to(dtype).requires_grad_() for t in (m, s))
        values = likelihood.expected_log_prob(torch.zeros_like(m), m[None], s.square()[None])
        return values.detach(), *torch.autograd.grad(values.sum(), (m, s))

    for single, double in zip(evaluated(torch.float32), evaluated(torch.float64), strict=True):
        assert double.abs().median() > 1e-2
        torch.testing.assert_close(single.double(), double, rtol=3e-3, atol=3e-3)


@exact_cases
def test_float32_is_finite_on_the_whole_grid(name):
    case = CASES[name]
    torch.set_default_dtype(torch.float32)
    y, loc, var, given = case.grid()
    given = {k: v.float() for k, v in given.items()}
    y = y.float()
    if isinstance(case.make(), lik.Beta):
        y = y.clamp(1e-6, 1 - 1e-6)
    found = case.make().expected_log_prob(y, loc.float(), var.float(), **given)
    assert found.isfinite().all()


class _Expected(nn.Module):
    """From outputs of the last layer, through the intercept and the like."""

    def __init__(self, likelihood):
        super().__init__()
        self.likelihood = likelihood

    def forward(self, y, f_loc, f_var, given):
        loc, var = self.likelihood.functions(f_loc.unsqueeze(-1), f_var.unsqueeze(-1))
        return self.likelihood.expected_log_prob(y, loc.squeeze(-1), var.squeeze(-1), **given)


def _check_gradients(likelihood, y, loc, var, given):
    module = _Expected(likelihood)
    values = dict(module.named_parameters())

    def expected(loc, var, *parameters):
        return torch.func.functional_call(
            module, dict(zip(values, parameters, strict=True)), (y, loc, var, given)
        )

    inputs = [t.detach().clone().requires_grad_() for t in (loc, var, *values.values())]
    # Differences of numbers of up to a few thousand, over 1e-6.
    assert torch.autograd.gradcheck(expected, inputs, atol=1e-4, rtol=1e-4)


@exact_cases
def test_gradients_are_those_of_the_value(name):
    case = CASES[name]
    y, loc, var, given = case.grid(means=(-1.0, 0.4, 3.0), variances=(0.1, 1.0))
    near = (y.abs() < 50) if name != "rounded, small scale" else (y.abs() < 2)
    given = {k: v[near] for k, v in given.items()}
    _check_gradients(case.make(), y[near], loc[:, near], var[:, near], given)


@pytest.mark.parametrize(
    "name", ["student-t, df 4", "rounded, width 0.3", "beta, concentration 10"]
)
def test_it_is_a_function_of_leading_dimensions_and_of_several_targets(name):
    case = CASES[name]
    likelihood, (y, loc, var, given) = case.make(), case.grid()
    flat = likelihood.expected_log_prob(y, loc, var, **given)
    y_, loc_, var_ = (t.unflatten(-1, (len(case.y), -1)) for t in (y, loc, var))
    torch.testing.assert_close(likelihood.expected_log_prob(y_, loc_, var_), flat.view_as(y_))
    one_y = likelihood.expected_log_prob(y_[:, :1], loc_, var_)
    torch.testing.assert_close(one_y, flat.view_as(y_))


def _categorical_grid():
    m = torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 0.3], [-8.0, 3.0, 10.0], [0.4, 3.0, 2.5]])
    v = torch.tensor(
        [[1e-8] * 3, [1e-4, 0.3, 1.0], [0.3] * 3, [1.0] * 3, [9.0, 1.0, 0.3], [25.0] * 3]
    )
    loc, var = m[:, None, None].expand(4, 6, 3, 3), v[None, :, None].expand(4, 6, 3, 3)
    y = torch.arange(3).expand(4, 6, 3)
    return y, loc.movedim(-1, 0), var.movedim(-1, 0)


def _categorical_exact(y, loc, var):
    # At steps of 0.3 the error is e^(-2 pi (pi / 5) / 0.3) for a standard deviation of 5.
    x, w = (t.numpy() for t in even_nodes(6.6, 45))
    exact = np.zeros(y.shape)
    for i in np.ndindex(*y.shape[:2]):
        m, s = (np.asarray(t)[(slice(None), *i, 0)] for t in (loc, var.sqrt()))
        f = np.meshgrid(*(m_ + s_ * x for m_, s_ in zip(m, s, strict=True)), indexing="ij")
        mean = np.einsum("abc,a,b,c->", special.logsumexp(f, 0), w, w, w)
        exact[i] = m - mean
    return torch.tensor(exact)


def test_the_categorical_bound_lies_below_and_is_tight():
    likelihood = lik.Categorical(3, torch.tensor([0.2, 0.5, 0.3]))
    y, loc, var = _categorical_grid()
    found = likelihood.expected_log_prob(y, loc, var)
    exact = _categorical_exact(y, loc, var)
    assert (found <= exact + 1e-6).all()
    jensen = loc.gather(0, y[None])[0] - (loc + var / 2).logsumexp(0)
    assert (found >= jensen - 1e-9).all()
    # The bound's own slack, at its optimum.
    for largest, slack in ((0.3, 0.005), (1.0, 0.05)):
        assert (exact - found)[(var <= largest).all(0)].max() < slack
    assert (exact - likelihood.marginal(loc, var).log_prob(y) < -0.05).any()


def test_the_categorical_bound_in_float32_and_its_gradients():
    likelihood = lik.Categorical(3, torch.tensor([0.2, 0.5, 0.3]))
    y, loc, var = (t[..., 1:4, :, :].flatten(-3) for t in _categorical_grid())
    single = likelihood.expected_log_prob(y, loc.float(), var.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(
        single.double(), likelihood.expected_log_prob(y, loc, var), rtol=1e-4, atol=1e-4
    )
    # The bound's a are constants for differentiation: at the optimum, the value does not depend on
    # them.
    module, inputs = _Expected(likelihood), [loc[:, ::5].clone(), var[:, ::5].clone()]
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(
        lambda loc, var: module(y[::5], loc, var, {}), inputs, atol=1e-6, rtol=1e-4
    )
