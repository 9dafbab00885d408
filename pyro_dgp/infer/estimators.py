r"""Gradient estimators of a bound: what densities are given for the draws, with which gradient.

An estimator is called between the run of the guide and that of the model. Its result determines
log w and a scalar, of which one backward pass gives the gradient estimate of all parameters; the
value of the bound is the same for all estimators.
"""

from functools import reduce
from operator import add
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_dgp.infer.densities import (
    local_log_prob,
    sum_of_draw,
    sum_within_weights,
    tempering,
)
from pyro_dgp.infer.paths import Gates, reaches
from pyro_dgp.infer.priors import PriorPaths
from pyro_dgp.infer.samples import Samples, Terms
from pyro_dgp.infer.sites import Site, delta, is_reparameterised, log_prob_of_draw, same_mask
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["VIMCO", "DReG", "Estimator", "GDReG", "Reparameterised", "Seen"]


class Seen(NamedTuple):
    """How log w depends on the local draws.

    :param dict values: Values that replace the draws in the model, by site.
    :param Terms log_q: The terms of log q.
    :param Terms tangents: Terms of value 0, added to log p for their gradient.
    :param Terms scored: The terms of log q whose draws have no gradient.
    :param PriorPaths priors: A handler of the model, if its priors have another gradient; or None.
    """

    values: dict[str, Tensor]
    log_q: Terms
    tangents: Terms
    scored: Terms = []
    priors: PriorPaths | None = None


class Estimator(Protocol):
    """A gradient estimator of the bound."""

    def __call__(self, samples: Samples) -> Seen:
        """
        :param Samples samples: The samples drawn by the guide, before the model is run.
        """
        ...


class Reparameterised:
    r"""The ordinary reparameterisation gradient (REG), :math:`\sum_k \tilde w_k\, d\log w_k`.

    Source: Burda et al. (2015).

    :param bool piwae: Whether the guide has another bound than the model.
    """

    def __init__(self, piwae: bool = False) -> None:
        self.piwae = piwae

    def __call__(self, samples: Samples) -> Seen:
        roles, sites = samples.roles, samples.sites
        log_q = [(roles.group(s), local_log_prob(s, s["value"], roles)) for s in sites.values()]
        copies = {}
        if self.piwae and torch.is_grad_enabled():
            reparameterised = (name for name, s in sites.items() if s["value"].requires_grad)
            copies = {name: samples.copy(name, doubly=0.0) for name in reparameterised}
        return Seen(copies, log_q, [])


class VIMCO:
    r"""Scores of local draws that have no gradient, with a baseline from the other samples.

    .. math::
        \sum_k \big(L - L_{-k}\big)\, \nabla \log q(z_k) + \sum_k \tilde w_k\, d \log w_k,

    where :math:`L_{-k}` is the bound with the mean of the other log weights in place of
    :math:`\log w_k`, and the first sum is over the draws that are not reparameterised, with
    the q that they were drawn from: scales and masks change the weights, but not the draws.

    Source: Mnih and Rezende (2016).
    """

    def __call__(self, samples: Samples) -> Seen:
        roles = samples.roles
        scored = [
            (roles.group(s), sum_within_weights(log_prob_of_draw(s), s, roles))
            for s in samples.sites.values()
            if not is_reparameterised(s)
        ]
        return Reparameterised()(samples)._replace(scored=scored)


class DReG:
    r"""The doubly reparameterised gradient.

    For parameters through which local draws z are reparameterised, it is

    .. math::
        \sum_k \tilde w_k^2\, \frac{\partial \log w_k}{\partial z_k} \frac{d z_k}{d\phi},

    and :math:`\sum_k \tilde w_k\, \partial \log w_k` for all others. The model is given copies of z
    whose gradient is multiplied on its way to the sampler. log q is represented by its value and by
    a tangent in z, whose slope is taken with the guide's parameters, and the global latents that it
    depends on, held fixed.

    Source: Tucker et al. (2019).
    """

    #: Whether the parameters of priors have such a gradient, too.
    priors = False

    def __call__(self, samples: Samples) -> Seen:
        if not torch.is_grad_enabled():
            return Reparameterised()(samples)
        roles, sites, gates = samples.roles, samples.sites, samples.gates
        hidden_is_unused = _check_scales_and_masks(samples)
        drawn = {name: sites[name]["value"].detach().requires_grad_() for name in gates.values}
        # Terms of log q with phi held fixed, which are functions of the draws alone; and the
        # others.
        held, free = {}, {}
        for name, site in sites.items():
            if delta(site["fn"]) is not None or site["is_observed"]:
                log_q = local_log_prob(site, site["value"], roles)
                gated, other = reaches((site["value"], log_q), gates)
                if gated and other:
                    raise NotImplementedError(_MIXED.format(name=name))
                (held if gated else free)[name] = log_q
            elif name in drawn:
                held[name] = _log_prob_elsewhere(name, site, drawn[name], roles)
        slopes = _slopes(held, drawn, gates)

        copies = {
            name: samples.copy(
                name, tempering(site, roles) if name in held else 0.0, hidden_is_unused
            )
            for name, site in sites.items()
            if site["value"].requires_grad and not site["is_observed"]
        }
        log_q, tangents = [], []
        for name, site in sites.items():
            if name in free:
                log_q.append((roles.group(site), free[name]))
                continue
            with torch.no_grad():
                # At the draw itself, whose density a flow has cached.
                value = local_log_prob(site, site["value"], roles).detach()
            log_q.append((roles.group(site), value))
        for name, slope in slopes.items():
            # log q as a function of z alone, to first order: its value and its slope in z.
            site = sites[name]
            tangent = slope * (copies[name] - site["value"].detach())
            tangents.append((roles.group(site), -sum_of_draw(tangent, site, roles)))
        priors = PriorPaths(samples, copies, slopes) if self.priors else None
        return Seen(copies, log_q, tangents, priors=priors)


class GDReG(DReG):
    """The generalised gradient, which treats the parameters of priors likewise.

    Source: Bauer and Mnih (2021); see :mod:`pyro_dgp.infer.priors`.
    """

    priors = True


_MIXED = (
    "The guide's local site '{name}' (a Delta or a factor) depends on a local draw and on "
    "parameters or global draws at once, for which no doubly reparameterised gradient is known; "
    "sample it from a TransformedDistribution, or use PartiallyCollapsedIWELBO."
)


def _log_prob_elsewhere(name: str, site: Site, z: Tensor, roles: Roles) -> Tensor:
    """log q at another tensor than the one drawn, whose density some flows have cached."""
    try:
        return local_log_prob(site, z, roles)
    except (KeyError, NotImplementedError) as error:
        raise NotImplementedError(
            f"The guide's local site '{name}' ({type(site['fn']).__name__}) knows its density only "
            "where it has just been drawn, as a flow without an inverse does; use a flow that has "
            "one, or PartiallyCollapsedIWELBO."
        ) from error


def _slopes(held: dict[str, Tensor], drawn: dict[str, Tensor], gates: Gates) -> dict[str, Tensor]:
    """d log q / d z by site, with the guide's parameters and all other draws held fixed."""
    if not drawn:
        return {}
    total = reduce(add, (log_q.sum() for log_q in held.values()))
    if not total.requires_grad:
        return {}
    own = gates.partials(total, list(drawn.values()))
    through = gates.partials(total, [gates.values[name] for name in drawn])
    slopes = {}
    for name, *parts in zip(drawn, own, through, strict=True):
        there = [part for part in parts if part is not None]
        if not there:
            continue
        slope = slopes[name] = reduce(add, there)
        if not bool(slope.isfinite().all()) and bool(drawn[name].isfinite().all()):
            raise ValueError(
                f"The derivative of log q by the guide's local site '{name}' is not finite: a "
                "draw lies on the edge of the support, as far as the dtype tells (a saturated "
                "transform, perhaps). Use float64, or PartiallyCollapsedIWELBO."
            )
    return slopes


def _check_scales_and_masks(samples: Samples) -> bool:
    """Whether local draws that depend on each other are masked differently.

    The gradient that reaches a draw through others that depend on it has the weight of these.

    :raises NotImplementedError: If they are scaled differently, or a scale is learned.
    """
    roles, sites = samples.roles, samples.sites
    scales = {name: tempering(site, roles) for name, site in sites.items()}
    for name, scale in scales.items():
        if isinstance(scale, Tensor) and scale.requires_grad:
            raise NotImplementedError(
                f"The guide's local site '{name}' is scaled by a tensor with a gradient, for which "
                "no doubly reparameterised one is known; detach the scale, or use "
                "PartiallyCollapsedIWELBO."
            )
    if not sites:
        return False
    first, first_site = next(iter(sites.items()))
    one_scale = all(bool(torch.as_tensor(s == scales[first]).all()) for s in scales.values())
    one_mask = all(same_mask(site, first_site) for site in sites.values())
    if one_scale and one_mask:
        return False
    values = (site["value"] for site in sites.values())
    if not reaches(values, samples.gates)[0]:
        return False
    if not one_scale:
        raise NotImplementedError(
            f"The guide's local sites {sorted(sites)} depend on each other but are scaled "
            "differently by poutine.scale, for which no doubly reparameterised gradient is known; "
            "scale them alike, or use PartiallyCollapsedIWELBO."
        )
    return True
