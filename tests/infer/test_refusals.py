"""What estimators, training and profiles do not take: above all, models of which their bound
would be silently wrong."""

import math
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import transforms
from pyro.infer import SVI, ReweightedWakeSleep, config_enumerate
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuideList,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from pyro_dgp import (
    VIMCOIWELBO,
    DRegIWELBO,
    GDRegIWELBO,
    NaturalGradient,
    PartiallyCollapsedIWELBO,
    SNRProfiler,
    fit,
    snr_sweep,
)
from pyro_dgp.infer import SNRAlongTraining, SNRSweep, paper_optimizer
from tests.gp.models import data, small
from tests.infer.models import CASES, Y, vae, with_global
from tests.refusals import refusals

both = pytest.mark.parametrize("estimator", [PartiallyCollapsedIWELBO, DRegIWELBO])


# Options


@both
@refusals(
    {
        f"a K of {K!r}": (lambda estimator, K=K: estimator(K=K), ValueError, words)
        for K, words in [
            (0, "K must be at least 1"),
            (-1, "K must be at least 1"),
            (2.0, "K must be an integer"),
            (True, "K must be an integer"),
            ("3", "K must be an integer"),
            (None, "K must be an integer"),
            (np.float64(2), "K must be an integer"),
        ]
    }
)
def test_numbers_of_samples(estimator, call, error, words):
    with pytest.raises(error, match=words):
        call(estimator)


def of_options(estimator=DRegIWELBO, K=2, **options):
    return lambda: estimator(K=K, **options)


@refusals(
    {
        "no particles": (
            of_options(num_particles=0), ValueError, "num_particles must be at least 1"
        ),
        "a negative beta": (of_options(beta=-0.1), ValueError, "beta must be between 0 and 1"),
        "a beta above 1": (of_options(beta=1.5), ValueError, "beta must be between 0 and 1"),
        "a beta that is no number": (
            of_options(beta=math.nan), ValueError, "beta must be between 0 and 1"
        ),
        "a beta that is a text": (of_options(beta="a"), ValueError, "beta must be between 0 and 1"),
        "an alpha of 1": (
            of_options(alpha=1.0), ValueError, "alpha must be at least 0 and below 1.* beta=1"
        ),
        "an alpha that is no number": (
            of_options(alpha=math.nan), ValueError, "alpha must be at least 0 and below 1"
        ),
        "no chunks": (of_options(chunk_size=0), ValueError, "chunk_size must be at least 1"),
        "half a chunk": (of_options(chunk_size=2.5), ValueError, "chunk_size must be an integer"),
        "powers with two targets": (
            of_options(alpha=0.5, piwae=True),
            NotImplementedError, "alpha and piwae together.*leave one of them out",
        ),
        "two targets of GDReG": (
            of_options(GDRegIWELBO, num_particles=2, piwae=True),
            NotImplementedError, "piwae=True has no such .*use DRegIWELBO",
        ),
        "one sample of VIMCO": (of_options(VIMCOIWELBO, K=1), ValueError, "K must be at least 2"),
        "two targets of VIMCO": (
            of_options(VIMCOIWELBO, piwae=True), NotImplementedError, "piwae=True has no scores"
        ),
    }
)  # fmt: skip
def test_options_of_estimators(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Models and guides, of which a refused bound would be silently wrong: set-ups, then their table


def normal_guide(*names):
    def guide():
        with pyro.plate("data", 3):
            for name in names:
                pyro.sample(name, dist.Normal(pyro.param(f"{name}_loc", torch.zeros(())), 1.0))

    return guide


def drawn(sites):
    """Model and guide with the same sites, of which the model observes some."""
    return (lambda: sites(True)), (lambda: sites(False))


def no_observations():
    def model():
        with pyro.plate("data", 3):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    return model, normal_guide("z")


def a_site_that_the_guide_lacks():
    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            x = pyro.sample("x", dist.Normal(z, 1.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(3))

    return model, normal_guide("z")


def a_discrete_draw():
    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    def guide():
        with pyro.plate("data", 3):
            pyro.sample("z", dist.Bernoulli(pyro.param("p", torch.tensor(0.5))))

    return model, guide


def a_discrete_global_draw():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    return model, lambda: pyro.sample("z", dist.Bernoulli(pyro.param("p", torch.tensor(0.5))))


def a_discrete_draw_in_no_plate():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(0.3))

    return model, lambda: pyro.sample("z", dist.Bernoulli(pyro.param("p", torch.tensor(0.5))))


def enumeration_in_the_guide():
    model, guide = a_discrete_draw()
    return model, config_enumerate(guide)


def enumeration_in_the_model():
    @config_enumerate
    def model():
        loc = pyro.sample("loc", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 4):
            k = pyro.sample("assignment", dist.Categorical(torch.ones(2)))
            pyro.sample("y", dist.Normal(loc[k], 1.0), obs=Y)

    return model, AutoNormal(poutine.block(model, hide=["assignment"]))


def observations_in_another_plate():
    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))
        with pyro.plate("other", 2):
            pyro.sample("x", dist.Normal(z.sum(-1, keepdim=True), 1.0), obs=torch.zeros(2))

    return model, normal_guide("z")


def observations_in_no_plate():
    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=torch.zeros(3))

    return model, normal_guide("z")


def subsampling_inside_the_weights():
    def model():
        with pyro.plate("data", 3, dim=-1):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            with pyro.plate("inside", 10, subsample_size=5, dim=-2):
                pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(5, 3))

    return model, normal_guide("z")


def a_plate_of_another_name():
    """The guide's z would be global, drawn once: silently the bound of K = 1."""

    def model():
        with pyro.plate("rows", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    return model, normal_guide("z")


def crossing_plates():
    def sites(observe):
        rows, columns = pyro.plate("rows", 3, dim=-2), pyro.plate("columns", 2, dim=-1)
        with rows:
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with columns:
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
        if observe:
            with rows, columns:
                pyro.sample("y", dist.Normal(a + b, 1.0), obs=torch.zeros(3, 2))

    return drawn(sites)


def sequential_plates_in_different_orders():
    def sites(order, observe):
        for i, n in zip(pyro.plate("data", 3), order, strict=True):
            z = pyro.sample(f"z{n}", dist.Normal(float(i), 1.0))
            if observe:
                pyro.sample(f"y{n}", dist.Normal(z, 1.0), obs=torch.zeros(()))

    return (lambda: sites((0, 1, 2), True)), (lambda: sites((2, 1, 0), False))


def plates_that_change_from_run_to_run():
    runs = [0]

    def sites(observe):
        runs[0] += 1
        with pyro.plate(f"plate_{runs[0] // 2}", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    def model():
        runs[0] -= 1  # in the plate of the guide's run
        sites(True)
        runs[0] += 1

    return model, lambda: sites(False)


def a_global_that_reads_a_local_draw():
    def sites(observe):
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(z, 1.0), obs=Y)
        pyro.sample("g", dist.Normal(z.mean(-1), 1.0))

    return drawn(sites)


def a_joint_autoguide(autoguide):
    """Over a global latent and a local one."""

    def model():
        rate = pyro.sample("rate", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(rate, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    return model, autoguide(model)


def a_joint_autoguide_beside_another_one():
    """Whatever the sizes of the sites: simplexes have fewer free dimensions than elements."""

    def model():
        with pyro.plate("data", 4):
            p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(p[..., 0] + w, 1.0), obs=Y)

    guide = AutoGuideList(model)
    guide.append(AutoDiagonalNormal(poutine.block(model, expose=["p"])))
    guide.append(AutoNormal(poutine.block(model, expose=["w"])))
    return model, guide


def a_site_that_is_conditioned_on_and_still_drawn():
    case = CASES["hierarchical guide"]()
    return poutine.condition(case.model, data={"z1": torch.zeros(2)}), case.guide, *case.args


def two_data_that_depend_on_each_other(reader, read):
    def model():
        with pyro.plate("data", 7):
            z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            shift = torch.eye(7)[reader] * 1e-3 * z[..., read : read + 1, 0]
            pyro.sample("y", dist.Normal(z.sum(-1) + shift, 1.0), obs=torch.zeros(7))

    def guide():
        with pyro.plate("data", 7):
            pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    return model, guide


def a_markov_chain_in_a_sequential_plate():
    def sites(observe):
        z = torch.zeros(())
        for t in pyro.plate("time", 4):
            z = pyro.sample(f"z{t}", dist.Normal(z if observe else 0.0, 1.0))
            if observe:
                pyro.sample(f"y{t}", dist.Normal(z, 1.0), obs=Y[t])

    return drawn(sites)


def a_factor_that_is_not_reparameterised():
    def sites(observe):
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(z, 1.0), obs=Y)
            else:
                pyro.factor("f", 0.1 * z, has_rsample=False)

    return drawn(sites)


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@both
@refusals(
    {
        "no observations": (no_observations, ValueError, "observes nothing"),
        "a site that the guide lacks": (
            a_site_that_the_guide_lacks, ValueError, "'x' is missing in the guide"
        ),
        "a discrete draw": (
            a_discrete_draw,
            NotImplementedError, r"'z' \(Bernoulli\) is not reparameterised; .*use VIMCOIWELBO",
        ),
        "a discrete global draw": (
            a_discrete_global_draw, NotImplementedError, r"'z' \(Bernoulli\) is not reparameterised"
        ),
        "a discrete draw in no plate": (
            a_discrete_draw_in_no_plate,
            NotImplementedError, r"'z' \(Bernoulli\) is not reparameterised",
        ),
        "enumeration in the guide": (
            enumeration_in_the_guide, NotImplementedError, "'z' is enumerated"
        ),
        "enumeration in the model": (
            enumeration_in_the_model,
            NotImplementedError, "'assignment' is enumerated.*TraceEnum_ELBO",
        ),
        "observations in another plate": (
            observations_in_another_plate,
            NotImplementedError, "Site 'x' and the local latent site 'z'",
        ),
        "observations in no plate": (
            observations_in_no_plate, NotImplementedError, "Site 'y' and the local latent site 'z'"
        ),
        "subsampling inside the weights": (
            subsampling_inside_the_weights,
            NotImplementedError, "Plate 'inside' of site 'y' subsamples",
        ),
        "a plate of another name": (
            a_plate_of_another_name,
            NotImplementedError, r"'z' stands in .*'rows'.* but in \['data'\]",
        ),
        "crossing plates": (
            crossing_plates, NotImplementedError, "'b' and the local latent site 'a' have no plate"
        ),
        "sequential plates in different orders": (
            sequential_plates_in_different_orders,
            NotImplementedError, r"'z\d' stands in iteration .* one order",
        ),
        "plates that change from run to run": (
            plates_that_change_from_run_to_run, NotImplementedError, "differ between two runs"
        ),
        "a global that reads a local draw": (
            a_global_that_reads_a_local_draw,
            NotImplementedError, r"Site 'g' .* depends on the local .* 'z'",
        ),
        "a joint autoguide beside another one": (
            a_joint_autoguide_beside_another_one,
            NotImplementedError, r"'p' as a part of '_AutoGuideList\.0_latent'",
        ),
        "a site that is conditioned on and still drawn": (
            a_site_that_is_conditioned_on_and_still_drawn,
            NotImplementedError, "observed site 'z1' stands in the guide too",
        ),
        "a Markov chain in a sequential plate": (
            a_markov_chain_in_a_sequential_plate,
            NotImplementedError, r"\['time'\] depend on each other's draws",
        ),
        "a factor that is not reparameterised": (
            a_factor_that_is_not_reparameterised,
            NotImplementedError, r"'f' \(Unit\) is not reparameterised; pass has_r",
        ),
    }
    | {
        f"an {autoguide.__name__} over local latents": (
            partial(a_joint_autoguide, autoguide),
            NotImplementedError, "'z' as a part of '_Auto.*_latent'",
        )
        for autoguide in (
            AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal
        )
    }
    | {
        f"datum {reader} that reads datum {read}": (
            partial(two_data_that_depend_on_each_other, reader, read),
            NotImplementedError, "depend on each other's draws",
        )
        for reader, read in [(0, 1), (3, 2), (5, 0), (6, 2)]
    }
)  # fmt: skip
def test_models_and_guides(estimator, call, error, words):
    model, guide, *args = call()
    with pytest.raises(error, match=words):
        estimator(K=2).loss(model, guide, *args)


# What DReG alone refuses: its gradient would need one weight for a draw and another for a parameter


def a_map_with_parameters():
    case = vae()

    def guide(y):
        stretch = pyro.param("stretch", torch.tensor(1.5))
        with pyro.plate("data", len(y)):
            loc = y * pyro.param("a", torch.tensor(0.5))
            u = pyro.sample("u", dist.Normal(loc, 1.0), infer={"is_auxiliary": True})
            log_density = -stretch.log().expand_as(u)
            pyro.sample("z", dist.Delta(stretch * u, log_density=log_density))

    return case.model, guide, Y


def a_factor_with_parameters():
    case = vae()

    def guide(y):
        stretch = pyro.param("stretch", torch.tensor(1.5))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(y * pyro.param("a", torch.tensor(0.5)), 1.0))
            pyro.factor("w", stretch * z, has_rsample=True)

    return case.model, guide, Y


def a_flow_without_an_inverse():
    planar = transforms.planar(2)

    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=torch.ones(3))

    def guide():
        pyro.module("planar", planar)
        with pyro.plate("data", 3):
            base = dist.Normal(torch.zeros(3, 2), 1.0).to_event(1)
            pyro.sample("z", dist.TransformedDistribution(base, [planar]))

    return model, guide


def dependent_draws(handler):
    """Of which the handler changes the first."""
    case = CASES["hierarchical guide"]()

    def guide(y):
        with pyro.plate("data", len(y)):
            with handler:
                z1 = pyro.sample("z1", dist.Normal(pyro.param("a", torch.tensor(0.3)) * y, 1.0))
            pyro.sample("z2", dist.Normal(z1, 1.0))

    return case.model, guide, *case.args


def a_learned_scale():
    case = vae()

    def guide(y):
        with poutine.scale(scale=pyro.param("scale", torch.tensor(0.5))):
            case.guide(y)

    return case.model, guide, Y


@refusals(
    {
        "a map with parameters": (
            a_map_with_parameters, NotImplementedError, "local site 'z' .*TransformedDistribution"
        ),
        "a factor with parameters": (
            a_factor_with_parameters,
            NotImplementedError, "local site 'w' .*TransformedDistribution",
        ),
        "a flow without an inverse": (
            a_flow_without_an_inverse, NotImplementedError, "'z' .* flow without an inverse"
        ),
        "dependent draws of different scales": (
            lambda: dependent_draws(poutine.scale(scale=0.5)),
            NotImplementedError, r"\['z1', 'z2'\] depend on each other",
        ),
        "dependent draws of different masks that the model reads": (
            lambda: dependent_draws(poutine.mask(mask=torch.tensor([False, True]))),
            NotImplementedError, "'z1' is masked, but the model reads",
        ),
        "a learned scale": (
            a_learned_scale, NotImplementedError, "'z' is scaled by a tensor with a gradient"
        ),
    }
)  # fmt: skip
def test_guides_of_dreg_alone(call, error, words):
    model, guide, *args = call()
    assert math.isfinite(PartiallyCollapsedIWELBO(K=3).loss_and_grads(model, guide, *args))
    with pytest.raises(error, match=words):
        DRegIWELBO(K=3).loss_and_grads(model, guide, *args)


# What other estimators refuse


def a_global_that_two_targets_read():
    case = with_global()
    DRegIWELBO(K=2, num_particles=2, piwae=True).loss(case.model, case.guide, Y)


def too_few_dimensions():
    case = vae()
    DRegIWELBO(K=2, max_plate_nesting=0).loss(case.model, case.guide, Y)


def a_discrete_global_draw_of_vimco():
    def sites(observe):
        s = pyro.sample("s", dist.Bernoulli(0.5))
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(s if observe else 0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    VIMCOIWELBO(K=2).loss(*drawn(sites))


def a_prior_of_which_no_path_is_known(prior):
    def model(y):
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", prior(pyro.param("p", torch.tensor(2.0))))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide(y):
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.LogNormal(pyro.param("a", torch.tensor(1.0)), 0.1))

    loss = GDRegIWELBO(K=2)
    loss.loss(model, guide, Y)  # of which the value is right
    loss.loss_and_grads(model, guide, Y)


def a_draw_that_the_prior_would_not_give():
    """In the range of a saturated transform there is no noise."""

    def model(y):
        with pyro.plate("data", len(y)):
            prior = dist.Gumbel(pyro.param("m", torch.tensor(0.1)), 1.0)
            pyro.sample("y", dist.Normal(pyro.sample("z", prior), 1.0), obs=y)

    GDRegIWELBO(K=2).loss_and_grads(model, vae().guide, 200 + Y)


@refusals(
    {
        "a global that two targets read": (
            a_global_that_two_targets_read,
            NotImplementedError, "'z' depends on the global .* 'mu'.*PIWAE",
        ),
        "fewer dimensions than plates": (
            too_few_dimensions, ValueError, "max_plate_nesting is 0, but the plates .* use 1"
        ),
        "a discrete global draw of VIMCO": (
            a_discrete_global_draw_of_vimco,
            NotImplementedError, r"'s' \(Bernoulli\).*use TraceGraph_ELBO",
        ),
        "a draw that the prior would not give": (
            a_draw_that_the_prior_would_not_give,
            FloatingPointError, "'z' would not draw .*Use float64",
        ),
    }
    | {
        f"a prior of which no path is known: {name}": (
            partial(a_prior_of_which_no_path_is_known, prior),
            NotImplementedError, "local site 'z'.*use DRegIWELBO",
        )
        for name, prior in {
            "Gamma": lambda p: dist.Gamma(p, 1.0),
            "map of a Gamma": lambda p: dist.TransformedDistribution(
                dist.Gamma(p, 1.0), [transforms.ExpTransform()]
            ),
            "StudentT": lambda p: dist.StudentT(p, 0.0, 1.0),
        }.items()
    }
)  # fmt: skip
def test_other_estimators(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Training


def fitted(**options):
    def call():
        case = vae()
        arguments = {"data": (Y,), "progress": False, "num_steps": 1} | options
        fit(case.model, case.guide, arguments.pop("loss", DRegIWELBO(K=2)), **arguments)

    return call


def sparse_gp():
    return small(*data(), num_layers=1, latent_dim=0)


def natural_gradient(**options):
    def call():
        arguments = {"layers": sparse_gp().layers[0], "optim": paper_optimizer()}
        NaturalGradient(**arguments | options)

    return call


def a_layer_of_another_model():
    mine, optim = sparse_gp(), NaturalGradient(sparse_gp().layers[0], paper_optimizer())
    SVI(mine.model, mine.guide, optim, loss=PartiallyCollapsedIWELBO(K=1)).step(*data())


@refusals(
    {
        "fewer than no steps": (fitted(num_steps=-1), ValueError, "num_steps must be at least 0"),
        "half a step": (fitted(num_steps=0.5), ValueError, "num_steps must be an integer"),
        "an optimiser of torch": (
            fitted(optim=torch.optim.Adam([torch.zeros(1, requires_grad=True)])),
            ValueError, r"optim must be an optimiser of Pyro, such as .*Adam",
        ),
        "a class of losses": (
            fitted(loss=DRegIWELBO), ValueError, r"loss must be an object such as DRegIWELBO\(K="
        ),
        "a loss of two values": (
            fitted(loss=ReweightedWakeSleep(num_particles=2)),
            ValueError, "loss must have one value, .* ReweightedWakeSleep",
        ),
        "a tensor in place of a tuple": (
            fitted(data=Y), ValueError, r"data must be several torch tensors.* \(y,\)"
        ),
        "an array": (
            fitted(data=(Y.numpy(),)), ValueError, r"data must be several torch tensors.*nor arrays"
        ),
        "no batch": (fitted(batch_size=0), ValueError, "batch_size must be at least 1"),
        "data of different lengths": (
            fitted(data=(Y, Y[:3])),
            ValueError, r"data must be .*number of rows, but they have \[4, 3\]",
        ),
        "no rows": (fitted(data=(Y[:0],)), ValueError, "data must be .* positive number of rows"),
        "no data": (fitted(data=()), ValueError, "data must be .* positive number of rows"),
        "weights of other rows": (
            fitted(weights=torch.ones(3)), ValueError, "weights must .*one per row"
        ),
        "a negative weight": (
            fitted(weights=torch.tensor([-1.0, 1.0, 1.0, 1.0])),
            ValueError, "weights must be non-negative",
        ),
        "weights of 0": (
            fitted(weights=torch.zeros(4)), ValueError, "weights must be .* not all 0"
        ),
        "weights that are no numbers": (
            fitted(weights=torch.full((4,), math.nan)),
            ValueError, "weights must be non-negative and finite",
        ),
        "a rate of 0": (natural_gradient(lr=0.0), ValueError, "lr must be positive"),
        "a negative decay": (natural_gradient(decay=-1.0), ValueError, "decay must be positive"),
        "decay at every step 0": (
            natural_gradient(decay_steps=0), ValueError, "decay_steps must be positive"
        ),
        "annealing in no steps": (
            natural_gradient(annealing_steps=0), ValueError, "annealing_steps must be positive"
        ),
        "no layers": (natural_gradient(layers=[]), ValueError, "layers is empty"),
        "no layer with inducing values": (
            natural_gradient(layers=[torch.nn.Linear(1, 1)]),
            ValueError, r"layers\[0\] \(Linear\) has no parameter u_loc",
        ),
        "a layer of another model": (
            a_layer_of_another_model,
            ValueError, r"q\(u\) of a GPLayer .* is not among the parameters",
        ),
    }
)  # fmt: skip
def test_training(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Profiles of signal-to-noise ratios


def profiler(*args, **options):
    case = vae()
    return SNRProfiler(case.model, case.guide, DRegIWELBO(K=3), *args, **options), case.args


def profiled(use=None, **options):
    def call():
        made, args = profiler(40, **options)
        profile = made.run(*args)
        return use and use(profile)

    return call


def no_parameters():
    def sites(observe):
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    return drawn(sites)


def swept(numbers=(2,), **options):
    def call():
        case = vae()
        case.setup()
        estimators = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}
        arguments = {"num_draws": 40, "progress": False} | options
        try:
            snr_sweep(case.model, case.guide, case.args, estimators, list(numbers), **arguments)
        finally:
            assert torch.is_grad_enabled()

    return call


@refusals(
    {
        "few draws": (lambda: profiler(10), ValueError, "num_draws must be at least 20"),
        "no chunks": (lambda: profiler(chunk_size=0), ValueError, "chunk_size must be at least 1"),
        "a negative seed": (lambda: profiler(seed=-1), ValueError, "seed must be at least 0"),
        "a seed of more than 32 bits": (
            lambda: profiler(seed=2**32), ValueError, r"seed must be less than 2\^32"
        ),
        "a site that is not there": (
            profiled(sites=["nothing"]), ValueError, "sites has 'nothing'.*there are: .*theta"
        ),
        "no sites": (profiled(sites=[]), ValueError, "sites is empty"),
        "a site that is not in the profile": (
            profiled(lambda profile: profile.mean_snr(["x"])),
            ValueError, "sites has 'x'.*there are: .*theta",
        ),
        "a level above 1": (
            profiled(lambda profile: profile.interval(1.5)),
            ValueError, "level must be between 0 and 1",
        ),
        "no parameters": (
            lambda: SNRProfiler(*no_parameters(), DRegIWELBO(K=2)).run(),
            ValueError, "no parameters in the param store",
        ),
        "a sweep of K = 0": (swept([0]), ValueError, "K must be at least 1"),
        "a sweep of one K twice": (swept([2, 3, 2]), ValueError, "K has 2 twice"),
        "a sweep of one size of batches twice": (
            swept(batch_sizes=[None, None]), ValueError, "batch_sizes has None twice"
        ),
        "a sweep with a tensor in place of a tuple": (
            lambda: snr_sweep(None, None, Y, {}, [1]), ValueError, "args must be a tuple of tensors"
        ),
        "a sweep of more rows than there are": (
            swept(batch_sizes=[5]), ValueError, "batch_sizes has 5, but the data have 4 rows"
        ),
        "a profile before the first step": (
            lambda: SNRAlongTraining(lambda: None, [0]), ValueError, "steps must be at least 1"
        ),
    }
)  # fmt: skip
def test_profiles(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"points": [{"K": 1}]}'])
def test_files_that_are_no_sweeps(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json is no file of an SNR sweep"):
        SNRSweep.load(path)
