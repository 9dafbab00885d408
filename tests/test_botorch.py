"""A trained model as BoTorch's surrogate."""

import subprocess
import sys

import pyro
import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import InputStandardize, Normalize
from botorch.optim import optimize_acqf

from pyro_dgp import DRegIWELBO, LatentDGP
from pyro_dgp.botorch import FunctionDraws
from pyro_dgp.gp.likelihoods import Categorical
from pyro_dgp.infer import annealed_adam, fit

BOUNDS = torch.tensor([[-2.0, -2.0], [2.0, 2.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def dgp():
    pyro.set_rng_seed(0)
    X = torch.rand(60, 2).double() * 4 - 2
    y = -(X - 0.5).square().sum(1) / 3 + 1
    dgp = LatentDGP.from_data(X, y, num_inducing=20)
    loss, optim = DRegIWELBO(K=3), annealed_adam(0.03, 300)
    fit(dgp.model, dgp.guide, loss, (X, y), num_steps=300, optim=optim, progress=False)
    return dgp


def test_posterior_is_that_of_the_functions(dgp):
    """[b, S, q, m], joint over rows: the same functions in every call and every batch."""
    model = FunctionDraws(dgp, 16, generator=torch.Generator().manual_seed(0))
    functions = dgp.draw_functions(16, generator=torch.Generator().manual_seed(0))
    X = torch.rand(5, 3, 2).double()
    posterior = model.posterior(X)
    assert posterior.values.shape == (5, 16, 3, 1)
    assert model.num_outputs == 1
    assert model.batch_shape == ()
    for values, x in zip(posterior.values, X, strict=True):
        torch.testing.assert_close(values, functions(x))
    assert posterior.rsample(torch.Size([7])).shape == (7, 5, 3, 1)
    torch.testing.assert_close(model.posterior(X[0]).values, posterior.values[0])


def test_moments_are_those_of_the_predictions(dgp):
    """Within standard errors of the draws, and without the likelihood's noise."""
    pyro.set_rng_seed(0)
    X = torch.rand(6, 2).double() * 4 - 2
    posterior = FunctionDraws(dgp, 4000, num_features=400).posterior(X)
    predicted = dgp.predict(X, num_samples=4000)
    error = (posterior.variance[:, 0] / 2000).sqrt()
    assert ((posterior.mean[:, 0] - predicted.mean).abs() < 4.5 * error).all()
    variance = predicted.variance - dgp.likelihood.variance.item()
    torch.testing.assert_close(posterior.variance[:, 0], variance, rtol=0.25, atol=1e-3)


def test_transforms_are_applied_and_undone(dgp):
    inputs, targets = InputStandardize(2), Standardize(1)
    X = 100 + 20 * torch.randn(30, 2).double()
    inputs(X), targets(7 + 3 * torch.randn(30, 1).double())
    inputs.eval(), targets.eval()
    options = {"input_transform": inputs, "outcome_transform": targets}
    model = FunctionDraws(dgp, 8, generator=torch.Generator().manual_seed(0), **options)
    plain = FunctionDraws(dgp, 8, generator=torch.Generator().manual_seed(0))
    found, inside = model.posterior(X).values, plain.posterior(inputs(X)).values
    torch.testing.assert_close(found, targets.means + targets.stdvs * inside)


@pytest.mark.parametrize(
    "acquisition",
    [
        lambda model: qLogExpectedImprovement(model, best_f=0.0),
        lambda model: qLogNoisyExpectedImprovement(model, X_baseline=torch.zeros(3, 2).double()),
        lambda model: qUpperConfidenceBound(model, beta=0.1),
    ],
    ids=["expected improvement", "noisy expected improvement", "upper confidence bound"],
)
def test_acquisition_functions_find_the_maximum(dgp, acquisition):
    torch.manual_seed(0)
    model = FunctionDraws(dgp, 64, num_features=200)
    found, _ = optimize_acqf(acquisition(model), BOUNDS, q=2, num_restarts=4, raw_samples=32)
    # Either of the two points; the other one looks elsewhere.
    assert (found - 0.5).norm(dim=1).min() < 0.5


def test_thompson_sampling(dgp):
    """Each function has a maximum of its own."""
    torch.manual_seed(0)
    candidates = torch.rand(300, 2).double() * 4 - 2
    chosen = MaxPosteriorSampling(FunctionDraws(dgp, 32))(candidates, num_samples=5)
    assert chosen.shape == (5, 2)
    assert (chosen - 0.5).norm(dim=1).mean() < 0.7


def test_several_outputs():
    """A likelihood of several functions has as many outputs."""
    pyro.set_rng_seed(0)
    X, y = torch.randn(20, 2).float(), torch.randint(3, (20,))
    dgp = LatentDGP.from_data(X, y, likelihood=Categorical(3), num_inducing=5)
    model = FunctionDraws(dgp, 4)
    assert model.posterior(X).mean.shape == (20, model.num_outputs)
    assert model.posterior(X, output_indices=[1]).mean.shape == (20, 1)
    assert model.posterior(X).mean.dtype == torch.float32


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="dgp must be a LatentDGP, but it is a ModelListGP"):
        FunctionDraws(ModelListGP())


def test_without_botorch_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['botorch'] = None\n"
        "try: import pyro_dgp.botorch\nexcept ImportError as e: print(e)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pyro_dgp[botorch]'" in found.stdout


def test_transforms_do_not_learn_from_predictions_and_any_precision_will_do(dgp):
    single = LatentDGP.from_data(torch.rand(20, 2), torch.rand(20), num_inducing=5)
    transform = Normalize(2)
    training = 10 * torch.rand(50, 2).double()
    transform(training)
    bounds = transform.bounds.clone()
    model = FunctionDraws(single, 8, input_transform=transform)
    X = torch.rand(3, 2).double()
    values = model(X)
    assert torch.equal(transform.bounds, bounds)
    assert values.dtype == torch.float64
    torch.testing.assert_close(model.posterior(X).values, values)
