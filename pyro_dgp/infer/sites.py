"""Sites of traces: which are random, and their plates, densities and masks."""

from collections.abc import Iterable
from typing import Any, TypedDict, TypeGuard

import torch
from pyro.distributions import Delta, Independent, MaskedDistribution, TorchDistribution, Unit
from pyro.poutine import Trace
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.runtime import Message
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.infer.random_state import untouched_random_state

__all__ = [
    "SAMPLES",
    "Site",
    "delta",
    "is_drawn",
    "is_masked",
    "is_random",
    "is_reparameterised",
    "log_prob",
    "log_prob_of_draw",
    "max_plate_nesting",
    "plates_of",
    "random_sites",
    "same_mask",
    "shown_elements",
    "subsample_sites",
    "tensors_of",
    "unconstrained_parameters",
    "with_values",
    "without_points",
]

#: Name of the plate of importance samples.
SAMPLES = "_importance_samples"


class Site(TypedDict):
    """A node of a trace, or a message, of a sample site with a density.

    Pyro's ``Message`` is that of any effect, and guarantees none of these keys.
    """

    name: str
    fn: TorchDistribution
    is_observed: bool
    args: tuple
    kwargs: dict
    value: Tensor
    scale: Tensor | float
    mask: Tensor | bool | None
    cond_indep_stack: tuple[CondIndepStackFrame, ...]
    infer: dict[str, Any]


def random_sites(trace: Trace) -> dict[str, Site]:
    """The sample sites with a density: no subsampling, no ``pyro.deterministic``."""
    return {name: site for name, site in trace.nodes.items() if is_random(site)}


def subsample_sites(trace: Trace) -> dict[str, Message]:
    """The sites that hold the minibatches of plates."""
    return {name: site for name, site in trace.nodes.items() if site_is_subsample(site)}


def unconstrained_parameters(trace: Trace) -> dict[str, Tensor]:
    """The parameters of a trace with ``param_only=True`` by their names in the param store."""
    values = {name: site.get("value") for name, site in trace.nodes.items()}
    # With ``module_local_params``, those of modules without a constraint are their own value only.
    return {
        name: getattr(p, "unconstrained", lambda p=p: p)()
        for name, p in values.items()
        if p is not None
    }


def is_random(site: Message) -> TypeGuard[Site]:
    """Whether a site is a sample site with a density."""
    infer = site.get("infer") or {}
    return (
        site.get("type") == "sample"
        and not site_is_subsample(site)
        and not infer.get("_deterministic", False)
    )


def is_drawn(site: Site) -> bool:
    """Whether a random site of the guide is a draw, and not a Delta or a factor."""
    return not site["is_observed"] and delta(site["fn"]) is None


def is_reparameterised(site: Site) -> bool:
    """Whether a draw of the guide, or the draws that a factor depends on, have gradients."""
    return site["fn"].has_rsample or (site["is_observed"] and not isinstance(site["fn"], Unit))


def tensors_of(fn: Distribution) -> list[Tensor]:
    """The tensors that are attributes of a distribution."""
    while (base := _base(fn)) is not None:
        fn = base
    return [x for x in vars(fn).values() if isinstance(x, Tensor)]


def delta(fn: Distribution) -> Delta | None:
    """The Delta that a distribution is, also inside an ``Independent`` or masked; else None."""
    while not isinstance(fn, Delta) and (base := _base(fn)) is not None:
        fn = base
    return fn if isinstance(fn, Delta) else None


def _base(fn: Distribution) -> Distribution | None:
    """The distribution that another one wraps or transforms; None where there is none."""
    return getattr(fn, "base_dist", None)


def plates_of(site: Site) -> dict[str, CondIndepStackFrame]:
    """The frames of the plates of a site by name, without that of importance samples."""
    return {frame.name: frame for frame in site["cond_indep_stack"] if frame.name != SAMPLES}


def log_prob(site: Site, value: Tensor) -> Tensor:
    """The log density of a site, neither scaled nor masked, with a finite gradient where masked.

    Masked elements of an observation, which may be NaN, are replaced by a value of the support:
    their density is multiplied by 0, but in the backward pass 0 * NaN would be NaN.
    """
    fn = site["fn"]
    if site["mask"] is False:
        return torch.zeros(fn.batch_shape, device=value.device)
    shown = shown_elements(site) if site["is_observed"] else None
    if shown is not None:
        value = value.where(shown, _supported(fn, value))
    return fn.log_prob(value, *site["args"], **site["kwargs"])


def log_prob_of_draw(site: Site) -> Tensor:
    """The log density of a draw under the distribution that it comes from, without any mask."""
    return _unmasked(site["fn"]).log_prob(site["value"], *site["args"], **site["kwargs"])


def _unmasked(fn: TorchDistribution) -> TorchDistribution:
    if isinstance(fn, MaskedDistribution):
        return _unmasked(fn.base_dist)
    if isinstance(fn, Independent) and is_masked(fn):
        return _unmasked(fn.base_dist).to_event(fn.reinterpreted_batch_ndims)
    return fn


def shown_elements(site: Site) -> Tensor | None:
    """Which elements of a site's value count in its density; None where all do."""
    fn, device = site["fn"], site["value"].device
    return _and(_batch_mask(site["mask"], fn.event_dim, device), _element_mask(fn, device))


def same_mask(one: Site, other: Site) -> bool:
    """Whether two sites are masked alike."""
    a, b = shown_elements(one), shown_elements(other)
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.equal(a, b)


def _element_mask(fn: Distribution, device: torch.device) -> Tensor | None:
    if isinstance(fn, Independent):
        return _element_mask(fn.base_dist, device)
    if isinstance(fn, MaskedDistribution):
        own = _batch_mask(fn._mask, fn.event_dim, device)
        return _and(own, _element_mask(fn.base_dist, device))
    return None


def _batch_mask(mask: Tensor | bool | None, event_dim: int, device: torch.device) -> Tensor | None:
    if mask is False:
        return torch.tensor(False, device=device)
    return mask.reshape(mask.shape + (1,) * event_dim) if isinstance(mask, Tensor) else None


def _and(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a & b if a is not None and b is not None else a if b is None else b


def _supported(fn: Distribution, value: Tensor) -> Tensor:
    try:
        support = fn.support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        if support is not constraints.real:
            # The random state must not depend on whether values are missing.
            with untouched_random_state():
                return fn.sample().to(value)
    except NotImplementedError:  # A distribution without a support.
        pass
    return torch.zeros_like(value)


def is_masked(fn: Distribution) -> bool:
    """Whether a distribution masks elements by itself."""
    while not isinstance(fn, MaskedDistribution) and (base := _base(fn)) is not None:
        fn = base
    return isinstance(fn, MaskedDistribution)


def with_values(trace: Trace, values: dict[str, Tensor]) -> Trace:
    """A trace to replay against, with the values of some sites replaced."""
    new = trace.copy()
    for name, value in values.items():
        new.nodes[name] = {**trace.nodes[name], "value": value}
    return new


def without_points(trace: Trace) -> Trace:
    """A trace of the guide to replay with other draws; its Deltas are computed again from these."""
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
            if site.get("type") == "sample"
            for frame in site.get("cond_indep_stack", ())
            if frame.dim is not None and frame.name != SAMPLES
        ),
        default=0,
    )
