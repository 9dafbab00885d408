import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.infer import RenyiELBO, Trace_ELBO

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO
from pyro_dgp.infer import VIMCOIWELBO, SNRProfile, SNRProfiler
from pyro_dgp.infer.snr.moments import Moments
from tests.infer.models import CASES, vae

pytestmark = pytest.mark.statistical

ESTIMATORS = [PartiallyCollapsedIWELBO, DRegIWELBO]


def profile_of(draws):
    """The profile of given draws [Q, ...]."""
    return SNRProfile(len(draws), {"x": [Moments.of(part) for part in draws.tensor_split(10)]})


# Moments and statistics of known draws.


def test_moments_of_chunks_are_those_of_the_whole():
    draws = torch.distributions.Gamma(2.0, 1.0).sample((1000, 3)) + torch.tensor([0.0, 5.0, -3.0])
    total = Moments.of(draws[:17])
    for start, stop in ((17, 18), (18, 500), (500, 1000)):
        total = total + Moments.of(draws[start:stop])
    assert total.count == 1000
    torch.testing.assert_close(total.mean, draws.mean(0))
    torch.testing.assert_close(total.std, draws.std(0))
    for found, power in ((total.m3, 3), (total.m4, 4)):
        torch.testing.assert_close(found, ((draws - draws.mean(0)) ** power).sum(0))


@pytest.mark.parametrize(
    "distribution",
    [
        dist.Normal(0.5, 1.0),
        dist.Normal(-3.0, 1.0),
        dist.Gamma(2.0, 1.0),
        dist.Exponential(1.0),
        dist.Laplace(0.3, 2.0),
    ],
)
def test_coverage_of_the_interval(distribution):
    draws = distribution.sample((1000, 2000))  # 2,000 profiles side by side
    truth = abs(distribution.mean) / distribution.stddev
    low, high = profile_of(draws).interval(0.95)["x"]
    coverage = ((low <= truth) & (truth <= high)).double().mean().item()
    assert coverage == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("mean", [0.0, 0.02, 1.0])
def test_the_square_without_bias(mean):
    profile = profile_of(mean + torch.randn(500, 4000))
    found = profile.squared_snr["x"]
    error = found.std() / len(found) ** 0.5
    assert abs(found.mean() - mean**2) < 4 * error
    assert abs(profile.snr["x"].square().mean() - mean**2) > 4 * error


def test_the_floor_is_what_noise_has():
    profile = profile_of(torch.randn(500, 4000))
    error = profile.snr["x"].std() / 4000**0.5
    assert abs(profile.snr["x"].mean() - profile.floor) < 4 * error + 1e-3 * profile.floor
    assert profile.mean_snr() == pytest.approx(profile.snr["x"].mean().item())


def test_error_of_the_mean_ratio():
    """The jackknife's, against the spread of many profiles."""
    means, errors = [], []
    for _ in range(80):
        profile = profile_of(0.3 + torch.randn(400, 5))
        means.append(profile.mean_snr(debiased=True))
        errors.append(profile.mean_snr_error(debiased=True))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.35)


def test_constant_entries_are_counted_and_left_out():
    draws = torch.randn(100, 4) + 1
    draws[:, 1], draws[:, 2] = 0.0, 0.1
    profile = profile_of(draws)
    assert profile.num_constant == {"x": 2}
    assert profile.snr["x"][1] == 0
    assert profile.snr["x"][2] == math.inf
    assert profile.snr_error["x"][1] == profile.snr_error["x"][2] == 0
    expected = profile.snr["x"][[0, 3]].mean().item()
    assert profile.mean_snr() == pytest.approx(expected)
    assert all(bool(x.isfinite().all()) for x in (profile.mean["x"], profile.std["x"]))
    assert profile_of(torch.zeros(100, 2)).mean_snr() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_noise(dtype):
    """A mean would be that of one entry with a ratio of millions."""
    draws = torch.randn(100, 2, dtype=dtype) + 1
    draws[:, 1] = 632.12 * (1 + torch.finfo(dtype).eps * torch.randint(-1, 2, (100,)))
    profile = profile_of(draws)
    assert profile.num_constant == {"x": 1}
    assert profile.mean_snr() == pytest.approx(profile.snr["x"][0].item())
    assert profile.mean_snr(debiased=True) < 2


# A conjugate model whose gradient is normal, with known moments.


def toy(loc=0.3, y=1.0):
    def model():
        with pyro.plate("data", 1):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor([y]))

    def guide():
        with pyro.plate("data", 1):
            pyro.sample("z", dist.Normal(pyro.param("loc", torch.tensor([loc])), 1.0))

    return model, guide


@pytest.mark.parametrize(
    ("loss", "std"),
    # The loss's gradient by loc is 2 z - y, or z + loc - y without the score.
    [
        (PartiallyCollapsedIWELBO(K=1), 2.0),
        (DRegIWELBO(K=1), 1.0),
        (Trace_ELBO(), 2.0),
        (PartiallyCollapsedIWELBO(K=1, num_particles=4), 1.0),
        (PartiallyCollapsedIWELBO(K=4, beta=1.0), 1.0),
    ],
)
def test_known_moments(loss, std):
    loc, y, Q = 0.3, 1.0, 2000
    profile = SNRProfiler(*toy(loc, y), loss, num_draws=Q, seed=4).run()
    mean = 2 * loc - y
    assert profile.mean["loc"].item() == pytest.approx(mean, abs=4 * std / Q**0.5)
    assert profile.std["loc"].item() == pytest.approx(std, rel=4 / (2 * Q) ** 0.5)
    low, high = profile.interval(0.999)["loc"]
    assert low.item() < abs(mean) / std < high.item()
    # The gradient is normal.
    assert profile.snr_error["loc"].item() == pytest.approx(
        ((1 + (mean / std) ** 2 / 2) / Q) ** 0.5, rel=0.1
    )


# Draws in batches are those of a loop.


def same_distribution(one, other):
    """The smallest p-value of Kolmogorov-Smirnov tests of all entries."""
    smallest = 1.0
    for name, draws in one.draws.items():
        pair = (x.reshape(len(x), -1).T for x in (draws, other.draws[name]))
        for a, b in zip(*pair, strict=True):
            if a.unique().numel() > 1:
                smallest = min(smallest, scipy.stats.ks_2samp(a.numpy(), b.numpy()).pvalue)
    return smallest


@pytest.mark.parametrize(
    ("name", "batched"),
    [
        ("plate", {"a", "b", "log_c"}),
        ("plate, subsampled", {"a", "b", "log_c"}),
        ("groups", {"a", "b", "log_c"}),
        ("network", {"net$$$weight", "net$$$bias"}),
        ("flow", {"a", "b", "log_c"}),
        ("AutoNormal, positive", {"AutoNormal.locs.z", "AutoNormal.scales.z"}),
        # q(z2 | z1) has no distribution that stands still
        ("hierarchical guide", {"a", "log_c"}),
        ("shared parameter", {"a", "b", "log_c"}),
    ],
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_batched_draws_have_the_distribution_of_single_ones(estimator, name, batched):
    case = CASES[name]()
    case.setup()
    loss, sites = estimator(K=4, num_particles=2), sorted(batched)
    one = SNRProfiler(case.model, case.guide, loss, 1000, sites, keep_draws=True, seed=1)
    found = one.run(*case.args)
    assert found.batched == batched
    if name == "plate, subsampled":
        return  # which a loop would draw with another minibatch
    loop = SNRProfiler(
        case.model, case.guide, loss, 250, sites, keep_draws=True, batch=False, seed=2
    ).run(*case.args)
    assert not loop.batched
    assert same_distribution(found, loop) > 1e-4
    for site, mean in found.mean.items():
        error = (found.std[site] ** 2 / 1000 + loop.std[site] ** 2 / 250).sqrt() + 1e-12
        assert ((mean - loop.mean[site]).abs() / error).max() < 4.5


@pytest.mark.parametrize("name", ["dropout", "global", "AutoDelta", "only global"])
def test_what_cannot_be_batched_is_looped(name):
    """One dropout, or one global draw, would be shared by all draws of a batch."""
    case = CASES[name]()
    case.setup()
    profile = SNRProfiler(case.model, case.guide, DRegIWELBO(K=2), 20, seed=0).run(*case.args)
    assert not profile.batched


def test_scores_of_discrete_draws_are_looped():
    """A Bernoulli distribution has two names of one argument."""

    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Bernoulli(0.4))
            pyro.sample("y", dist.Normal(z, 0.5), obs=torch.rand(3))

    def guide():
        with pyro.plate("data", 3):
            pyro.sample("z", dist.Bernoulli(logits=pyro.param("a", torch.zeros(3))))

    profile = SNRProfiler(model, guide, VIMCOIWELBO(K=2), 20, seed=0).run()
    assert not profile.batched
    assert (profile.std["a"] > 0).all()


@pytest.mark.parametrize(
    "options",
    [{"vectorize_particles": False}, {"chunk_size": 2}, {"piwae": True, "num_particles": 2}],
)
def test_losses_that_cannot_be_batched(options):
    case = vae()
    case.setup()
    loss = DRegIWELBO(K=3, **options)
    profile = SNRProfiler(case.model, case.guide, loss, 20, seed=0).run(*case.args)
    assert not profile.batched


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_batched_draws_of_a_deep_gp(estimator):
    X = torch.linspace(-1, 1, 40).unsqueeze(-1)
    y = torch.sin(4 * X[:, 0])
    dgp = LatentDGP.from_data(X, y, num_layers=2, num_inducing=10)
    loss = estimator(K=5)
    loss.loss(dgp.model, dgp.guide, X[:1], y[:1])
    encoder = [name for name in pyro.get_param_store() if "encoder" in name]
    runs = {
        batch: SNRProfiler(
            dgp.model, dgp.guide, loss, Q, encoder, keep_draws=True, seed=Q, batch=batch
        ).run(X[:1], y[:1])
        for batch, Q in ((True, 1000), (False, 150))
    }
    assert runs[True].batched == set(encoder)
    assert same_distribution(runs[True], runs[False]) > 1e-5


def test_a_minibatch_is_the_same_in_every_draw():
    """The gradient by theta of the prior alone is then the same, too."""

    def sites(y, observe):
        with pyro.plate("data", len(y), subsample_size=2) as index:
            pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample(
                    "y", dist.Normal(pyro.param("theta", torch.ones(())), 1.0), obs=y[index]
                )

    y = torch.randn(100)
    for loss in (PartiallyCollapsedIWELBO(K=2), Trace_ELBO()):
        profile = SNRProfiler(lambda y: sites(y, True), lambda y: sites(y, False), loss, 50).run(y)
        assert profile.std["theta"].item() < 1e-9


def test_any_loss_of_pyro():
    case = vae()
    case.setup()
    loss = RenyiELBO(0.0, num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    profile = SNRProfiler(case.model, case.guide, loss, 40, seed=0).run(*case.args)
    assert set(profile.snr) == set(case.init)
    assert all(bool(snr.isfinite().all()) for snr in profile.snr.values())


# It leaves no trace.


@pytest.mark.parametrize("batch", [True, False])
def test_leaves_no_trace(batch):
    case = vae(2)
    parameters = case.setup()
    parameters["a"].grad = torch.tensor(7.0)
    values = {name: p.detach().clone() for name, p in parameters.items()}
    state, numpy_state = torch.get_rng_state(), pyro.util.get_rng_state()["numpy"][1].copy()
    store = set(pyro.get_param_store().keys())
    loss = DRegIWELBO(K=3)
    SNRProfiler(case.model, case.guide, loss, 40, seed=0, batch=batch).run(*case.args)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(pyro.util.get_rng_state()["numpy"][1], numpy_state)
    assert set(pyro.get_param_store().keys()) == store
    for name, p in parameters.items():
        assert torch.equal(p, values[name])
        assert (p.grad == 7) if name == "a" else (p.grad is None)
    assert (loss.K, loss.num_particles) == (3, 1)


def test_seeds():
    case = vae()
    case.setup()
    run = [
        SNRProfiler(case.model, case.guide, DRegIWELBO(K=3), 40, seed=seed).run(*case.args)
        for seed in (0, 0, 1)
    ]
    assert run[0].mean == run[1].mean
    assert run[0].mean != run[2].mean


def test_chunks_of_draws():
    case = vae()
    case.setup()
    for chunk_size in (1, 7, 1000):
        profiler = SNRProfiler(
            case.model, case.guide, DRegIWELBO(K=3), 45, chunk_size=chunk_size, keep_draws=True
        )
        profile = profiler.run(*case.args)
        assert profile.draws["a"].shape == (45,)
        torch.testing.assert_close(profile.mean["a"], profile.draws["a"].mean())
        torch.testing.assert_close(profile.std["a"], profile.draws["a"].std())


@pytest.mark.parametrize("debiased", [False, True])
def test_jackknife_against_profiles_of_the_draws_that_are_left(debiased):
    case = vae()
    case.setup()
    options = {"num_draws": 40, "seed": 0, "keep_draws": True}
    loss = PartiallyCollapsedIWELBO(K=2)
    found = SNRProfiler(case.model, case.guide, loss, **options).run(*case.args)
    means = []
    for block in range(10):
        kept = [i for i in range(40) if i // 4 != block]
        entries = []
        for draws in found.draws.values():
            g = draws[kept].double()
            squared = (g.mean(0) / g.std(0)).square()
            entries.append(((33 / 35) * squared - 1 / 36 if debiased else squared.sqrt()).flatten())
        mean = torch.cat(entries).mean()
        means.append(mean.clamp(min=0).sqrt() if debiased else mean)
    expected = (9 * torch.stack(means).var(unbiased=False)).sqrt()
    assert found.mean_snr_error(debiased=debiased) == pytest.approx(expected.item())


def test_parameters_that_are_the_modules_own_alone():
    X, y = torch.randn(8, 2), torch.randn(8)
    profiles = []
    for own in (False, True):
        with pyro.settings.context(module_local_params=own):
            pyro.set_rng_seed(0)
            dgp = LatentDGP.from_data(X, y, num_inducing=4, name="own" if own else "stored")
            profiler = SNRProfiler(dgp.model, dgp.guide, DRegIWELBO(K=3), 20, seed=0)
            profiles.append(profiler.run(X, y).snr)
    assert not any(name.startswith("own") for name in pyro.get_param_store())
    for name, snr in profiles[0].items():
        torch.testing.assert_close(profiles[1][name.replace("stored", "own")], snr)
