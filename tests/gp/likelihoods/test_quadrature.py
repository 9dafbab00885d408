"""The engine of expectations, and probabilities of intervals."""

import math

import mpmath
import numpy as np
import pytest
import torch

from pyro_dgp.gp.likelihoods.quadrature import Bends, expected, log_expected, normal_rule
from pyro_dgp.gp.likelihoods.special import log_interval, log_ndtr
from tests.quadrature import even_nodes


def _grid():
    m, v = torch.meshgrid(
        torch.tensor([-8.0, 0.0, 0.4, 10.0]), torch.tensor([1e-12, 1e-4, 1.0, 25.0]), indexing="ij"
    )
    return m[None], v[None]


BENDS = [
    None,
    Bends((0.0,), 1.0),
    Bends((0.4,), 1e-3),
    Bends((1e6,), 1e-3),
    Bends((-1e6, 0.1), 0.5),
    Bends((0.39, 0.41), 1e-3),
    Bends((0.4, 0.4), 0.1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bends", BENDS)
def test_weights_are_positive_and_sum_to_one(bends, dtype):
    loc, var = (t.to(dtype) for t in _grid())
    x, log_w = normal_rule(loc, var, bends)
    assert x.dtype == log_w.dtype == dtype
    assert x.isfinite().all()
    total = log_w.double().exp().sum(0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-6, atol=0)


@pytest.mark.parametrize("bends", BENDS)
def test_a_linear_function_is_exact(bends):
    loc, var = _grid()
    found = expected(lambda f: 3 * f - 2, loc, var, bends)
    torch.testing.assert_close(found, 3 * loc[0] - 2, rtol=1e-7, atol=1e-6)


def test_gauss_hermite_nodes_are_exact_for_polynomials():
    loc, var = torch.tensor([0.3]), torch.tensor([2.0])
    x = loc[:, None]  # one element
    for degree in (1, 2, 3, 6, 12, 20):
        # E[(f - m)^k] is v^(k/2) (k - 1)!!.
        found = expected(lambda f, k=degree: (f - 0.3) ** k, x, var[:, None])
        odd = degree % 2
        moment = 0.0 if odd else 2.0 ** (degree / 2) * math.prod(range(1, degree, 2))
        torch.testing.assert_close(found, torch.tensor([moment]), rtol=1e-9, atol=1e-6)


def test_products_of_nodes_are_exact_for_polynomials_of_several_functions():
    loc = torch.tensor([[0.5], [-1.0], [2.0]])
    var = torch.tensor([[1.0], [4.0], [0.3]])
    found = expected(lambda f, g, h: f * f * g + h**4, loc, var)
    fourth = 2.0**4 + 6 * 2.0**2 * 0.3 + 3 * 0.3**2
    torch.testing.assert_close(found, torch.tensor([1.25 * -1.0 + fourth]))


def test_narrow_normals_give_the_value_at_their_mean():
    loc, var = torch.tensor([[-3.0, 0.2, 5.0]]), torch.full((1, 3), 1e-12)
    for bends in BENDS:
        found = expected(torch.cos, loc, var, bends)
        torch.testing.assert_close(found, loc[0].cos(), rtol=1e-9, atol=1e-9)
        log_found = log_expected(lambda f: -f.square(), loc, var, bends=bends)
        torch.testing.assert_close(log_found, -loc[0].square(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("distance", [0.0, 1.0, 5.0, 7.5, 8.4, 9.0, 1e3])
@pytest.mark.parametrize("width", [1e-3, 1e-1, 1.0])
def test_a_bend_is_resolved_wherever_it_lies(distance, width):
    # log(1 + (f - c)^2 / w^2) has its singularities at c +- i w.
    c = torch.tensor([distance])
    bends = Bends((c,), width)

    def g(f):
        return ((f - c) / width).square().log1p()

    fine, w = even_nodes(9.0, 1_800_001)
    exact = (w * g(fine)).sum()
    found = expected(g, torch.zeros(1, 1), torch.ones(1, 1), bends)
    torch.testing.assert_close(found[0], exact, rtol=1e-6, atol=0)


def test_a_logarithm_of_an_expectation_may_underflow():
    # Of normals: log N(y; m, v + s^2), 1000 standard deviations away.
    loc, var = torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 1e-6]])
    y = torch.tensor(1000.0)

    def log_g(f):
        return torch.distributions.Normal(f, 0.1).log_prob(y)

    exact = torch.distributions.Normal(loc[0], (var[0] + 0.01).sqrt()).log_prob(y)
    torch.testing.assert_close(log_expected(log_g, loc, var), exact, rtol=1e-9, atol=0)


def test_an_elements_result_does_not_depend_on_the_others():
    def log_g(f):  # a Poisson's, whose Newton steps on e^f are all of length 1
        return 1000 * f - f.exp()

    loc = torch.tensor([[3.0, -8.0, 6.9, 10.0]])
    var = torch.tensor([[9.0, 1e-8, 0.3, 25.0]])
    together = log_expected(log_g, loc, var)
    alone = torch.cat([log_expected(log_g, loc[:, i : i + 1], var[:, i : i + 1]) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=0)


def test_derivatives_are_those_of_the_expectation():
    loc, var = torch.tensor([[0.3, 2.0]]), torch.tensor([[0.5, 4.0]])
    loc.requires_grad_()
    var.requires_grad_()
    found = expected(torch.exp, loc, var)
    d_loc, d_var = torch.autograd.grad(found.sum(), (loc, var))
    exact = (loc + var / 2).exp()
    torch.testing.assert_close(d_loc, exact)
    torch.testing.assert_close(d_var, exact / 2)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-1.0, 1.0), (0.0, 1e-9), (3.0, 3.0001), (30.0, 31.0), (-300.0, -299.5), (1e4, 1e4 + 1),
        (-1e4, 0.3), (-0.2, 1e4), (8.0, 1e4), (-40.0, 40.0), (-1e4, -9999.99),
    ],
)  # fmt: skip
def test_log_probabilities_of_intervals_are_right_far_in_the_tails(low, high):
    mpmath.mp.dps = 60
    a, b = mpmath.mpf(low), mpmath.mpf(high)

    def upper(x):
        return mpmath.erfc(x / mpmath.sqrt(2)) / 2

    p = upper(a) - upper(b) if low + high > 0 else upper(-b) - upper(-a)
    exact = float(mpmath.log(p))
    found = log_interval(torch.tensor(low), torch.tensor(high)).item()
    # The two ends' logarithms are known to 1e-16 of themselves or of 1, and their difference is as
    # short as the interval.
    rounding = 1e-15 * max(1, abs(low), abs(high)) / (high - low)
    assert abs(found - exact) <= 1e-9 * abs(exact) + rounding


def test_log_probabilities_of_intervals_have_finite_derivatives():
    low = torch.tensor([-1e4, -3.0, 50.0, 3.0, 0.0], requires_grad=True)
    high = torch.tensor([-9999.0, 4.0, 50.1, 1e4, 1e-6], requires_grad=True)
    found = log_interval(low, high)
    grads = torch.autograd.grad(found.sum(), (low, high))
    assert all(g.isfinite().all() for g in grads)
    assert np.all(np.asarray(grads[0]) <= 0)
    assert np.all(np.asarray(grads[1]) >= 0)


def test_derivatives_of_log_probabilities_of_intervals():
    """On both sides, in the tails and in the body, of the first and the second order."""
    low = torch.tensor([-30.0, -5.0, -1.01, -0.5, 0.3, 2.0, 7.0]).double().requires_grad_()
    high = low.detach() + torch.tensor([0.3, 1.0, 0.02, 9.0, 0.5, 2.5, 0.1])
    high.requires_grad_()
    assert torch.autograd.gradcheck(log_interval, (low, high))
    assert torch.autograd.gradgradcheck(log_interval, (low, high))
    by_vmap = torch.vmap(torch.func.grad(log_interval))(low, high)
    (one_by_one,) = torch.autograd.grad(log_interval(low, high).sum(), low)
    torch.testing.assert_close(by_vmap, one_by_one)


def test_log_probabilities_of_half_lines_and_of_points_have_finite_derivatives():
    inf = math.inf
    low = torch.tensor([-inf, -3.0, -inf, 50.0, -1e20, -1e20, 2.0], requires_grad=True)
    high = torch.tensor([1.0, inf, inf, inf, -1e19, -4.0, 2.0], requires_grad=True)
    found = log_interval(low, high)
    slopes = torch.autograd.grad(found.sum(), (low, high), create_graph=True)
    seconds = torch.autograd.grad(slopes[0].sum() + slopes[1].sum(), (low, high))
    assert found.isfinite().all()
    assert all(d.isfinite().all() for d in slopes)
    assert all(d[:4].isfinite().all() for d in seconds)
    torch.testing.assert_close(found[:2], torch.special.log_ndtr(torch.tensor([1.0, 3.0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_far_in_the_tail(dtype):
    """Where those of torch's log_ndtr are 0 or NaN."""
    x = torch.tensor([-1e7, -1e5, -1e3, -30.0, -3.0, -0.5, 2.0], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(log_ndtr(x).sum(), x)
    exact = [float(mpmath.npdf(v) / mpmath.ncdf(v)) for v in map(mpmath.mpf, x.tolist())]
    torch.testing.assert_close(slope, torch.tensor(exact, dtype=dtype), rtol=1e-4, atol=0)
    x = torch.tensor([1e5, 1e3, 10.0, 1.0], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(log_interval(x - 1, x + 1).sum(), x)
    # Nearly all of an interval's probability lies at its near end.
    torch.testing.assert_close(slope[:2], 1 - x[:2].detach(), rtol=2e-3, atol=0)
    assert slope.isfinite().all()


def test_forward_mode_is_that_of_reverse():
    low, high = torch.tensor([-3.0, -0.4, 2.0]).double(), torch.tensor([-2.5, 1.0, 2.1]).double()

    def total(ends):
        return log_interval(*ends).sum()

    ends = torch.stack([low, high])
    torch.testing.assert_close(torch.func.jacfwd(total)(ends), torch.func.grad(total)(ends))
    hessian = torch.func.jacrev(torch.func.grad(total))(ends)
    for inner in (torch.func.grad, torch.func.jacfwd):
        torch.testing.assert_close(torch.func.jacfwd(inner(total))(ends), hessian)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*deprecated")
def test_a_traced_rule_is_right_for_other_variances():
    bends = Bends((0.0, 0.3), 0.1)

    def integral(loc, var):
        return expected(lambda f: (f.abs() - 0.1).sigmoid().log(), loc, var, bends)

    loc = torch.zeros(1, 4)
    traced = torch.jit.trace(integral, (loc, torch.full((1, 4), 1e-4)), check_trace=False)
    wide = torch.full((1, 4), 25.0)
    torch.testing.assert_close(traced(loc, wide), integral(loc, wide))
