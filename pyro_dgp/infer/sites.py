"""Reading traces: which sites are random, in which plates, with which density and mask."""

from collections.abc import Iterable

import torch
from pyro.distributions import Delta, Independent, MaskedDistribution, Unit
from pyro.poutine import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import constraints

from pyro_dgp.infer.random_state import untouched_random_state

__all__ = [
    "SAMPLES",
    "delta",
    "is_drawn",
    "is_masked",
    "is_random",
    "is_reparameterised",
    "log_prob",
    "max_plate_nesting",
    "plates_of",
    "random_sites",
    "same_mask",
    "shown_elements",
    "tensors_of",
    "with_values",
    "without_points",
]

#: Name of the plate of importance samples.
SAMPLES = "_importance_samples"


def random_sites(trace: Trace) -> dict[str, dict]:
    """The sample sites with a density: no subsampling, no ``pyro.deterministic``."""
    return {name: site for name, site in trace.nodes.items() if is_random(site)}


def is_random(site: dict) -> bool:
    return (
        site["type"] == "sample"
        and not site_is_subsample(site)
        and not site["infer"].get("_deterministic", False)
    )


def is_drawn(site: dict) -> bool:
    """Whether a random site of the guide is a draw, not a point or a factor."""
    return is_random(site) and not site["is_observed"] and delta(site["fn"]) is None


def is_reparameterised(site: dict) -> bool:
    """Whether a guide's draw, or the draws of a factor of it, have gradients."""
    return site["fn"].has_rsample or (site["is_observed"] and not isinstance(site["fn"], Unit))


def tensors_of(fn) -> list[Tensor]:
    """The tensors that a distribution is made of."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return [x for x in vars(fn).values() if isinstance(x, Tensor)]


def delta(fn) -> Delta | None:
    """The Delta that a distribution is, be it in an ``Independent`` or masked."""
    while not isinstance(fn, Delta) and hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn if isinstance(fn, Delta) else None


def plates_of(site: dict) -> dict:
    """The frames of a site's plates by name, without that of importance samples."""
    return {frame.name: frame for frame in site["cond_indep_stack"] if frame.name != SAMPLES}


def log_prob(site: dict, value: Tensor) -> Tensor:
    """A site's log density, neither scaled nor masked, with a gradient that masks can zero.

    What a mask hides of an observation, NaN perhaps, gives way to a value of the support: its
    density is multiplied by zero, and in backward 0 * NaN would be NaN.
    """
    fn = site["fn"]
    if site["mask"] is False:
        return torch.zeros(fn.batch_shape, device=value.device)
    shown = shown_elements(site) if site["is_observed"] else None
    if shown is not None:
        value = value.where(shown, _supported(fn, value))
    return fn.log_prob(value, *site["args"], **site["kwargs"])


def shown_elements(site: dict) -> Tensor | None:
    """Which elements of a site's value count in its density; None where all do."""
    fn, device = site["fn"], site["value"].device
    return _and(_batch_mask(site["mask"], fn.event_dim, device), _element_mask(fn, device))


def same_mask(one: dict, other: dict) -> bool:
    """Whether two sites are masked alike."""
    a, b = shown_elements(one), shown_elements(other)
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.equal(a, b)


def _element_mask(fn, device) -> Tensor | None:
    if isinstance(fn, Independent):
        return _element_mask(fn.base_dist, device)
    if isinstance(fn, MaskedDistribution):
        own = _batch_mask(fn._mask, fn.event_dim, device)
        return _and(own, _element_mask(fn.base_dist, device))
    return None


def _batch_mask(mask: Tensor | bool | None, event_dim: int, device) -> Tensor | None:
    if mask is False:
        return torch.tensor(False, device=device)
    return mask.reshape(mask.shape + (1,) * event_dim) if isinstance(mask, Tensor) else None


def _and(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a & b if a is not None and b is not None else a if b is None else b


def _supported(fn, value: Tensor) -> Tensor:
    try:
        support = fn.support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        if support is not constraints.real:
            # No draw that a run without missing values would not take.
            with untouched_random_state():
                return fn.sample().to(value)
    except NotImplementedError:  # A distribution of the user's that does not tell.
        pass
    return torch.zeros_like(value)


def is_masked(fn) -> bool:
    """Whether a distribution hides elements by itself."""
    while hasattr(fn, "base_dist") and not isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    return isinstance(fn, MaskedDistribution)


def with_values(trace: Trace, values: dict[str, Tensor]) -> Trace:
    """A trace to replay against, with the values of some sites replaced."""
    new = trace.copy()
    for name, value in values.items():
        new.nodes[name] = {**trace.nodes[name], "value": value}
    return new


def without_points(trace: Trace) -> Trace:
    """A guide's trace to replay against with other draws: points are made of those anew."""
    new = trace.copy()
    for name, site in random_sites(trace).items():
        if not is_drawn(site):
            new.remove_node(name)
    return new


def max_plate_nesting(traces: Iterable[Trace]) -> int:
    """Number of batch dimensions that the plates of the traces use."""
    return max(
        (
            -frame.dim
            for trace in traces
            for site in trace.nodes.values()
            if site["type"] == "sample"
            for frame in plates_of(site).values()
            if frame.vectorized
        ),
        default=0,
    )
