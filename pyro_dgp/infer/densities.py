r"""Densities of a model and guide: log w of the local sites, and the term of all other sites.

For one datum n and draw k

.. math:: \log w_{nk} = \sum_{local} \log p - \sum_{local} \log q

without the subsampling scale N/B of the plates, which would be wrong inside the logarithm of a
mean. A sequential plate (``for n in pyro.plate(...)``) is the same structure with one site per
datum.
"""

import math

import torch
from pyro.distributions.util import scale_and_mask, sum_rightmost
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_dgp.infer.sites import Site, delta, is_masked, log_prob, random_sites
from pyro_dgp.infer.structure.roles import Roles

__all__ = [
    "closed_form_kl",
    "global_elbo",
    "local_log_prob",
    "sum_of_draw",
    "sum_within_weights",
    "tempering",
]


def local_log_prob(site: Site, value: Tensor, roles: Roles) -> Tensor:
    """A local site's log density in its weights, without the weight plates' N/B.

    ``poutine.scale`` and ``poutine.mask`` apply as usual.

    :returns: [samples, ..., datum]; dimensions inside a weight are summed to size 1.
    """
    result = _scaled(log_prob(site, value), tempering(site, roles), site["mask"])
    return sum_within_weights(result, site, roles)


def sum_within_weights(x: Tensor, site: Site, roles: Roles) -> Tensor:
    """Sums over the dimensions inside a weight, those of other plates or of none; they are kept."""
    kept = roles.weight_dims(site)
    inside = [-d for d in range(1, min(roles.nesting, x.dim()) + 1) if -d not in kept]
    return x.sum(inside, keepdim=True) if inside else x


def sum_of_draw(x: Tensor, site: Site, roles: Roles) -> Tensor:
    """Sums a tensor of the shape of a draw over the event and over dimensions inside a weight."""
    summed: Tensor = sum_rightmost(x, site["fn"].event_dim)  # pyright: ignore[reportAssignmentType]
    return sum_within_weights(summed, site, roles)


def _scaled(x: Tensor, scale: Tensor | float, mask: Tensor | bool | None) -> Tensor:
    """Scaled and masked; Pyro's annotation lacks scales that are tensors."""
    return scale_and_mask(x, scale, mask)  # pyright: ignore[reportArgumentType]


def tempering(site: Site, roles: Roles) -> Tensor | float:
    """The scale of a local site beyond that of its weight plates."""
    ratio = site["scale"] / roles.scale(site)
    return 1.0 if isinstance(ratio, float) and math.isclose(ratio, 1.0) else ratio


def global_elbo(
    model_trace: Trace, guide_trace: Trace, roles: Roles, num_samples: int = 1
) -> Tensor:
    """log p - log q of the sites that are not local, their KL in closed form where Pyro has one.

    The closed form is used where model and guide factorise alike, which is concluded from the same
    order of their sites, and have the same scale and mask; not for a Delta with a density, which
    Pyro's formula ignores. Elsewhere the term is evaluated at the draw.

    :param int num_samples: Number of samples in the dimension left of the plates, over which the
        mean is taken.
    """

    def total(x: Tensor) -> Tensor:
        return x.sum() / (num_samples if x.dim() > roles.nesting else 1)

    def log_prob_sum(site: Site) -> Tensor:
        log_density = log_prob(site, site["value"])
        return total(_scaled(log_density, site["scale"], site["mask"]))

    model_sites, guide_sites = (
        {name: site for name, site in random_sites(trace).items() if not roles.is_local(site)}
        for trace in (model_trace, guide_trace)
    )
    latent = [name for name, site in model_sites.items() if not site["is_observed"]]
    same_order = latent == [name for name in guide_sites if name in model_sites]
    found = torch.zeros(())
    for name, site in model_sites.items():
        kl = None
        if not site["is_observed"] and same_order:
            kl = closed_form_kl(guide_sites[name], site)
        if kl is not None:
            found = found - total(kl)
            continue
        found = found + log_prob_sum(site)
        if not site["is_observed"]:
            found = found - log_prob_sum(guide_sites[name])
    for name, site in guide_sites.items():
        if name not in model_sites:
            found = found - log_prob_sum(site)
    return found


def closed_form_kl(guide_site: Site, model_site: Site) -> Tensor | None:
    """KL(q || p) in the batch shape of the sites, scaled and masked; None where Pyro has none."""
    fn = guide_site["fn"]
    point = delta(fn)
    if point is not None and bool(torch.as_tensor(point.log_density != 0).any()):
        return None
    if is_masked(fn) or is_masked(model_site["fn"]):
        return None
    one_scale = bool(torch.as_tensor(guide_site["scale"] == model_site["scale"]).all())
    if not one_scale or guide_site["mask"] is not model_site["mask"]:
        return None
    try:
        kl = kl_divergence(fn, model_site["fn"])
    except NotImplementedError:
        return None
    if not isinstance(kl, Tensor):  # a number for two Deltas
        kl = torch.full(fn.batch_shape, float(kl))
    return _scaled(kl, guide_site["scale"], guide_site["mask"])
