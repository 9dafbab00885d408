r"""Gradients of the parameters of a prior through draws, in place of the prior's score.

The ordinary gradient has the score :math:`\tilde w\, \partial_\theta \log p_\theta(z)`. Let
z = T(noise; theta) be the sampler of the prior, c = dL/dlog w and :math:`c' = \partial c / \partial
\log w`. The score term has the same expectation as

.. math::
    \Big( c\, \frac{\partial}{\partial z} \log \frac{q(z)}{p(z)}
        + c'\, \frac{\partial \log w}{\partial z} \Big) \frac{\partial T}{\partial \theta}

under q (:math:`c = \tilde w, c' = \tilde w - \tilde w^2` for the IWAE bound). Source: Bauer and
Mnih (2021), eq. 10.
"""

from functools import singledispatch

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from pyro_dgp.infer.densities import local_log_prob, sum_of_draw, tempering
from pyro_dgp.infer.graph import nodes
from pyro_dgp.infer.samples import Samples
from pyro_dgp.infer.sites import Site, is_drawn, is_random, shown_elements, tensors_of
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["PriorPaths", "drawn_by"]


class PriorPaths(Messenger):
    """A handler of the model that treats each local draw as a draw of its prior, too.

    The draw z is replaced by z + T - T', where T and T' both equal z as a function of the prior's
    parameters, and the gradient of T' is multiplied by the weight c - c' like that of z on its way
    to the guide. The density of the prior is kept as a function of the draws only. So T receives c'
    times d log w / dz, and the derivative of log q(z) / p(z) is the difference of the terms of z
    and T'.

    :param Samples samples: The samples drawn by the guide.
    :param dict copies: The draws as the densities are given them, by site.
    :param dict slopes: Derivatives of log q by its draws, by site, with parameters and other draws
        held fixed.
    """

    def __init__(
        self, samples: Samples, copies: dict[str, Tensor], slopes: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.samples, self.copies, self.slopes = samples, copies, slopes
        #: Terms that replace log p of local sites, by site.
        self.terms: dict[str, Tensor] = {}
        self._doors = {copy.grad_fn for copy in copies.values()}
        self._guides = _drawn_by_their_density(samples)

    def _pyro_post_sample(self, msg: Message) -> None:
        if not is_random(msg):
            return
        name, roles = msg["name"], self.samples.roles
        if name not in self._guides or not _is_plain(msg, roles):
            return
        z, copy = self.samples.sites[name]["value"].detach(), self.copies[name]
        try:
            path = drawn_by(msg["fn"], z)
        except (KeyError, NotImplementedError) as error:
            raise NotImplementedError(
                f"The prior of the local site '{name}' has parameters, and how it draws is not "
                f"known ({error}); use DRegIWELBO."
            ) from error
        # T must be a function of parameters, not of other draws.
        if not path.requires_grad or not self._doors.isdisjoint(nodes([path], self._doors)):
            return
        if bool(z.isfinite().all()) and not bool(path.isfinite().all()):
            raise FloatingPointError(
                f"The prior of the local site '{name}' would not draw what the guide has drawn, "
                "as far as the dtype tells. Use float64, or DRegIWELBO."
            )
        weighed = self.samples.copy(name, 1.0, value=path)
        msg["value"] = copy + (path - weighed)
        self._doors.add(msg["value"].grad_fn)

        at = z.requires_grad_()
        log_p = local_log_prob(msg, at, roles)
        (slope,) = torch.autograd.grad(log_p.sum(), at, retain_graph=True)
        tangent = slope * copy - (slope - self.slopes.get(name, 0.0)) * weighed
        self.terms[name] = log_p.detach() + sum_of_draw(tangent - tangent.detach(), msg, roles)


def _drawn_by_their_density(samples: Samples) -> set[str]:
    """Local draws whose log q is their log density, and on which no Delta of the guide depends."""
    sites, roles, gates = samples.sites, samples.roles, samples.gates
    points = {name: site for name, site in sites.items() if not is_drawn(site)}
    if any(s["is_observed"] for s in points.values()):
        return set()
    if not all(_is_plain(site, roles) for site in sites.values()):
        return set()
    doors = {value.grad_fn: name for name, value in gates.values.items()}
    log_q = [local_log_prob(site, site["value"], roles) for site in points.values()]
    read = nodes([*(site["value"] for site in points.values()), *log_q], doors)
    return gates.values.keys() - {doors.get(node) for node in read}


def _is_plain(site: Site, roles: Roles) -> bool:
    """Whether a site's term is its log density, neither masked nor tempered."""
    scale = torch.as_tensor(tempering(site, roles))
    return bool((scale == 1).all()) and shown_elements(site) is None


@singledispatch
def drawn_by(fn: torch.distributions.Distribution, value: Tensor) -> Tensor:
    """A value as a function of the parameters of a distribution, by the distribution's sampler.

    :param fn: The distribution.
    :param torch.Tensor value: A value in the shape of a sample; its own graph is ignored.
    :returns: A tensor equal to ``value`` up to rounding. Its derivatives by the parameters are
        those of a sample, with the noise that would have produced this value held fixed.
    :raises NotImplementedError: If the sampler of the distribution is not known.
    """
    if any(x.requires_grad for x in tensors_of(fn)):
        raise NotImplementedError(type(fn).__name__)
    return value.detach()


@drawn_by.register(torch.distributions.Independent)
@drawn_by.register(ExpandedDistribution)
def _(fn, value):
    return drawn_by(fn.base_dist, value)


@drawn_by.register(torch.distributions.Normal)
@drawn_by.register(torch.distributions.Laplace)
@drawn_by.register(torch.distributions.Cauchy)
@drawn_by.register(dist.Logistic)
def _(fn, value):
    noise = (value - fn.loc) / fn.scale
    return fn.loc + fn.scale * noise.detach()


@drawn_by.register(torch.distributions.StudentT)
def _(fn, value):
    if fn.df.requires_grad:
        raise NotImplementedError("StudentT with degrees of freedom to be learned")
    noise = (value - fn.loc) / fn.scale
    return fn.loc + fn.scale * noise.detach()


@drawn_by.register(torch.distributions.Exponential)
def _(fn, value):
    return (value * fn.rate).detach() / fn.rate


@drawn_by.register(torch.distributions.MultivariateNormal)
@drawn_by.register(torch.distributions.LowRankMultivariateNormal)
def _(fn, value):
    difference = (value - fn.loc).unsqueeze(-1)
    noise = torch.linalg.solve_triangular(fn.scale_tril, difference, upper=False)
    return fn.loc + (fn.scale_tril @ noise.detach()).squeeze(-1)


@drawn_by.register(torch.distributions.TransformedDistribution)
def _(fn, value):
    base = value.detach()
    for transform in reversed(fn.transforms):
        base = transform.inv(base)
    result = drawn_by(fn.base_dist, base)
    for transform in fn.transforms:
        result = transform(result)
    return result
