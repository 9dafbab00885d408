r"""Importance samples by effect handlers: which sites are local, K draws of those, their weights.

A *local* site stands in the plates that carry the weights and is drawn K times; a *global* site
stands outside them and is drawn once. For one datum n and draw k

.. math:: \log w_{nk} = \sum_{local} \log p - \sum_{local} \log q

where the plates' subsampling scale N/B is taken out: inside the logarithm of a mean it is wrong.
A sequential plate (``for n in pyro.plate(...)``) is the same structure with one site per datum.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from pyro.distributions import Delta, Independent, MaskedDistribution
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from pyro.poutine.plate_messenger import PlateMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import constraints, kl_divergence

__all__ = [
    "ParticlePlate",
    "WeightPlates",
    "delta",
    "global_elbo",
    "is_collision",
    "is_random",
    "local_log_prob",
    "log_prob",
    "max_plate_nesting",
    "random_sites",
    "same_mask",
    "shown_elements",
    "sum_within_weights",
    "tempering",
    "with_values",
]

_PARTICLES = "_importance_samples"


def random_sites(trace: Trace) -> dict[str, dict]:
    """The sample sites with a density: no subsampling, no ``pyro.deterministic``."""
    return {name: site for name, site in trace.nodes.items() if is_random(site)}


def is_random(site: dict) -> bool:
    return (
        site["type"] == "sample"
        and not site_is_subsample(site)
        and not site["infer"].get("_deterministic", False)
    )


def delta(fn) -> Delta | None:
    """The Delta that a distribution is, be it in an ``Independent`` or masked."""
    while not isinstance(fn, Delta) and hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn if isinstance(fn, Delta) else None


def _plates(site: dict) -> dict:
    return {frame.name: frame for frame in site["cond_indep_stack"] if frame.name != _PARTICLES}


@dataclass(frozen=True)
class WeightPlates:
    """The plates that carry the importance weights of a model and guide.

    :param frozenset names: Plates common to every observed site and to every latent site that
        shares a plate with one.
    :param bool joint: No site stands in a plate: all latent sites are local, with one weight.
    """

    names: frozenset[str]
    joint: bool

    @classmethod
    def of(cls, model_trace: Trace, guide_trace: Trace) -> "WeightPlates":
        """Finds the weight plates from traces and refuses structures that have none.

        :raises ValueError: If no site is observed or a latent site is missing in the guide.
        :raises NotImplementedError: If the plates of observed and local sites have none in common,
            an observed site stands in the guide, a plate inside the weights subsamples, model and
            guide put a site into different plates, a site is enumerated, or a guide site is not
            reparameterised.
        """
        model_sites, guide_sites = random_sites(model_trace), random_sites(guide_trace)
        observed = {n: s for n, s in model_sites.items() if s["is_observed"]}
        latent = {n: s for n, s in model_sites.items() if not s["is_observed"]}
        if not observed:
            raise ValueError(
                "The model observes nothing: pass the data, so that some site has `obs`."
            )
        missing = [name for name in latent if name not in guide_sites]
        if missing:
            raise ValueError(
                f"The model's latent site '{missing[0]}' is missing in the guide: sample it there."
            )
        latent.update({n: s for n, s in guide_sites.items() if n not in model_sites})
        for name, site in {**observed, **latent, **guide_sites}.items():
            _refuse_enumeration(name, site)
        for name, site in guide_sites.items():
            if name in observed:
                raise NotImplementedError(
                    f"The model's observed site '{name}' stands in the guide too, so its density "
                    "would cancel. Hide it from the guide (poutine.block), as after "
                    "poutine.condition, or sample it in the model."
                )
            if not site["is_observed"] and not site["fn"].has_rsample:
                raise NotImplementedError(
                    f"The guide's site '{name}' ({type(site['fn']).__name__}) is not "
                    "reparameterised; use a distribution with rsample, or TraceGraph_ELBO."
                )

        plates = {name: frozenset(_plates(s)) for name, s in {**observed, **latent}.items()}
        if not any(plates.values()):
            return cls(frozenset(), joint=True)
        seen = frozenset().union(*(plates[name] for name in observed))
        beside = [name for name in latent if plates[name] & seen]
        common = frozenset.intersection(*(plates[name] for name in [*observed, *beside]))
        plated = [*beside, *(name for name in latent if plates[name])]
        if plated and not common:
            odd = next((n for n in observed if not plates[n] >= plates[plated[0]]), plated[-1])
            raise NotImplementedError(
                f"Site '{odd}' and the local latent site '{plated[0]}' have no plate in common "
                f"with the other sites ({sorted(plates[odd])} and {sorted(plates[plated[0]])}), so "
                "no plate can carry the importance weights. Put all observed sites into the local "
                "latents' plate, or use Trace_ELBO."
            )
        found = cls(common, joint=False)
        for name in latent.keys() & model_sites.keys():
            model_site, guide_site = model_sites[name], guide_sites[name]
            if found.is_local(model_site) != found.is_local(guide_site):
                raise NotImplementedError(
                    f"Site '{name}' stands in plate(s) {sorted(plates[name])} in the model, but in "
                    f"{sorted(_plates(guide_site))} in the guide: give the guide's plates the "
                    "names of the model's."
                )
            if found.group(model_site) != found.group(guide_site):
                raise NotImplementedError(
                    f"Site '{name}' stands in iteration {found.group(model_site)} of a sequential "
                    f"plate in the model, but in {found.group(guide_site)} in the guide: let both "
                    "go through the plate in one order."
                )
        for name, site in {**observed, **latent}.items():
            for frame in _plates(site).values():
                inside = found.is_local(site) and frame.name not in common
                if inside and frame.full_size not in (None, frame.size):
                    raise NotImplementedError(
                        f"Plate '{frame.name}' of site '{name}' subsamples inside the importance "
                        f"weights of plate(s) {sorted(common)}: a weight needs all of its data. "
                        f"Subsample {sorted(common)} instead."
                    )
        return found

    def local(self, trace: Trace) -> dict[str, dict]:
        """The random sites of a trace that belong into the weights."""
        return {name: site for name, site in random_sites(trace).items() if self.is_local(site)}

    def is_local(self, site: dict) -> bool:
        """Whether a site (or the message of one) belongs into the weights."""
        if self.joint:
            return True
        return bool(self.names) and self.names <= _plates(site).keys()

    def group(self, site: dict) -> tuple:
        """Which iterations of sequential weight plates a local site stands in.

        Sites of one group have a tensor of weights in common: all of them, without such plates.
        """
        frames = _plates(site)
        return tuple(
            # The counter goes on where a plate is gone through again.
            (name, (frames[name].counter - 1) % frames[name].size)
            for name in sorted(self.names & frames.keys())
            if not frames[name].vectorized
        )

    def scale(self, site: dict) -> float:
        """N/B of a local site: the product of full_size / size over the weight plates."""
        frames = [frame for name, frame in _plates(site).items() if name in self.names]
        return math.prod(f.full_size / f.size for f in frames if f.full_size is not None)


def _refuse_enumeration(name: str, site: dict) -> None:
    if site["infer"].get("enumerate"):
        raise NotImplementedError(
            f"Site '{name}' is enumerated, which importance-weighted ELBOs do not support; remove "
            "config_enumerate and marginalise the site by hand, or use TraceEnum_ELBO."
        )


class ParticlePlate(PlateMessenger):
    """A plate of importance samples that only local sites stand in, so that globals have one draw.

    :param WeightPlates weight_plates: Says which sites are local.
    :param int size: Number of draws.
    :param int max_plate_nesting: Dimensions that the model's own plates use.
    """

    def __init__(self, weight_plates: WeightPlates, size: int, max_plate_nesting: int) -> None:
        super().__init__(_PARTICLES, size, dim=-1 - max_plate_nesting)
        self.weight_plates = weight_plates

    def _process_message(self, msg):
        if is_random(msg) and self.weight_plates.is_local(msg):
            super()._process_message(msg)

    def _postprocess_message(self, msg):
        pass


def is_collision(error: ValueError) -> bool:
    """Whether a plate of the model has reached into the dimension of the samples."""
    return _PARTICLES in str(error) and "collide" in str(error)


def local_log_prob(site: dict, value: Tensor, weight_plates: WeightPlates) -> Tensor:
    """A local site's log density in its weights, without the weight plates' N/B.

    What ``poutine.scale`` adds stays, as does ``poutine.mask``.

    :returns: [particles, ..., datum], with every plate inside a weight summed to size 1.
    """
    result = scale_and_mask(log_prob(site, value), tempering(site, weight_plates), site["mask"])
    return sum_within_weights(result, site, weight_plates)


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
            return fn.sample().to(value)
    except NotImplementedError:  # A distribution of the user's that does not tell.
        pass
    return torch.zeros_like(value)


def sum_within_weights(x: Tensor, site: dict, weight_plates: WeightPlates) -> Tensor:
    """Sums over a site's plates that stand inside a weight, keeping their dimensions."""
    inside = [
        frame.dim
        for name, frame in _plates(site).items()
        if frame.vectorized and name not in weight_plates.names
    ]
    return x.sum(inside, keepdim=True) if inside else x


def tempering(site: dict, weight_plates: WeightPlates) -> Tensor | float:
    """The part of a local site's scale that its weight plates do not account for."""
    ratio = site["scale"] / weight_plates.scale(site)
    return 1.0 if isinstance(ratio, float) and math.isclose(ratio, 1.0) else ratio


def global_elbo(model_trace: Trace, guide_trace: Trace, weight_plates: WeightPlates) -> Tensor:
    """log p - log q of the global sites, their KL in closed form where Pyro has one.

    The closed form needs model and guide to factorise alike, of which one order of the sites is
    taken as the sign, and to have one scale and mask; and it is not used for a Delta that carries a
    density, which Pyro's formula ignores. Elsewhere the draw stands for its expectation.
    """
    model_sites, guide_sites = (
        {
            name: site
            for name, site in random_sites(trace).items()
            if not weight_plates.is_local(site)
        }
        for trace in (model_trace, guide_trace)
    )
    latent = [name for name, site in model_sites.items() if not site["is_observed"]]
    same_order = latent == [name for name in guide_sites if name in model_sites]
    total: Tensor | float = 0.0
    for name, site in model_sites.items():
        kl = None
        if not site["is_observed"] and same_order:
            kl = _closed_form_kl(guide_sites[name], site)
        if kl is not None:
            total = total - kl
            continue
        total = total + _log_prob_sum(site)
        if not site["is_observed"]:
            total = total - _log_prob_sum(guide_sites[name])
    for name, site in guide_sites.items():
        if name not in model_sites:
            total = total - _log_prob_sum(site)
    return torch.as_tensor(total)


def _closed_form_kl(guide_site: dict, model_site: dict) -> Tensor | None:
    fn = guide_site["fn"]
    point = delta(fn)
    if point is not None and bool((point.log_density != 0).any()):
        return None
    if _is_masked(fn) or _is_masked(model_site["fn"]):
        return None
    one_scale = bool(torch.as_tensor(guide_site["scale"] == model_site["scale"]).all())
    if not one_scale or guide_site["mask"] is not model_site["mask"]:
        return None
    try:
        kl = kl_divergence(fn, model_site["fn"])
    except NotImplementedError:
        return None
    kl = scale_and_mask(kl, guide_site["scale"], guide_site["mask"])
    return kl.sum() if isinstance(kl, Tensor) else kl * math.prod(fn.batch_shape)


def _is_masked(fn) -> bool:
    while hasattr(fn, "base_dist") and not isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    return isinstance(fn, MaskedDistribution)


def _log_prob_sum(site: dict) -> Tensor:
    return scale_and_mask(log_prob(site, site["value"]), site["scale"], site["mask"]).sum()


def with_values(trace: Trace, values: dict[str, Tensor]) -> Trace:
    """A trace to replay against, with the values of some sites replaced."""
    new = trace.copy()
    for name, value in values.items():
        new.nodes[name] = {**trace.nodes[name], "value": value}
    return new


def max_plate_nesting(traces: Iterable[Trace]) -> int:
    """Number of batch dimensions that the plates of the traces use."""
    return max(
        (
            -frame.dim
            for trace in traces
            for site in trace.nodes.values()
            if site["type"] == "sample"
            for frame in site["cond_indep_stack"]
            if frame.vectorized
        ),
        default=0,
    )
