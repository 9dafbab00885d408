import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from pyro.contrib.gp.util import conditional
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_dgp.gp import conditional as conditional_module
from pyro_dgp.gp.conditional import (
    WhitenedConditional,
    stable_cholesky,
    whitened_conditional,
    whitened_kl,
)

R, M, N, D = 3, 7, 11, 2


def random_root(*shape):
    """Lower-triangular square roots whose diagonals have both signs."""
    return torch.randn(*shape).tril()


@pytest.fixture
def problem():
    kernel = RBF(D, lengthscale=torch.tensor([0.7, 1.3]), variance=torch.tensor(1.0))
    Z, X = torch.randn(M, D), torch.randn(N, D)
    with torch.no_grad():
        yield kernel, Z, X, torch.randn(R, M), random_root(R, M, M)


def test_marginals_are_those_of_pyro(problem):
    kernel, Z, X, m, S = problem
    Luu = stable_cholesky(kernel(Z), 1e-6)
    loc, var = whitened_conditional(Luu, kernel(X, Z), kernel(X, diag=True), m, S)
    expected = conditional(X, Z, kernel, m, S, Lff=Luu, whiten=True)
    torch.testing.assert_close(loc.mT, expected[0])
    torch.testing.assert_close(var.mT, expected[1])


def test_marginals_are_those_of_the_dense_gaussian(problem):
    """Marginalise [f, u] with u ~ N(L m, L S S^T L^T) by the rules for Gaussians, GP by GP."""
    kernel, Z, X, m, S = problem
    Kuu = kernel(Z) + 1e-6 * torch.eye(M)
    Kfu, Kff = kernel(X, Z), kernel(X)
    L = torch.linalg.cholesky(Kuu)
    loc, var = whitened_conditional(L, Kfu, kernel(X, diag=True), m, S)
    for r in range(R):
        u_loc, u_cov = L @ m[r], L @ S[r] @ S[r].mT @ L.mT
        gain = Kfu @ Kuu.inverse()
        torch.testing.assert_close(loc[:, r], gain @ u_loc)
        cov = Kff - gain @ Kfu.mT + gain @ u_cov @ gain.mT
        torch.testing.assert_close(var[:, r], cov.diagonal())


def test_marginals_of_blocks_are_those_of_the_whole(problem, monkeypatch):
    kernel, Z, X, m, S = problem
    monkeypatch.setattr(conditional_module, "_BLOCK", 3)
    monkeypatch.setattr(conditional_module, "_ROWS", 4)
    Luu = stable_cholesky(kernel(Z), 1e-6)
    Kfu, Kff_diag = kernel(X, Z), kernel(X, diag=True)
    found = WhitenedConditional(Luu, m, S)(Kfu, Kff_diag)
    expected = whitened_conditional(Luu, Kfu, Kff_diag, m, S)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_kl_is_that_of_torch_distributions():
    m, S = torch.randn(R, M), random_root(R, M, M)
    sign = S.diagonal(dim1=-2, dim2=-1).sign()
    q = MultivariateNormal(m, scale_tril=S * sign.unsqueeze(-2))
    p = MultivariateNormal(torch.zeros(M), scale_tril=torch.eye(M))
    torch.testing.assert_close(whitened_kl(m, S), kl_divergence(q, p))


def test_derivatives():
    kernel = RBF(D)

    def marginals(Z, X, m, S):
        Luu = stable_cholesky(kernel(Z), 1e-4)
        loc, var = whitened_conditional(Luu, kernel(X, Z), kernel(X, diag=True), m, S.tril())
        return loc, var, whitened_kl(m, S.tril())

    inputs = [torch.randn(4, D), torch.randn(3, D), torch.randn(2, 4), torch.randn(2, 4, 4)]
    assert torch.autograd.gradcheck(marginals, [x.requires_grad_() for x in inputs])


def plain_conditional(Luu, Kfu, Kff_diag, m, S):
    """The formulas as they are written in most papers, by solves and norms."""
    A = torch.linalg.solve_triangular(Luu, Kfu.mT, upper=False)
    var = Kff_diag - A.square().sum(0) + (S.mT @ A).square().sum(-2)
    return A.mT @ m.mT, var.mT


def hard_problem():
    """Inducing inputs so close to one another that the factor's condition number is 2000."""
    Z, X = torch.randn(128, 2), torch.randn(300, 2)
    m, S = torch.randn(R, 128), 0.1 * random_root(R, 128, 128)
    return Z, X, m, S


def test_values_and_gradients_are_those_of_the_plain_formulas():
    kernel = RBF(2)
    weights = torch.randn(300, R), torch.randn(300, R)
    found = {}
    inputs = [x.requires_grad_() for x in hard_problem()]
    for conditional_of in (whitened_conditional, plain_conditional):
        Z, X, m, S = inputs
        Luu = stable_cholesky(kernel(Z), 1e-5)
        marginals = conditional_of(Luu, kernel(X, Z), kernel(X, diag=True), m, S.tril())
        total = sum((w * v).sum() for w, v in zip(weights, marginals, strict=True))
        found[conditional_of] = (*marginals, *torch.autograd.grad(total, inputs))
    for ours, plain in zip(*found.values(), strict=True):
        assert (ours - plain).abs().max() < 1e-9 * plain.abs().max().clamp(min=1)


def inputs_in_a_row(num_inducing, root):
    """Far closer than the lengthscale: variances are some 1e-4."""
    Z, X = torch.linspace(0, 3, num_inducing).unsqueeze(-1), 3 * torch.rand(300, 1)
    return Z, X, torch.randn(R, num_inducing), root * torch.eye(num_inducing).expand(R, -1, -1)


@pytest.mark.parametrize("case", ["scattered", (50, 0.01), (50, 0.1), (128, 0.01), (128, 0.1)])
def test_error_in_float32_is_that_of_the_plain_formulas(case):
    weights = torch.randn(300, R), torch.randn(300, R)
    with torch.no_grad():
        Z, X, m, S = hard_problem() if case == "scattered" else inputs_in_a_row(*case)
        kernel = RBF(Z.shape[1])
        Luu = stable_cholesky(kernel(Z), 1e-5).float().double()
        problem = [x.float().double() for x in (Luu, kernel(X, Z), kernel(X, diag=True), m, S)]

    def marginals_and_gradients(conditional_of, dtype):
        inputs = [x.to(dtype).requires_grad_() for x in problem]
        marginals = conditional_of(*inputs)
        total = sum((w.to(dtype) * v).sum() for w, v in zip(weights, marginals, strict=True))
        by_Luu, *others = torch.autograd.grad(total, inputs)
        return *marginals, by_Luu.tril(), *others

    exact = marginals_and_gradients(plain_conditional, torch.float64)
    plain = marginals_and_gradients(plain_conditional, torch.float32)
    ours = marginals_and_gradients(whitened_conditional, torch.float32)
    for o, p, e in zip(ours, plain, exact, strict=True):
        assert (o - e).abs().max() < 3 * (p - e).abs().max() + 1e-6 * e.abs().max()
    assert (ours[1] > 0).all()


def small_problem(n):
    L = torch.randn(4, 4).tril(-1) + torch.diag(1.0 + torch.rand(4))
    inputs = L, torch.randn(n, 4), torch.rand(n), torch.randn(R, 4), torch.randn(R, 4, 4)
    return [x.requires_grad_() for x in inputs]


def conditional_of_small_problem(L, *others):
    return whitened_conditional(L.tril(), *others)


def test_second_derivatives():
    """The square roots S may be any square matrices, here as elsewhere."""
    inputs = small_problem(5)
    assert torch.autograd.gradcheck(conditional_of_small_problem, inputs)
    assert torch.autograd.gradgradcheck(conditional_of_small_problem, inputs)


@pytest.mark.parametrize("wanted", range(5))
def test_derivatives_by_one_input_are_those_by_all(wanted):
    inputs = small_problem(5)
    weights = torch.randn(5, R), torch.randn(5, R)

    def total(inputs):
        marginals = conditional_of_small_problem(*inputs)
        return sum((w * v).sum() for w, v in zip(weights, marginals, strict=True))

    expected = torch.autograd.grad(total(inputs), inputs)[wanted]
    alone = [x if i == wanted else x.detach() for i, x in enumerate(inputs)]
    torch.testing.assert_close(torch.autograd.grad(total(alone), alone[wanted])[0], expected)


def test_a_step_of_many_rows_is_the_sum_of_its_parts():
    """The rows are summed over in blocks, of which the last is smaller."""
    inputs = small_problem(2500)
    L, Kfu, Kff_diag, m, S = inputs

    def gradients(rows):
        marginals = conditional_of_small_problem(L, Kfu[rows], Kff_diag[rows], m, S)
        return torch.autograd.grad(sum(v.square().sum() for v in marginals), inputs)

    parts = gradients(slice(0, 700)), gradients(slice(700, None))
    for whole, *some in zip(gradients(slice(None)), *parts, strict=True):
        torch.testing.assert_close(whole, sum(some))


def test_conditional_of_no_rows():
    inputs = small_problem(0)
    loc, var = conditional_of_small_problem(*inputs)
    (loc.sum() + var.sum()).backward()
    assert loc.shape == var.shape == (0, R)
    assert inputs[-1].grad.equal(torch.zeros(R, 4, 4))


def test_conditional_takes_batches():
    """Of inputs by vmap, and of derivatives, as the profiler asks for them."""
    inputs = small_problem(5)
    L, Kfu, *others = inputs

    def of_rows(Kfu):
        return conditional_of_small_problem(L, Kfu, *others)

    batch = torch.vmap(of_rows)(torch.stack([Kfu, 2 * Kfu]))
    for b, one, other in zip(batch, of_rows(Kfu), of_rows(2 * Kfu), strict=True):
        torch.testing.assert_close(b, torch.stack([one, other]))

    marginals = of_rows(Kfu)
    v = [torch.randn(3, 5, R) for _ in marginals]
    batch = torch.autograd.grad(marginals, inputs, v, retain_graph=True, is_grads_batched=True)
    for i in range(3):
        alone = torch.autograd.grad(marginals, inputs, [w[i] for w in v], retain_graph=True)
        for b, one in zip(batch, alone, strict=True):
            torch.testing.assert_close(b[i], one)


@pytest.mark.parametrize("batched", [3, 4])
def test_derivatives_of_a_batch_are_those_of_its_entries(batched):
    """Also where a single output depends on what is batched, and outside of vmap."""
    inputs = small_problem(5)
    entries = [torch.randn_like(inputs[batched], requires_grad=True) for _ in range(3)]

    def total(entry):
        given = [entry if i == batched else x for i, x in enumerate(inputs)]
        return sum(v.sin().sum() for v in conditional_of_small_problem(*given))

    others = [x for i, x in enumerate(inputs) if i != batched]
    found = torch.autograd.grad(torch.vmap(total)(torch.stack(entries)).sum(), others)
    expected = torch.autograd.grad(sum(map(total, entries)), others)
    torch.testing.assert_close(found, expected)


def test_a_batch_of_jacobians():
    L, Kfu, *others = (x.detach() for x in small_problem(5))

    def variances(Kfu):
        return conditional_of_small_problem(L, Kfu, *others)[1]

    jacobian = torch.func.jacrev(variances)
    found = torch.vmap(jacobian)(torch.stack([Kfu, Kfu + 1]))
    torch.testing.assert_close(found, torch.stack([jacobian(Kfu), jacobian(Kfu + 1)]))


def test_cholesky_of_a_singular_matrix_takes_more_jitter_and_says_so():
    K = torch.ones(50, 50) - 1e-4 * torch.eye(50)  # its smallest eigenvalue is -1e-4
    with pytest.warns(RuntimeWarning, match="layer 1: .*more jitter"):
        L = stable_cholesky(K, 1e-6, "layer 1")
    assert L.isfinite().all()
    torch.testing.assert_close(L @ L.mT, K + 1e-3 * K[0, 0] * torch.eye(50))
