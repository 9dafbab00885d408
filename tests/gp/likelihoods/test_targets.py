"""Which targets, covariates and arguments likelihoods take, and how they start from targets."""

import json
import re

import pyro
import pyro.poutine as poutine
import pytest
import torch

from pyro_dgp.gp import likelihoods as lik
from tests.gp.likelihoods.cases import CASES, Laplace
from tests.refusals import refusals

every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_the_cases_own_targets_are_accepted(name):
    case = CASES[name]
    y, given = torch.tensor(case.y), {k: torch.tensor(v) for k, v in case.covariates.items()}
    likelihood = case.make()
    likelihood.check_covariates(given)
    likelihood.check_targets(y, **given)


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
    ("y", "width"),
    [
        (torch.tensor([0.0, 2.0, 5.0]), 1.0),
        (torch.tensor([0.0, 1e-4, 5e-4]), 1e-4),
        (torch.arange(30000, dtype=torch.float32) * 0.01, 0.01),
        (torch.tensor([100000.0, 100003.0, 100006.0]), 3.0),
        (torch.tensor([True, False]), 1.0),
        (torch.tensor([0.1 + 0.2, 0.3, 0.4, 0.7], dtype=torch.float64), 0.1),
        (100000 + torch.arange(50, dtype=torch.float64) / 100, 0.01),
    ],
)
def test_the_widest_lattice_is_found(y, width):
    likelihood = lik.Rounded.for_targets(y)
    assert likelihood.width == pytest.approx(width, rel=1e-5)
    likelihood.check_targets(y)
    torch.testing.assert_close(
        likelihood.intercept[0].double(), y.double().mean(), rtol=1e-6, atol=0
    )


def test_a_column_without_the_frequent_value_may_be_inflated_beside_others():
    y = torch.stack([torch.tensor([0.0, 0.0, 1.5, 2.0]), torch.tensor([1.0, -3.0, 2.0, 5.0])], -1)
    assert lik.ZeroInflated.for_targets(y).value == 0


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


# What is refused


def tensors(values):
    return {name: torch.tensor(v) for name, v in values.items()}


def checked(likelihood, y, **given):
    return lambda: likelihood.check_targets(torch.tensor(y), **tensors(given))


def given(likelihood, **values):
    """Values per row."""
    return lambda: likelihood.check_covariates(tensors(values))


def started(name, y):
    return lambda: lik.LIKELIHOODS[name].for_targets(torch.tensor(y))


@refusals(
    {
        f"{type(likelihood).__name__} of {y}": (
            checked(likelihood, y),
            ValueError, rf"{inner} takes .* 1 of {len(y)} .*first {re.escape(value)}\.",
        )
        for likelihood, inner, y, value in (
            (lik.Bernoulli(), "Bernoulli", [0.0, 0.5, 1.0], "0.5"),
            (lik.Bernoulli("probit"), "Bernoulli", [0.0, -1.0, 1.0], "-1"),
            (lik.Binomial(), "Binomial", [0.0, -2.0], "-2"),
            (lik.Binomial(), "Binomial", [0.0, 1.5], "1.5"),
            (lik.Poisson(), "Poisson", [3.0, -1.0], "-1"),
            (lik.Poisson(), "Poisson", [3.0, 0.25], "0.25"),
            (lik.NegativeBinomial(), "NegativeBinomial", [3.0, -7.0], "-7"),
            (lik.NegativeBinomial(), "NegativeBinomial", [3.0, 0.25], "0.25"),
            (lik.Categorical(3), "Categorical", [0.0, 3.0], "3"),
            (lik.Categorical(3), "Categorical", [0.0, -1.0], "-1"),
            (lik.Categorical(3), "Categorical", [0.0, 1.5], "1.5"),
            (lik.Ordinal(4), "Ordinal", [0.0, 4.0], "4"),
            (lik.Gamma(), "Gamma", [1.0, 0.0], "0"),
            (lik.Gamma(), "Gamma", [1.0, -2.0], "-2"),
            (lik.LogNormal(), "LogNormal", [1.0, -0.5], "-0.5"),
            (lik.Beta(), "Beta", [0.5, 0.0], "0"),
            (lik.Beta(), "Beta", [0.5, 1.0], "1"),
            (lik.Beta(), "Beta", [0.5, 1.5], "1.5"),
            (lik.Rounded(0.5, 0.1), "Rounded", [0.6, 0.85], "0.85"),
            (lik.ZeroInflated(lik.Gamma()), "Gamma", [0.0, -3.0], "-3"),
        )
    }
    | {
        "more ones than trials": (
            checked(lik.Binomial(), [1.0, 4.0], total_count=[2.0, 3.0]),
            ValueError, r"Binomial takes counts of at most total_count.*first 4\.",
        ),
        "starting from 2 of one": (
            started("bernoulli", [0.0, 2.0]), ValueError, "Bernoulli takes targets 0 and 1.*first 2"
        ),
        "starting from a negative class": (
            started("categorical", [0.0, -1.0]), ValueError, "Categorical takes classes.*first -1"
        ),
        "starting from a billion classes": (
            started("categorical", [0.0, 1e9]), ValueError, "number them from 0 without gaps"
        ),
        "starting from a negative count": (
            started("poisson", [-1.0, 2.0]), ValueError, "Poisson takes counts.*first -1"
        ),
        "starting from 0": (
            started("gamma", [0.0, 1.0]), ValueError, "Gamma takes positive targets.*first 0"
        ),
        "starting from an end": (
            started("beta", [0.0, 0.5]), ValueError, "Beta takes targets strictly between.*first 0"
        ),
        "starting from one number": (
            started("rounded", [1.0, 1.0]),
            ValueError, "Rounded needs at least two different targets",
        ),
        "starting from one number, and its rounding": (
            lambda: lik.Rounded.for_targets(torch.tensor([0.3, 0.1 + 0.2], dtype=torch.float64)),
            ValueError, "Rounded needs at least two different targets",
        ),
        "starting from many real numbers": (
            lambda: lik.Rounded.for_targets(torch.linspace(0, 1, 2000).sin()),
            ValueError, r"no lattice.*Give Rounded\(width, origin\)",
        ),
        "starting from no lattice": (
            started("rounded", [0.0, 1.0, 2.7182818]),
            ValueError, r"no lattice.*Give Rounded\(width, origin\)",
        ),
        "starting from one value per column": (
            started("zero_inflated", [[0.0, -1.0], [0.0, -1.0], [0.0, -1.0], [2.0, 3.0]]),
            ValueError, "one value with a probability for all.*fit a model to each column",
        ),
    }
)  # fmt: skip
def test_impossible_targets(call, error, words):
    with pytest.raises(error, match=words):
        call()


@refusals(
    {
        "trials that are no count": (
            given(lik.Binomial(), total_count=[2.0, 4.5]),
            ValueError, "total_count must hold counts",
        ),
        "no trials": (
            given(lik.Binomial()),
            TypeError, "Binomial needs 'total_count' per row: pass total_count",
        ),
        "an exposure of no counts": (
            given(lik.Gamma(), exposure=[1.0]),
            TypeError, "Gamma takes no 'exposure'; per row it takes weight",
        ),
        "an unknown name": (
            given(lik.Poisson(), time=[1.0]),
            TypeError, "Poisson takes no 'time'; per row it takes exposure, weight",
        ),
        "a negative weight": (
            given(lik.Gamma(), weight=[-1.0]), ValueError, "weight must not be negative"
        ),
    }
    | {
        f"an exposure of {exposure} in {kind.__name__}": (
            given(kind(), exposure=[1.0, exposure]), ValueError, "exposure must be positive"
        )
        for kind in (lik.Poisson, lik.NegativeBinomial)
        for exposure in (0.0, -1.0)
    }
)  # fmt: skip
def test_impossible_values_per_row(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_weights_and_exposures_are_taken():
    """A weight multiplies the log density; an exposure multiplies the rate, exp(f)."""
    given(lik.Poisson(), weight=[1.0, 1.0], exposure=[1.0, 1.0])()
    likelihood, loc, y = lik.Poisson(), torch.tensor([[0.3], [-1.0]]), torch.tensor([2.0, 0.0])

    def log_prob(loc, **covariates):
        with poutine.trace() as told, pyro.plate("data", 2):
            likelihood(loc, torch.full((2, 1), 0.2), y, **covariates)
        site = told.trace.nodes["y"]
        return site["fn"].log_prob(y)

    weight, exposure = torch.tensor([0.0, 2.5]), torch.tensor([3.0, 0.5])
    torch.testing.assert_close(log_prob(loc, weight=weight), weight * log_prob(loc))
    both = log_prob(loc, weight=weight, exposure=exposure)
    torch.testing.assert_close(both, weight * log_prob(loc + exposure.log()[:, None]))
    assert not torch.isclose(both[1], log_prob(loc)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "probs", [[0.5, 1e-8, 0.5], [0.999999, 1e-9, 1e-6], [1.0, 1e-9, 1e-9, 1e-9], [1e-9, 1e-9, 1.0]]
)
def test_rare_grades_have_probabilities_and_derivatives(dtype, probs):
    """Beside 1, a small probability is lost in float32."""
    probs = torch.tensor(probs, dtype=dtype)
    likelihood = lik.Ordinal(len(probs), probs)
    f = torch.zeros(len(probs), dtype=dtype, requires_grad=True)
    log_prob = likelihood.conditional_log_prob(torch.arange(len(probs)), f)
    # The narrowest classes are those of the dtype.
    torch.testing.assert_close(log_prob.double(), probs.double().log(), atol=5.0, rtol=0)
    for rare in (probs < 1e-3).nonzero().flatten():
        (cuts,) = torch.autograd.grad(log_prob[rare], likelihood.parameters(), retain_graph=True)
        assert torch.isfinite(cuts).all()
        assert cuts.any()


@refusals(
    {
        "a link of another name": (
            lambda: lik.Bernoulli("cloglog"), ValueError, "link must be one of logit, probit"
        ),
        "a certain class": (
            lambda: lik.Bernoulli(probability=1.0),
            ValueError, "probability must lie between 0 and 1",
        ),
        "a probability for each of no outputs": (
            lambda: lik.Bernoulli(probability=torch.tensor([0.5, 0.5])),
            ValueError, "probability must lie between 0 and 1",
        ),
        "one class": (lambda: lik.Categorical(1), ValueError, "num_classes must be at least 2"),
        "probabilities of fewer classes": (
            lambda: lik.Categorical(3, torch.tensor([0.5, 0.5])),
            ValueError, "probs must be 3 positive numbers",
        ),
        "a class of no probability": (
            lambda: lik.Ordinal(3, torch.tensor([0.5, 0.5, 0.0])),
            ValueError, "probs must be 3 positive numbers",
        ),
        "a rate of 0": (lambda: lik.Poisson(0.0), ValueError, "rate must be positive and finite"),
        "a concentration of 0": (
            lambda: lik.NegativeBinomial(1.0, 0.0), ValueError, "concentration must be above 0.001"
        ),
        "a negative level": (lambda: lik.Gamma(-1.0), ValueError, "level must be positive"),
        "a shape of 0": (lambda: lik.Gamma(1.0, 0.0), ValueError, "shape must be above 0.001"),
        "a variance of 0 of logarithms": (
            lambda: lik.LogNormal(1.0, 0.0), ValueError, "variance must be above 1e-6"
        ),
        "a mean at the end": (lambda: lik.Beta(1.0), ValueError, "mean must lie between 0 and 1"),
        "a concentration that is no number": (
            lambda: lik.Beta(0.5, float("nan")), ValueError, "concentration must be above 0.001"
        ),
        "a scale of 0": (lambda: lik.StudentT(0.0), ValueError, "scale must be above 0.001"),
        "tails without a mean": (lambda: lik.StudentT(1.0, 1.0), ValueError, "df must be above 1"),
        "a width of 0": (lambda: lik.Rounded(0.0), ValueError, "width must be positive"),
        "a scale of 0 before rounding": (
            lambda: lik.Rounded(1.0, scale=0.0),
            ValueError, "scale must be finite and above a thousandth",
        ),
        "a noise variance of 0": (
            lambda: lik.HeteroscedasticGaussian(0.0), ValueError, "noise_variance must be positive"
        ),
        "a negative noise scale": (
            lambda: lik.HeteroscedasticGaussian(1.0, -1.0),
            ValueError, "noise_scale must be positive",
        ),
        "a variance of 0": (
            lambda: lik.GaussianLikelihood(0.0), ValueError, "variance must be finite and above"
        ),
        "zeros among counts": (
            lambda: lik.ZeroInflated(lik.Poisson()),
            ValueError, "Poisson is discrete: it gives 0.0 a probability already",
        ),
        "zeros of no probability": (
            lambda: lik.ZeroInflated(lik.Gamma(), probability=0.0),
            ValueError, "probability must lie between 0 and 1",
        ),
        "tables of targets": (
            lambda: lik.Gamma(event_dim=2), ValueError, "event_dim must be 0 or 1"
        ),
        "a number": (lambda: lik.check_likelihood(3), TypeError, "likelihood is a int"),
        "zeros among a name": (lambda: lik.ZeroInflated("gamma"), TypeError, "likelihood is a str"),
        "a description of one's own": (
            lambda: lik.described(Laplace()),
            ValueError, "Laplace is none of the likelihoods that have a name",
        ),
        "a description by another name": (
            lambda: lik.rebuilt({"name": "cauchy"}), ValueError, "no likelihood 'cauchy'"
        ),
    }
)  # fmt: skip
def test_impossible_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call()
