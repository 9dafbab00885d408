import copy

import pyro
import pyro.contrib.gp as gp
import pyro.contrib.gp.kernels as kernels
import pytest
import torch

from pyro_dgp.gp.kernels import RBF


@pytest.mark.parametrize("active_dims", [None, [0, 2], [2]])
def test_values_and_gradients_are_those_of_pyro(active_dims):
    D = 3 if active_dims is None else len(active_dims)
    lengthscale, variance = 0.5 + torch.rand(D), torch.tensor(1.7)
    X, Z, weight = torch.randn(6, 3), torch.randn(4, 3), torch.randn(6, 4)
    found = []
    for kind in (RBF, kernels.RBF):
        pyro.clear_param_store()  # or the second would take over the parameters of the first
        kernel = kind(D, variance, lengthscale, active_dims)
        inputs = [X.requires_grad_(), Z.requires_grad_()]
        inputs += [kernel.variance_unconstrained, kernel.lengthscale_unconstrained]
        value = kernel(X, Z)
        gradients = torch.autograd.grad((weight * value).sum(), inputs)
        found.append([value, kernel(X), kernel(X, diag=True), *gradients])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_an_offset_of_the_inputs_costs_no_accuracy(offset):
    X = torch.randn(50, 2)
    with torch.no_grad():
        far = RBF(2)((X + offset).float())
        exact = RBF(2)((X + offset).float().double())
    assert (far - exact).abs().max() < 1e-5


@pytest.mark.parametrize("variance", [2.0, 0.013, 170.0])
def test_rounding_gives_no_value_above_the_variance(variance):
    """Of points that are close to one another and far from most."""
    far = 1e3 * torch.randn(20, 3) + 1e4
    X = torch.cat([torch.randn(30, 3), far, far + 1e-3 * torch.randn(20, 3)]).float()
    with torch.no_grad():
        largest = RBF(3, torch.tensor(variance, dtype=torch.float32))(X).max()
    # Far less than the jitter, which is 1e-6 of the variance or more.
    assert largest <= variance * (1 + 5e-7)


def test_inputs_of_other_shapes():
    with torch.no_grad():
        for n in (1, 5):
            x = torch.randn(n)
            torch.testing.assert_close(RBF(1)(x), kernels.RBF(1)(x))
    with pytest.raises(ValueError, match="looks at input 2, counted from 0, but there are 2"):
        RBF(3)(torch.randn(4, 3), torch.randn(4, 2))


def test_far_inputs_are_unrelated():
    X = torch.tensor([[0.0], [1e3], [1e8]], dtype=torch.float32)
    with torch.no_grad():
        K = RBF(1, torch.tensor(2.0, dtype=torch.float32))(X)
    assert K.isfinite().all()
    assert K[0, 1] == K[0, 2] == 0


@pytest.mark.parametrize("same", [False, True])
def test_first_and_second_derivatives(same):
    kernel = RBF(2, torch.tensor(1.7), torch.tensor([0.8, 1.3]))
    for name in ("variance", "lengthscale"):
        delattr(kernel, f"{name}_unconstrained")

    def values(X, Z, variance, lengthscale):
        kernel.__dict__.update(variance=variance, lengthscale=lengthscale)
        return kernel(X) if same else kernel(X, Z)

    inputs = [torch.randn(4, 2), torch.randn(3, 2), torch.tensor(1.7), torch.tensor([0.8, 1.3])]
    inputs = [value.requires_grad_() for value in inputs]
    if same:
        values(*inputs)
    assert torch.autograd.gradcheck(values, inputs)
    assert torch.autograd.gradgradcheck(values, inputs)


@pytest.mark.parametrize("shape", [(1,), (3, 1, 1)])
def test_variances_that_are_no_single_number(shape):
    variance, X, Z = 0.5 + torch.rand(shape), torch.randn(4, 2), torch.randn(3, 2)
    found = []
    for kind in (RBF, kernels.RBF):
        pyro.clear_param_store()
        found.append(kind(2, variance)(X, Z))
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_functional_transforms():
    """Forward mode is that of reverse, and vmap has rules for all of it."""
    kernel, X, Z = RBF(2), torch.randn(6, 4, 2), torch.randn(3, 2)

    def total(x):
        return kernel(x, Z).square().sum()

    each = torch.stack([torch.func.grad(total)(x) for x in X])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(X), each)
    torch.testing.assert_close(torch.func.jacfwd(total)(X[0]), each[0])
    hessian = torch.func.jacrev(torch.func.grad(total))(X[0])
    for inner in (torch.func.grad, torch.func.jacfwd):
        torch.testing.assert_close(torch.func.jacfwd(inner(total))(X[0]), hessian)


@pytest.mark.parametrize("model", ["GPRegression", "SparseGPRegression", "VariationalSparseGP"])
def test_models_of_pyro_train_with_it(model):
    """They add jitter to kernel matrices in place."""
    X, y = torch.randn(8, 2), torch.randn(8)
    more = {
        "GPRegression": (),
        "SparseGPRegression": (torch.randn(3, 2),),
        "VariationalSparseGP": (torch.randn(3, 2), gp.likelihoods.Gaussian()),
    }[model]
    losses = []
    for kind in (RBF, kernels.RBF):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        trained = getattr(gp.models, model)(X, y, kind(2), *copy.deepcopy(more))
        losses.append(gp.util.train(trained, num_steps=3))
    torch.testing.assert_close(*map(torch.tensor, losses))


def test_no_rows_and_a_row_that_is_not_a_number():
    kernel, X = RBF(2), torch.randn(5, 2)
    assert kernel(X, X[:0]).shape == (5, 0)
    assert kernel(X[:0]).shape == (0, 0)
    expected = kernel(X, X)
    X = torch.cat([X, torch.full((1, 2), float("nan"))])
    torch.testing.assert_close(kernel(X)[:5, :5], expected)
