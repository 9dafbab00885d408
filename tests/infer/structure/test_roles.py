import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch.distributions import kl_divergence

from pyro_dgp.infer.densities import global_elbo, local_log_prob
from pyro_dgp.infer.samples import SamplePlate
from pyro_dgp.infer.sites import max_plate_nesting, random_sites, with_values
from pyro_dgp.infer.structure.roles import Roles
from tests.infer.models import CASES


def traces(model, guide, *args):
    guide_trace = poutine.trace(guide).get_trace(*args)
    replay = poutine.replay(model, trace=guide_trace)
    return poutine.trace(replay).get_trace(*args), guide_trace


@pytest.mark.parametrize(
    ("name", "plates", "local", "nesting"),
    [
        ("plate", {"data"}, {"z"}, 1),
        ("global, subsampled", {"data"}, {"z"}, 1),
        ("hierarchical guide", {"data"}, {"z1", "z2"}, 1),
        ("groups", {"groups"}, {"z"}, 2),
        ("only global", {"data"}, set(), 1),
        ("no plate", set(), {"z"}, 0),
    ],
)
def test_roles_by_plates(name, plates, local, nesting):
    case = CASES[name]()
    model_trace, guide_trace = traces(case.model, case.guide, *case.args)
    found = Roles.of(model_trace, guide_trace)
    assert found.plates == plates
    assert found.joint == (not plates)
    assert set(found.local(guide_trace)) == local
    assert max_plate_nesting((model_trace, guide_trace)) == nesting


def test_a_latent_in_a_plate_of_its_own_is_global():
    """Weights of features beside latents of data."""

    def model():
        with pyro.plate("features", 3):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 5):
            z = pyro.sample("z", dist.Normal(w.sum(), 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(5))

    def guide():
        with pyro.plate("features", 3):
            pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 5):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    model_trace, guide_trace = traces(model, guide)
    found = Roles.of(model_trace, guide_trace)
    assert found.plates == {"data"}
    assert set(found.local(guide_trace)) == {"z"}
    with SamplePlate(found, 7):
        expanded = poutine.trace(guide).get_trace()
    assert expanded.nodes["w"]["value"].shape == (3,)
    assert expanded.nodes["z"]["value"].shape == (7, 5)


def test_only_random_sites_count():
    def model():
        with pyro.plate("data", 10, subsample_size=3) as index:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.deterministic("twice", 2 * z, event_dim=0)
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(10)[index])

    trace = poutine.trace(model).get_trace()
    assert set(random_sites(trace)) == {"z", "y"}
    with SamplePlate(Roles(frozenset({"data"}), False, 1), 4):
        trace = poutine.trace(model).get_trace()
    assert trace.nodes["twice"]["value"].shape == trace.nodes["z"]["value"].shape == (4, 3)


def test_local_log_prob_has_neither_the_scale_of_its_plates_nor_their_insides():
    y = torch.randn(2, 4)
    mask = torch.tensor([True, False, True, True])

    def model():
        data = pyro.plate("data", 12, subsample_size=4, dim=-1)
        inside = pyro.plate("inside", 2, dim=-2)
        with data, inside, poutine.scale(scale=0.5), poutine.mask(mask=mask):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    site = poutine.trace(model).get_trace().nodes["y"]
    plates = Roles(frozenset({"data"}), joint=False, nesting=2)
    assert plates.scale(site) == 3
    expected = 0.5 * mask * dist.Normal(0.0, 1.0).log_prob(y).sum(0, keepdim=True)
    torch.testing.assert_close(local_log_prob(site, site["value"], plates), expected)


def positive_guide(log_density):
    def guide():
        loc, scale = torch.tensor(0.3), torch.tensor(0.2)
        x = pyro.sample("x", dist.Normal(loc, scale), infer={"is_auxiliary": True})
        pyro.sample("g", dist.Delta(x.exp(), log_density=-x if log_density else 0.0))

    return guide


def test_global_term():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(a, 1.0))
        pyro.sample("y", dist.Normal(b, 1.0), obs=torch.tensor(0.7))

    def guide():
        a = pyro.sample("a", dist.Normal(0.2, 0.5))
        pyro.sample("b", dist.Normal(a, 0.4))

    def reversed_guide():
        b = pyro.sample("b", dist.Normal(0.2, 0.5))
        pyro.sample("a", dist.Normal(b, 0.4))

    nothing_local = Roles(frozenset(), joint=False, nesting=0)
    model_trace, guide_trace = traces(model, guide)
    a, b = (guide_trace.nodes[n]["value"] for n in "ab")
    normal = dist.Normal
    expected = normal(b, 1.0).log_prob(torch.tensor(0.7))
    expected = expected - kl_divergence(normal(0.2, 0.5), normal(0.0, 1.0))
    expected = expected - kl_divergence(normal(a, 0.4), normal(a, 1.0))
    found = global_elbo(model_trace, guide_trace, nothing_local)
    torch.testing.assert_close(found, expected)
    # Where the guide factorises otherwise than the model, a KL site by site would be wrong.
    model_trace, guide_trace = traces(model, reversed_guide)
    found = global_elbo(model_trace, guide_trace, nothing_local)
    expected = model_trace.log_prob_sum() - guide_trace.log_prob_sum()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("log_density", [False, True])
def test_a_density_on_a_delta_counts(log_density):
    def model():
        g = pyro.sample("g", dist.Gamma(2.0, 1.0))
        pyro.sample("y", dist.Normal(g, 1.0), obs=torch.tensor(0.7))

    model_trace, guide_trace = traces(model, positive_guide(log_density))
    found = global_elbo(model_trace, guide_trace, Roles(frozenset(), joint=False, nesting=0))
    expected = model_trace.log_prob_sum() - guide_trace.log_prob_sum()
    torch.testing.assert_close(found, expected)


def test_values_are_replaced_in_a_copy():
    trace = poutine.trace(lambda: pyro.sample("x", dist.Normal(0.0, 1.0))).get_trace()
    before = trace.nodes["x"]["value"]
    replay = with_values(trace, {"x": torch.tensor(9.0)})
    assert replay.nodes["x"]["value"] == 9
    assert trace.nodes["x"]["value"] is before
