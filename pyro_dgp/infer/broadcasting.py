"""Whether a model and guide mean the same with samples in a dimension left of their plates."""

from collections.abc import Callable

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.infer.densities import local_log_prob
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.infer.roles import Roles
from pyro_dgp.infer.samples import SamplePlate
from pyro_dgp.infer.sites import is_drawn, log_prob, random_sites, with_values
from pyro_dgp.infer.structure import both_traces, run_guide

__all__ = ["refuse_wrong_broadcasting"]

# Rounding is less, and a dimension that is taken for another one makes more.
_TOLERANCE = 0.01


@torch.no_grad()
def refuse_wrong_broadcasting(
    model: Callable, guide: Callable, args: tuple, kwargs: dict, roles: Roles
) -> None:
    """Evaluates one draw by itself and twice side by side, and compares.

    Where densities are random (dropout), or a run fails, nothing is said.

    :raises NotImplementedError: If densities differ: names the site.
    """

    def densities(trace: Trace, handler: Callable = lambda function: function) -> dict:
        guide_trace = run_guide(guide, handler(poutine.replay(guide, trace=trace)), args, kwargs)
        # With the minibatch, of which the guide may know nothing.
        replay = poutine.replay(poutine.replay(model, trace=trace), trace=guide_trace)
        model_trace = poutine.trace(handler(replay)).get_trace(*args, **kwargs)
        return _densities((model_trace, guide_trace), roles)

    with poutine.block(), untouched_random_state():
        model_trace, guide_trace = both_traces(model, guide, args, kwargs)
        drawn = guide_trace.copy()
        for name, site in model_trace.nodes.items():
            if site["type"] == "sample" and site_is_subsample(site):
                drawn.nodes[name] = site
        del model_trace, guide_trace
        twice = with_values(drawn, _twice(drawn, roles))
        try:
            before = torch.get_rng_state()
            one = densities(drawn)
            if not torch.equal(torch.get_rng_state(), before):
                return
            both = densities(twice, SamplePlate(roles, 2))
        except (RuntimeError, ValueError, IndexError, TypeError):
            return
    for key, density in one.items():
        if key in both and not _same(density, both[key]):
            raise NotImplementedError(
                f"The density of site '{key[1]}' differs where samples stand in a dimension to the "
                "left of the plates, so the model or the guide does not broadcast over it (a sum "
                "or an index counts dimensions from the left, or drops one of them). Keep the "
                "plates' dimensions, or pass vectorize_particles=False."
            )


def _twice(guide_trace: Trace, roles: Roles) -> dict[str, Tensor]:
    """The local draws, twice side by side."""
    values = {}
    for name, site in roles.local(guide_trace).items():
        if is_drawn(site):
            value, event_dim = site["value"], site["fn"].event_dim
            padding = roles.nesting - (value.dim() - event_dim)
            value = value.reshape((1,) * padding + value.shape)
            values[name] = value.expand(2, *value.shape)
    return values


def _densities(traces: tuple[Trace, Trace], roles: Roles) -> dict[tuple[int, str], Tensor]:
    """Of all sites; those within a weight summed."""
    found = {}
    for i, trace in enumerate(traces):
        for name, site in random_sites(trace).items():
            try:
                if roles.is_local(site):
                    density = local_log_prob(site, site["value"], roles)
                    padding = (1,) * (roles.nesting - density.dim())
                    found[i, name] = density.reshape(padding + density.shape)
                else:
                    found[i, name] = log_prob(site, site["value"])
            except (KeyError, NotImplementedError):  # a flow that knows its own draws only
                continue
    return found


def _same(one: Tensor, other: Tensor | None) -> bool:
    """Whether a density is another one, or that for each of some samples."""
    if other is None or other.dim() > one.dim() + 1:
        return False
    shape = other.shape[: other.dim() - one.dim()] + one.shape
    try:
        one, other = one.expand(shape), other.expand(shape)
    except RuntimeError:
        return False
    counts = one.isfinite() & other.isfinite()
    scale = one[counts].abs().amax().clamp(min=1.0) if counts.any() else 1.0
    return bool(((one - other)[counts].abs() <= _TOLERANCE * scale).all())
