import copy
import math

import pyro
import pyro.contrib.gp as gp
import pyro.contrib.gp.kernels as kernels
import pytest
import torch

from pyro_dgp.gp.kernels import KERNELS, RBF, Matern12, Matern32, Matern52, kernel_named

PYRO = {
    RBF: kernels.RBF,
    Matern12: kernels.Exponential,
    Matern32: kernels.Matern32,
    Matern52: kernels.Matern52,
}


@pytest.fixture(params=PYRO, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def without_diagonal(K):
    """Pyro's distance of a point to itself is not 0."""
    return K - K.diagonal().diag()


@pytest.mark.parametrize("active_dims", [None, [0, 2], [2]])
def test_values_and_gradients_are_those_of_pyro(kind, active_dims, monkeypatch):
    # Pyro adds 1e-12 to squared distances.
    monkeypatch.setattr("pyro.contrib.gp.kernels.isotropic._torch_sqrt", torch.sqrt)
    D = 3 if active_dims is None else len(active_dims)
    lengthscale, variance = 0.5 + torch.rand(D), torch.tensor(1.7)
    X, Z, weight = torch.randn(6, 3), torch.randn(4, 3), torch.randn(6, 4)
    found = []
    for kernel_class in (kind, PYRO[kind]):
        pyro.clear_param_store()  # or the second would take over the parameters of the first
        kernel = kernel_class(D, variance, lengthscale, active_dims)
        inputs = [X.requires_grad_(), Z.requires_grad_()]
        inputs += [kernel.variance_unconstrained, kernel.lengthscale_unconstrained]
        value = kernel(X, Z)
        gradients = torch.autograd.grad((weight * value).sum(), inputs)
        whole = kernel(X)
        found.append([value, without_diagonal(whole), kernel(X, diag=True), *gradients])
        if kind is not Matern12:
            found[-1].append(whole)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_an_offset_of_the_inputs_costs_no_accuracy(kind, offset):
    X = torch.randn(50, 2)
    Z = X[:20] + 0.5
    with torch.no_grad():
        for inputs in ([X], [X, Z]):
            inputs = [(v + offset).float() for v in inputs]
            far = kind(2)(*inputs)
            exact = kind(2)(*(v.double() for v in inputs))
            assert (far - exact).abs().max() < 1e-5


@pytest.mark.parametrize("variance", [2.0, 0.013, 170.0])
def test_rounding_gives_no_value_above_the_variance(kind, variance):
    """Of points that are close to one another and far from most."""
    far = 1e3 * torch.randn(20, 3) + 1e4
    X = torch.cat([torch.randn(30, 3), far, far + 1e-3 * torch.randn(20, 3)]).float()
    with torch.no_grad():
        kernel = kind(3, torch.tensor(variance, dtype=torch.float32))
        largest = max(kernel(X).max(), kernel(X, X).max())
    # Far less than the jitter, which is 1e-6 of the variance or more.
    assert largest <= variance * (1 + 5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variance", [0.013, 1.7])
def test_the_diagonal_is_exactly_the_variance(kind, dtype, variance):
    kernel = kind(3, torch.tensor(variance)).to(dtype)
    X = 100 + 10 * torch.randn(50, 3, dtype=dtype)
    with torch.no_grad():
        assert (kernel(X).diagonal() == kernel.variance).all()
    K = kernel(X)
    assert K.dtype == dtype
    by_log = torch.autograd.grad(K.trace(), kernel.variance_unconstrained)[0]
    rtol = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(by_log, 50 * kernel.variance.detach(), rtol=rtol, atol=0.0)


def test_inputs_of_other_shapes(kind):
    with torch.no_grad():
        for n in (1, 5):
            x = torch.randn(n)
            ours, theirs = kind(1)(x), PYRO[kind](1)(x)
            torch.testing.assert_close(without_diagonal(ours), without_diagonal(theirs))


def test_far_inputs_are_unrelated(kind):
    X = torch.tensor([[0.0], [1e3], [1e8]], dtype=torch.float32)
    with torch.no_grad():
        kernel = kind(1, torch.tensor(2.0, dtype=torch.float32))
        for K in (kernel(X), kernel(X, X)):
            assert K.isfinite().all()
            assert K[0, 1] == K[0, 2] == 0


def values_of(kind):
    """The kernel of 2 inputs as a function of X, Z or None, and its parameters."""
    kernel = kind(2, torch.tensor(1.7), torch.tensor([0.8, 1.3]))
    for name in ("variance", "lengthscale"):
        delattr(kernel, f"{name}_unconstrained")

    def values(X, Z, variance, lengthscale):
        kernel.__dict__.update(variance=variance, lengthscale=lengthscale)
        return kernel(X, Z)

    return values


def arguments(dtype=torch.float64):
    found = [torch.randn(4, 2), torch.randn(3, 2), torch.tensor(1.7), torch.tensor([0.8, 1.3])]
    return [value.to(dtype).requires_grad_() for value in found]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("same", [False, True])
def test_first_and_second_derivatives(kind, same):
    of_both = values_of(kind)

    def values(X, Z, variance, lengthscale):
        return of_both(X, None if same else Z, variance, lengthscale)

    inputs = arguments()
    if same:
        values(*inputs)
    assert torch.autograd.gradcheck(values, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(values, inputs, check_fwd_over_rev=True)


def test_third_derivatives(kind):
    values = values_of(kind)
    X, *others = arguments()

    def gradient(X, Z, variance, lengthscale):
        total = values(X, Z, variance, lengthscale).square().sum()
        return torch.autograd.grad(total, X, create_graph=True)[0]

    assert torch.autograd.gradgradcheck(gradient, [X, *others])


@pytest.mark.parametrize("shape", [(1,), (3, 1, 1)])
def test_variances_that_are_no_single_number(kind, shape):
    variance, X, Z = 0.5 + torch.rand(shape), torch.randn(4, 2), torch.randn(3, 2)
    found = []
    for kernel_class in (kind, PYRO[kind]):
        pyro.clear_param_store()
        found.append(kernel_class(2, variance)(X, Z))
    torch.testing.assert_close(*found)
    pyro.clear_param_store()
    diagonal = kind(2, variance)(X).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(diagonal, variance.reshape(*shape[:-2], 1).expand_as(diagonal))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_functional_transforms(kind):
    """Forward mode is that of reverse, and vmap has rules for all of it."""
    kernel, X, Z = kind(2), torch.randn(6, 4, 2), torch.randn(3, 2)

    def total(x):
        return kernel(x, Z).square().sum()

    each = torch.stack([torch.func.grad(total)(x) for x in X])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(X), each)
    torch.testing.assert_close(torch.func.jacfwd(total)(X[0]), each[0])
    hessian = torch.func.jacrev(torch.func.grad(total))(X[0])
    for inner in (torch.func.grad, torch.func.jacfwd):
        torch.testing.assert_close(torch.func.jacfwd(inner(total))(X[0]), hessian)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("same", "argument"), [(False, 0), (False, 1), (False, 2), (False, 3), (True, 0), (True, 2)]
)
def test_functional_transforms_of_every_argument(kind, dtype, same, argument):
    values, inputs = values_of(kind), [v.detach() for v in arguments(dtype)]

    def total(v):
        X, Z, *others = [*inputs[:argument], v, *inputs[argument + 1 :]]
        return values(X, None if same else Z, *others).square().sum()

    V = torch.stack([inputs[argument], 1.5 * inputs[argument]])
    by_vmap = torch.func.vmap(torch.func.grad(total))(V)
    torch.testing.assert_close(by_vmap, torch.stack([torch.func.grad(total)(v) for v in V]))
    torch.testing.assert_close(torch.func.jacfwd(total)(V[0]), by_vmap[0])
    # The values alone, and the gradient outside.
    V.requires_grad_()
    outside = torch.autograd.grad(torch.func.vmap(total)(V).sum(), V)[0]
    torch.testing.assert_close(outside, by_vmap)


@pytest.mark.parametrize("model", ["GPRegression", "SparseGPRegression", "VariationalSparseGP"])
def test_models_of_pyro_train_with_it(kind, model):
    """They add jitter to kernel matrices in place."""
    X, y = torch.randn(8, 2), torch.randn(8)
    more = {
        "GPRegression": (),
        "SparseGPRegression": (torch.randn(3, 2),),
        "VariationalSparseGP": (torch.randn(3, 2), gp.likelihoods.Gaussian()),
    }[model]
    losses = []
    for kernel_class in (kind, PYRO[kind]):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        trained = getattr(gp.models, model)(X, y, kernel_class(2), *copy.deepcopy(more))
        losses.append(gp.util.train(trained, num_steps=3))
    # Pyro's distance of a point to itself is 1e-6, which this kernel sees.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if kind is Matern12 else {}
    torch.testing.assert_close(*map(torch.tensor, losses), **tolerance)


def test_no_rows_and_a_row_that_is_not_a_number(kind):
    kernel, X = kind(2), torch.randn(5, 2)
    assert kernel(X, X[:0]).shape == (5, 0)
    assert kernel(X[:0]).shape == (0, 0)
    expected = kernel(X)
    # The distance of a point to itself has rounding where the points could be others.
    torch.testing.assert_close(kernel(X, X), expected, rtol=1e-7, atol=1e-7)
    X = torch.cat([X, torch.full((1, 2), float("nan"))])
    K = kernel(X)
    torch.testing.assert_close(K[:5, :5], expected)
    assert K[5, :5].isnan().all()


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_float32_is_close_to_float64(kind, scale):
    X, Z = (scale * torch.randn(n, 12).float() for n in (200, 50))
    weight = torch.randn(200, 50)
    found = []
    for dtype in (torch.float32, torch.float64):
        pyro.clear_param_store()
        kernel = kernel_named(next(n for n, k in KERNELS.items() if k is kind), 12).to(dtype)
        inputs = [v.to(dtype).requires_grad_() for v in (X, Z)]
        value = kernel(*inputs)
        inputs += [kernel.variance_unconstrained, kernel.lengthscale_unconstrained]
        gradients = torch.autograd.grad((weight.to(dtype) * value).sum(), inputs)
        found.append([value, *gradients])
    (value, *gradients), (exact, *exact_gradients) = found
    assert (value - exact).abs().max() < 1e-5
    for ours, expected in zip(gradients, exact_gradients, strict=True):
        assert (ours - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [0.0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2])
def test_points_that_coincide_or_nearly(kind, dtype, distance):
    """Against the formula from the differences, whose gradient at distance 0 is 0."""
    root = math.sqrt(torch.finfo(dtype).eps)
    Z = torch.randn(30, 5, dtype=dtype)
    direction = torch.nn.functional.normalize(torch.randn(30, 5), dim=1)
    X = (Z + distance * direction).to(dtype)
    norm = (Z - Z.median(0).values).norm(dim=1).max().item()
    kernel = kind(5, torch.tensor(1.0)).to(dtype)
    inputs = [v.clone().requires_grad_() for v in (X, Z)]
    K = kernel(*inputs)
    by_X, by_Z = torch.autograd.grad(K.trace(), inputs)

    difference = X.double() - Z.double()
    r = difference.norm(dim=1)
    nu = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}.get(kind)
    t = r if nu is None else math.sqrt(2 * nu) * r
    exact, factor = {  # the value, and its derivative by r over r
        RBF: lambda: ((-(t**2) / 2).exp(), -(-(t**2) / 2).exp()),
        Matern12: lambda: ((-t).exp(), -(-t).exp() / t.clamp_min(1e-300)),
        Matern32: lambda: ((1 + t) * (-t).exp(), -3 * (-t).exp()),
        Matern52: lambda: ((1 + t + t**2 / 3) * (-t).exp(), -5 / 3 * (1 + t) * (-t).exp()),
    }[kind]()
    expected = factor[:, None] * difference

    value_error = (K.diagonal() - exact).abs().max()
    gradient_error = max((by_X - expected).abs().max(), (by_Z + expected).abs().max())
    if kind is not Matern12:
        assert value_error < 100 * root**2
        assert gradient_error < 100 * root**2
        return
    assert value_error < 2 * root * norm
    if distance == 0:
        assert gradient_error < root
    else:
        # Relative, the rounding of the squared distance; at most the gradient itself, which is 1.
        assert gradient_error < min(root + 8 * (root * norm / distance) ** 2, 1.01)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize(
    ("smooth", "curvature"), [(RBF, -1.0), (Matern32, -3.0), (Matern52, -5 / 3)]
)
def test_second_derivatives_at_distance_0(smooth, curvature):
    kernel, X = smooth(2), torch.randn(3, 2)
    func, expected = torch.func, curvature * torch.eye(2)

    def value(x):
        return kernel(x[None], X)[0, 1]

    for outer, inner in ((func.jacrev, func.grad), (func.jacfwd, func.jacfwd)):
        found = outer(inner(value))(X[1])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_a_matrix_with_equal_points(kind, dtype):
    X = torch.randn(10, 3)
    X = torch.cat([X, X]).to(dtype).requires_grad_()
    weight = torch.randn(20, 20).to(dtype)
    (gradient,) = torch.autograd.grad((weight * kind(3).to(dtype)(X)).sum(), X)
    # Without the pairs of equal points, which have none.
    apart = 1 - torch.eye(10).repeat(2, 2)
    double = X.detach().double().requires_grad_()
    theirs = (apart * weight * PYRO[kind](3)(double)).sum()
    (expected,) = torch.autograd.grad(theirs, double)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-7
    assert (gradient - expected).abs().max() < tolerance


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_matrices_with_jitter_are_positive_definite_in_float32(kind, scale):
    """Of points among which many are equal or close."""
    X = torch.randn(40, 12)
    X = torch.cat([X, X, X + 1e-5 * torch.randn(40, 12), X + 1e-3 * torch.randn(40, 12)])
    X = (scale * X).float()
    kernel = kernel_named(next(n for n, k in KERNELS.items() if k is kind), 12).float()
    with torch.no_grad():
        K = kernel(X)
        assert (K - K.mT).abs().max() < 1e-4
        K.diagonal().add_(1e-6 * 200)
        L = torch.linalg.cholesky(K)
    assert L.isfinite().all()


@pytest.mark.parametrize("train_variance", [True, False])
def test_kernel_named(train_variance):
    for name, kernel_class in KERNELS.items():
        pyro.clear_param_store()
        kernel = kernel_named(name, 4, train_variance)
        assert type(kernel) is kernel_class
        torch.testing.assert_close(kernel.lengthscale.detach(), torch.full((4,), 2.0))
        assert kernel.variance == 1
        names = {"lengthscale_unconstrained", "variance_unconstrained"}
        assert dict(kernel.named_parameters()).keys() == (
            names if train_variance else names - {"variance_unconstrained"}
        )
        assert ("variance" in dict(kernel.named_buffers())) == (not train_variance)
        with torch.no_grad():
            kernel.lengthscale_unconstrained.fill_(-1e3)
        assert kernel.lengthscale.min() >= 1e-6
