"""Which targets, covariates and arguments likelihoods take, and how they start from targets."""

import json
import re

import pytest
import torch

from pyro_dgp.gp import likelihoods as lik
from tests.gp.likelihoods.cases import CASES, Laplace

every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_the_cases_own_targets_are_accepted(name):
    case = CASES[name]
    y, given = torch.tensor(case.y), {k: torch.tensor(v) for k, v in case.covariates.items()}
    likelihood = case.make()
    likelihood.check_covariates(given)
    likelihood.check_targets(y, **given)


@pytest.mark.parametrize(
    ("likelihood", "y", "value"),
    [
        (lik.Bernoulli(), [0.0, 0.5, 1.0], "0.5"),
        (lik.Bernoulli("probit"), [0.0, -1.0, 1.0], "-1"),
        (lik.Binomial(), [0.0, -2.0], "-2"),
        (lik.Binomial(), [0.0, 1.5], "1.5"),
        (lik.Poisson(), [3.0, -1.0], "-1"),
        (lik.Poisson(), [3.0, 0.25], "0.25"),
        (lik.NegativeBinomial(), [3.0, -7.0], "-7"),
        (lik.NegativeBinomial(), [3.0, 0.25], "0.25"),
        (lik.Categorical(3), [0.0, 3.0], "3"),
        (lik.Categorical(3), [0.0, -1.0], "-1"),
        (lik.Categorical(3), [0.0, 1.5], "1.5"),
        (lik.Ordinal(4), [0.0, 4.0], "4"),
        (lik.Gamma(), [1.0, 0.0], "0"),
        (lik.Gamma(), [1.0, -2.0], "-2"),
        (lik.LogNormal(), [1.0, -0.5], "-0.5"),
        (lik.Beta(), [0.5, 0.0], "0"),
        (lik.Beta(), [0.5, 1.0], "1"),
        (lik.Beta(), [0.5, 1.5], "1.5"),
        (lik.Rounded(0.5, 0.1), [0.6, 0.85], "0.85"),
        (lik.ZeroInflated(lik.Gamma()), [0.0, -3.0], "-3"),
    ],
)
def test_an_impossible_target_is_named(likelihood, y, value):
    inner = getattr(likelihood, "likelihood", likelihood)
    message = rf"{type(inner).__name__} takes .* 1 of {len(y)} .*first {re.escape(value)}\."
    with pytest.raises(ValueError, match=message):
        likelihood.check_targets(torch.tensor(y))


def test_more_ones_than_trials_are_named():
    y, n = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 3.0])
    with pytest.raises(
        ValueError, match=r"Binomial takes counts of at most total_count.*first 4\."
    ):
        lik.Binomial().check_targets(y, total_count=n)
    with pytest.raises(ValueError, match="total_count must hold counts"):
        lik.Binomial().check_covariates({"total_count": torch.tensor([2.0, 4.5])})


@pytest.mark.parametrize("kind", [lik.Poisson, lik.NegativeBinomial])
@pytest.mark.parametrize("exposure", [0.0, -1.0])
def test_an_exposure_must_be_positive(kind, exposure):
    with pytest.raises(ValueError, match="exposure must be positive"):
        kind().check_covariates({"exposure": torch.tensor([1.0, exposure])})


def test_covariates_must_be_known_and_there():
    one = torch.ones(2)
    with pytest.raises(TypeError, match="Binomial needs 'total_count' per row"):
        lik.Binomial().check_covariates({})
    with pytest.raises(TypeError, match="Gamma takes no 'exposure'; per row it takes weight"):
        lik.Gamma().check_covariates({"exposure": one})
    with pytest.raises(
        TypeError, match="Poisson takes no 'time'; per row it takes exposure, weight"
    ):
        lik.Poisson().check_covariates({"time": one})
    with pytest.raises(ValueError, match="weight must not be negative"):
        lik.Gamma().check_covariates({"weight": -one})
    lik.Poisson().check_covariates({"weight": one, "exposure": one})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lik.Bernoulli("cloglog"), "link must be one of logit, probit"),
        (lambda: lik.Bernoulli(probability=1.0), "probability must lie between 0 and 1"),
        (lambda: lik.Bernoulli(probability=torch.tensor([0.5, 0.5])), "probability"),
        (lambda: lik.Categorical(1), "num_classes"),
        (lambda: lik.Categorical(3, torch.tensor([0.5, 0.5])), "probs must be 3 positive numbers"),
        (lambda: lik.Ordinal(3, torch.tensor([0.5, 0.5, 0.0])), "probs must be 3 positive"),
        (lambda: lik.Poisson(0.0), "rate must be positive"),
        (lambda: lik.NegativeBinomial(1.0, 0.0), "concentration must be above"),
        (lambda: lik.Gamma(-1.0), "initial level must be positive"),
        (lambda: lik.Gamma(1.0, 0.0), "shape must be above"),
        (lambda: lik.LogNormal(1.0, 0.0), "variance must be above"),
        (lambda: lik.Beta(1.0), "mean must lie between 0 and 1"),
        (lambda: lik.Beta(0.5, float("nan")), "concentration must be above"),
        (lambda: lik.StudentT(0.0), "scale must be above"),
        (lambda: lik.StudentT(1.0, 1.0), "df must be above 1"),
        (lambda: lik.Rounded(0.0), "width must be positive"),
        (lambda: lik.Rounded(1.0, scale=0.0), "scale must be finite and above"),
        (lambda: lik.HeteroscedasticGaussian(0.0), "noise_variance must be positive"),
        (lambda: lik.HeteroscedasticGaussian(1.0, -1.0), "noise_scale must be positive"),
        (lambda: lik.GaussianLikelihood(0.0), "variance must be finite and above"),
        (lambda: lik.ZeroInflated(lik.Poisson()), "Poisson is discrete"),
        (lambda: lik.ZeroInflated(lik.Gamma(), probability=0.0), "probability must lie between"),
        (lambda: lik.Gamma(event_dim=2), "event_dim must be 0 or 1"),
    ],
)
def test_a_bad_argument_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_something_else_is_no_likelihood():
    with pytest.raises(TypeError, match="likelihood is a int"):
        lik.check_likelihood(3)
    with pytest.raises(TypeError):
        lik.ZeroInflated("gamma")


TARGETS = {
    "gaussian": torch.linspace(-3, 2, 40),
    "heteroscedastic": torch.linspace(-3, 2, 40),
    "student_t": torch.linspace(-3, 2, 40),
    "bernoulli": (torch.arange(40) % 4 == 0).double(),
    "binomial": torch.arange(40) % 5.0,
    "categorical": torch.arange(40) % 4.0,
    "ordinal": torch.arange(40) % 4.0,
    "poisson": torch.arange(40) % 7.0,
    "negative_binomial": torch.arange(40) % 7.0,
    "gamma": torch.linspace(0.1, 9, 40),
    "log_normal": torch.linspace(0.1, 9, 40),
    "beta": torch.linspace(0.01, 0.9, 40),
    "rounded": 0.1 + 0.3 * (torch.arange(40) % 9),
    "zero_inflated": torch.cat([torch.zeros(15), torch.linspace(-3, 2.1, 25)]),
}


def test_every_name_has_targets_here():
    assert TARGETS.keys() == lik.LIKELIHOODS.keys()


@pytest.mark.parametrize("columns", [0, 2])
@pytest.mark.parametrize("name", TARGETS)
def test_a_likelihood_starts_from_its_targets_and_takes_them(name, columns):
    y = TARGETS[name].to(torch.get_default_dtype())
    y = torch.stack([y, y.flip(0)], -1) if columns else y
    likelihood = lik.LIKELIHOODS[name].for_targets(y)
    assert type(lik.likelihood_for(y, name)) is type(likelihood)
    assert likelihood.event_dim == (1 if columns else 0)
    likelihood.check_targets(y)
    J, P = likelihood.num_functions, columns or 1
    likelihood.check_output_dim(J * P)
    likelihood.check_shape(y, J * P)
    encoded = likelihood.encode(y if not columns else y[:, :1].squeeze(-1), torch.float32)
    assert encoded.dtype == torch.float32
    assert encoded.isfinite().all()
    assert encoded.shape[0] == len(y)
    assert encoded.dim() in (1, 2)
    # Its log densities at f = 0 are finite.
    given = {"total_count": torch.tensor(5.0)} if name == "binomial" else {}
    f_loc, f_var = torch.zeros(len(y), J * P), torch.full((len(y), J * P), 0.5)
    found = likelihood.observation(f_loc, f_var, **given).log_prob(y)
    assert found.shape == (len(y),)
    assert found.isfinite().all()
    predicted = likelihood.predictive(f_loc, f_var, **given)
    assert predicted.batch_shape == y.shape
    assert predicted.sample().shape == y.shape


@pytest.mark.parametrize("columns", [0, 2])
@pytest.mark.parametrize("name", TARGETS)
def test_a_likelihood_is_made_again_from_plain_data(name, columns):
    y = TARGETS[name].to(torch.get_default_dtype())
    likelihood = lik.LIKELIHOODS[name].for_targets(torch.stack([y, y], -1) if columns else y)
    text = json.dumps(lik.described(likelihood))
    again = lik.rebuilt(json.loads(text))
    assert type(again) is type(likelihood)
    assert again.event_dim == likelihood.event_dim
    assert again.state_dict().keys() == likelihood.state_dict().keys()
    assert json.dumps(lik.described(again)) == text


def test_what_has_no_name_cannot_be_described():
    with pytest.raises(ValueError, match="Laplace is none of the likelihoods that have a name"):
        lik.described(Laplace())
    with pytest.raises(ValueError, match="no likelihood 'cauchy'"):
        lik.rebuilt({"name": "cauchy"})


def _start(name):
    likelihood = lik.LIKELIHOODS[name].for_targets(TARGETS[name].to(torch.get_default_dtype()))
    J = likelihood.num_functions
    loc, _ = likelihood.functions(torch.zeros(J, 1, 1), torch.ones(J, 1, 1))
    return likelihood, loc[:, 0, 0].detach()


def test_they_start_from_what_their_docstrings_say():
    y = {name: values.to(torch.get_default_dtype()) for name, values in TARGETS.items()}
    _, loc = _start("bernoulli")
    torch.testing.assert_close(loc[0].sigmoid(), torch.tensor(0.25))
    _, loc = _start("binomial")
    assert loc[0] == 0
    for name in ("poisson", "negative_binomial"):
        torch.testing.assert_close(_start(name)[1][0].exp(), y[name].mean())
    for name in ("gamma", "log_normal"):
        torch.testing.assert_close(_start(name)[1][0], y[name].log().mean())
    torch.testing.assert_close(_start("beta")[1][0].sigmoid(), y["beta"].mean())
    likelihood, loc = _start("categorical")
    assert likelihood.num_classes == 4
    torch.testing.assert_close(loc.softmax(0), torch.full((4,), 0.25))
    likelihood, _ = _start("ordinal")
    p = likelihood.conditional(torch.zeros(1)).probs[0]
    torch.testing.assert_close(p, torch.full((4,), 0.25))
    likelihood, _ = _start("rounded")
    assert likelihood.width == pytest.approx(0.3)
    assert likelihood.origin == pytest.approx(0.1)
    likelihood, loc = _start("zero_inflated")
    assert likelihood.value == 0
    assert loc[0].sigmoid() == pytest.approx(15 / 40)
    likelihood, loc = _start("heteroscedastic")
    variance = y["heteroscedastic"].var(unbiased=False)
    torch.testing.assert_close(loc[1].exp(), 0.05 * variance)


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("bernoulli", [0.0, 2.0]),
        ("categorical", [0.0, -1.0]),
        ("poisson", [-1.0, 2.0]),
        ("gamma", [0.0, 1.0]),
        ("beta", [0.0, 0.5]),
        ("rounded", [1.0, 1.0]),
        ("rounded", [0.0, 1.0, 2.7182818]),
        ("categorical", [0.0, 1e9]),
    ],
)
def test_a_likelihood_does_not_start_from_targets_that_it_does_not_take(name, y):
    with pytest.raises(ValueError):  # noqa: PT011
        lik.LIKELIHOODS[name].for_targets(torch.tensor(y))


@pytest.mark.parametrize(
    ("y", "width"),
    [
        (torch.tensor([0.0, 2.0, 5.0]), 1.0),
        (torch.tensor([0.0, 1e-4, 5e-4]), 1e-4),
        (torch.arange(30000, dtype=torch.float32) * 0.01, 0.01),
        (torch.tensor([100000.0, 100003.0, 100006.0]), 3.0),
        (torch.tensor([True, False]), 1.0),
    ],
)
def test_the_widest_lattice_is_found(y, width):
    likelihood = lik.Rounded.for_targets(y)
    assert likelihood.width == pytest.approx(width, rel=1e-5)
    likelihood.check_targets(y)
    torch.testing.assert_close(
        likelihood.intercept[0].double(), y.double().mean(), rtol=1e-6, atol=0
    )


def test_ones_own_likelihood_starts_from_targets():
    y = torch.randn(5, 2)
    likelihood = lik.likelihood_for(y, Laplace)
    assert likelihood.event_dim == 1
    likelihood.check_targets(y)


def test_functions_of_the_last_layer_get_their_scale_and_their_constants():
    likelihood = lik.HeteroscedasticGaussian(0.3, noise_scale=0.5)
    loc, var = likelihood.functions(torch.ones(2, 4, 3), torch.ones(2, 4, 3))
    torch.testing.assert_close(loc[0], torch.ones(4, 3))
    torch.testing.assert_close(loc[1], torch.full((4, 3), 0.5 + torch.tensor(0.3).log().item()))
    torch.testing.assert_close(var[1], torch.full((4, 3), 0.25))
    several = lik.Poisson(torch.tensor([1.0, 2.0]), event_dim=1)
    loc, _ = several.functions(torch.zeros(1, 5, 2), torch.ones(1, 5, 2))
    torch.testing.assert_close(loc[0], torch.tensor([1.0, 2.0]).log().expand(5, 2))
