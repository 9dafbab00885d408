"""Check that a sample dimension left of the plates does not change densities."""

from collections.abc import Callable

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from torch import Tensor

from pyro_dgp.infer.densities import local_log_prob
from pyro_dgp.infer.random_state import random_state, same_random_state, untouched_random_state
from pyro_dgp.infer.samples import SamplePlate
from pyro_dgp.infer.sites import (
    is_drawn,
    log_prob,
    random_sites,
    subsample_sites,
    with_values,
    without_points,
)
from pyro_dgp.infer.structure.inspection import both_traces, run_guide
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["UNKNOWN", "wrong_broadcasting", "wrongly_broadcast"]

# Relative; rounding errors are smaller, and those of a confused dimension are larger.
_TOLERANCE = 0.01
#: Returned where densities are random, or change between runs.
UNKNOWN = ""

Densities = dict[tuple[int, str], Tensor]


def wrong_broadcasting(name: str) -> NotImplementedError:
    """The error for a site whose density differs."""
    return NotImplementedError(
        f"The density of site '{name}' differs where samples stand in a dimension to the left of "
        "the plates, so the model or the guide does not broadcast over it (a sum or an index "
        "counts dimensions from the left, or drops one of them). Keep the plates' dimensions, or "
        "pass vectorize_particles=False."
    )


@torch.no_grad()
def wrongly_broadcast(
    model: Callable, guide: Callable, args: tuple, kwargs: dict, roles: Roles, num_sets: int = 1
) -> str | None:
    """Evaluates two samples one after the other and side by side, and compares.

    :param int num_sets: Number of sets of samples: 2 if each sample has its own draws of the sites
        that are not local, too.
    :returns: The name of a site whose density differs; None if there is none, :data:`UNKNOWN` if it
        cannot be determined.
    """

    def run(trace: Trace, handler: Callable = lambda function: function) -> Densities:
        guide_trace = run_guide(guide, handler(poutine.replay(guide, trace=trace)), args, kwargs)
        # With the same minibatch, which may be a plate of the model only.
        replay = poutine.replay(poutine.replay(model, trace=trace), trace=guide_trace)
        model_trace = poutine.trace(handler(replay)).get_trace(*args, **kwargs)
        return _densities((model_trace, guide_trace), roles)

    with poutine.block(), untouched_random_state():
        model_trace, one = both_traces(model, guide, args, kwargs)
        common = one.copy()
        for name, site in random_sites(one).items():
            if num_sets > 1 or roles.is_local(site):
                common.remove_node(name)
        rows = subsample_sites(model_trace)
        common.nodes.update(rows)
        one.nodes.update(rows)
        first = _densities((model_trace, one), roles)
        del model_trace
        other = run_guide(guide, poutine.replay(guide, trace=common), args, kwargs)
        for name, site in common.nodes.items():
            other.nodes.setdefault(name, site)
        stacked = _stacked(one, other, roles, num_sets)
        side_by_side = with_values(without_points(one), stacked)
        before = random_state()
        apart = run(one), run(other)
        if not same_random_state(random_state(), before) or not _same(apart[0], first):
            return UNKNOWN
        try:
            together = run(side_by_side, SamplePlate(roles, 2, num_sets))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            # Several sets may fail; with one, the actual run raises the error that explains it.
            return str(error) if num_sets > 1 else None
    for key, density in together.items():
        if not _is_pair(density, apart[0].get(key), apart[1].get(key), roles.nesting):
            return key[1]
    return None


def _stacked(one: Trace, other: Trace, roles: Roles, num_sets: int) -> dict[str, Tensor]:
    """The two draws of each site that is drawn per sample, stacked."""
    values, others = {}, random_sites(other)
    for name, site in random_sites(one).items():
        own = roles.is_local(site) or (num_sets > 1 and name in roles.averaged)
        if is_drawn(site) and own:
            pair = site["value"], others[name]["value"]
            padding = (1,) * (roles.nesting - (pair[0].dim() - site["fn"].event_dim))
            values[name] = torch.stack([value.reshape(padding + value.shape) for value in pair])
    return values


def _densities(traces: tuple[Trace, Trace], roles: Roles) -> Densities:
    """Log densities of all sites; those of local sites summed within each weight."""
    found = {}
    for i, trace in enumerate(traces):
        for name, site in random_sites(trace).items():
            try:
                if roles.is_local(site):
                    found[i, name] = local_log_prob(site, site["value"], roles)
                else:
                    found[i, name] = log_prob(site, site["value"])
            except (KeyError, NotImplementedError):  # a flow that knows its own draws only
                continue
    return found


def _same(one: Densities, other: Densities) -> bool:
    # The run that drew the values may have more: a flow may know those of its own draws only.
    return one.keys() <= other.keys() and all(
        x.shape == other[key].shape and torch.allclose(x, other[key], equal_nan=True)
        for key, x in one.items()
    )


def _is_pair(density: Tensor, one: Tensor | None, other: Tensor | None, nesting: int) -> bool:
    """Whether a density is that of both samples, stacked, or one that they share."""
    if one is None or other is None or one.shape != other.shape:
        return True
    padded = [x.reshape((1,) * (nesting - x.dim()) + x.shape) for x in (one, other)]
    both = torch.stack(padded)
    if density.dim() > both.dim():
        return False
    density = density.reshape((1,) * (both.dim() - density.dim()) + density.shape)
    try:
        density = density.expand(both.shape)
    except RuntimeError:
        return False
    counts = both.isfinite() & density.isfinite()
    scale = both[counts].abs().amax().clamp(min=1.0) if counts.any() else 1.0
    return bool(((both - density)[counts].abs() <= _TOLERANCE * scale).all())
