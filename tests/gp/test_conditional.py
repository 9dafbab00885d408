import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from pyro.contrib.gp.util import conditional
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_dgp.gp.conditional import (
    quadratic_forms,
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


def test_error_in_float32_is_that_of_the_plain_formulas():
    """Within a factor of six: one inverse instead of a solve for every datum costs some three."""
    kernel = RBF(2)
    with torch.no_grad():
        Z, X, m, S = hard_problem()
        problem = stable_cholesky(kernel(Z), 1e-5), kernel(X, Z), kernel(X, diag=True), m, S
        exact = plain_conditional(*problem)
        single = [x.float() for x in problem]
        ours, plain = whitened_conditional(*single), plain_conditional(*single)
    for o, p, e in zip(ours, plain, exact, strict=True):
        assert 0 < (o - e).abs().max() < 6 * (p - e).abs().max()


def symmetric_problem():
    A, C = torch.randn(5, 4), torch.randn(R, 4, 4)
    return A.requires_grad_(), C.requires_grad_()


def test_quadratic_forms_and_their_derivatives():
    A, C = symmetric_problem()

    def forms(A, C):
        return quadratic_forms(A, C + C.mT)

    expected = torch.einsum("ni,rij,nj->nr", A, C + C.mT, A)
    torch.testing.assert_close(forms(A, C), expected)
    assert torch.autograd.gradcheck(forms, (A, C))
    assert torch.autograd.gradgradcheck(forms, (A, C))
    batched = torch.vmap(forms, in_dims=(0, None))(torch.stack([A, 2 * A]), C)
    torch.testing.assert_close(batched, torch.stack([expected, 4 * expected]))


def test_quadratic_forms_of_no_rows():
    A, C = torch.randn(0, 4).requires_grad_(), torch.randn(R, 4, 4).requires_grad_()
    value = quadratic_forms(A, C)
    value.sum().backward()
    assert value.shape == (0, R)
    assert C.grad.equal(torch.zeros(R, 4, 4))


def test_quadratic_forms_take_a_batch_of_derivatives():
    """As the profiler asks for them."""
    A, C = symmetric_problem()
    value = quadratic_forms(A, C + C.mT)
    v = torch.randn(3, 5, R)
    batch = torch.autograd.grad(value, (A, C), v, retain_graph=True, is_grads_batched=True)
    for i in range(3):
        for b, one in zip(
            batch, torch.autograd.grad(value, (A, C), v[i], retain_graph=True), strict=True
        ):
            torch.testing.assert_close(b[i], one)


def test_cholesky_of_a_singular_matrix_takes_more_jitter_and_says_so():
    K = torch.ones(50, 50) - 1e-4 * torch.eye(50)  # its smallest eigenvalue is -1e-4
    with pytest.warns(RuntimeWarning, match="layer 1: .*more jitter"):
        L = stable_cholesky(K, 1e-6, "layer 1")
    assert L.isfinite().all()
    torch.testing.assert_close(L @ L.mT, K + 1e-3 * K[0, 0] * torch.eye(50))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_cholesky_that_cannot_be_saved_names_the_layer(bad):
    K = torch.eye(3)
    K[0, 0] = bad
    with pytest.raises(ValueError, match="layer 1"):
        stable_cholesky(K, 1e-6, "layer 1")
