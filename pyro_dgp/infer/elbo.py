r"""Importance-weighted ELBOs for any Pyro model and guide.

With one weight per datum n and draw k (:mod:`pyro_dgp.infer.particles`),

.. math::
    L_K = \frac NB \sum_n \log \frac1K \sum_{k=1}^K w_{nk} \;-\; \mathrm{KL}(global\ sites).

The two classes estimate the same bound and differ in its gradient.
"""

import inspect
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyro.poutine as poutine
import torch
from pyro.distributions import Delta
from pyro.distributions.util import sum_rightmost
from pyro.infer import ELBO
from pyro.infer.util import is_validation_enabled, torch_backward
from pyro.poutine import Trace
from pyro.poutine.util import site_is_subsample
from pyro.util import check_model_guide_match, check_site_shape, warn_if_nan
from torch import Tensor

from pyro_dgp._checks import check_integer
from pyro_dgp.infer.particles import (
    ParticlePlate,
    WeightPlates,
    global_elbo,
    local_log_prob,
    max_plate_nesting,
    random_sites,
    refuse_joint_guide,
    sum_within_weights,
    tempering,
    with_values,
)

__all__ = ["DRegIWELBO", "PartiallyCollapsedIWELBO"]


@dataclass(frozen=True)
class _Structure:
    """What a run of a model and guide tells about their sites."""

    model: Callable[[], Callable]
    guide: Callable[[], Callable]
    weight_plates: WeightPlates
    max_plate_nesting: int


def _weak(function: Callable) -> Callable[[], Callable | None]:
    """A reference that does not keep a model alive."""
    if inspect.ismethod(function):
        return weakref.WeakMethod(function)
    return weakref.ref(function)


class _Draw:
    """A run of the guide, in which every local site has all its importance samples or one.

    :param guide: The guide, inside the particle plate if that is used.
    :param WeightPlates weight_plates: Tells local sites from global ones.
    """

    #: Normalised importance weights of the draws, [particles, ..., datum] or [..., datum].
    weights: Tensor

    def __init__(self, guide: Callable, weight_plates: WeightPlates, args, kwargs) -> None:
        self.weight_plates = weight_plates
        self.guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        self.sites = weight_plates.local(self.guide_trace)
        self._rerun = partial(guide, *args, **kwargs)

    def rerun(self, values: dict[str, Tensor]) -> dict[str, dict]:
        """The guide's local sites when it is run again with some of its draws replaced."""
        replay = poutine.replay(self._rerun, trace=with_values(self.guide_trace, values))
        with poutine.block():
            return self.weight_plates.local(poutine.trace(replay).get_trace())

    def shared_with(self, model_trace: Trace) -> Trace:
        """What further draws have in common with this one: global sites and subsamples."""
        shared = self.guide_trace.copy()
        for name in self.sites:
            shared.remove_node(name)
        for name, site in model_trace.nodes.items():
            if site["type"] == "sample" and site_is_subsample(site):
                shared.nodes[name] = site
        return shared


class PartiallyCollapsedIWELBO(ELBO):
    r"""Importance-weighted ELBO with the ordinary reparameterisation gradient (REG).

    Latent sites in the data plate (or, without any plate, all of them) are drawn K times and enter
    the importance weights; those outside are drawn once and enter through their KL, in closed form
    where Pyro has one. Every datum has a weight of its own, and a minibatch's N/B stands outside
    the logarithm, so the bound under subsampling has the full data's bound as its expectation. What
    is "partially collapsed" is up to the model: a site whose ``log_prob`` integrates something
    out, as :class:`~pyro_dgp.gp.GaussianLikelihood` does, is used as it is.

    The signal-to-noise ratio of the guide's gradient falls like :math:`1/\sqrt K`;
    :class:`DRegIWELBO` has the same value, and a gradient without that fault.

    Source: Burda et al. (2015); Rudner et al. (2021), eq. 1.

    :param int K: Importance samples per datum.
    :param int num_particles: M, independent estimates of the bound to average. Global sites share
        one draw over all M K samples.
    :param max_plate_nesting: Dimensions to leave to the model's plates; found by a run of the model
        and guide unless given. Give it where plates nest more deeply in some calls than in others.
    :param bool vectorize_particles: Draw all samples in one run of model and guide, as a dimension
        to the left of their plates. False runs them M K times, for models that cannot broadcast.
    :param bool retain_graph: Keep the graph after ``loss_and_grads``.
    :raises ValueError: If K or ``num_particles`` is not a positive integer.
    """

    def __init__(
        self,
        K: int,
        num_particles: int = 1,
        max_plate_nesting: int | float = math.inf,
        vectorize_particles: bool = True,
        retain_graph: bool | None = None,
    ) -> None:
        num_particles = check_integer("num_particles", num_particles, 1)
        super().__init__(num_particles=num_particles, retain_graph=retain_graph)
        self.K = check_integer("K", K, 1)
        self.max_plate_nesting = max_plate_nesting
        self.vectorize_particles = vectorize_particles
        self._structure: _Structure | None = None

    def loss(self, model, guide, *args, **kwargs) -> float:
        """The negative bound, without gradients."""
        with torch.no_grad():
            return self._item(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model, guide, *args, **kwargs) -> float:
        """The negative bound; adds the gradient estimate to the parameters' ``.grad``."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        torch_backward(loss, self.retain_graph)
        return self._item(loss)

    def differentiable_loss(self, model, guide, *args, **kwargs) -> Tensor:
        """The negative bound as a scalar whose derivative is the gradient estimate.

        :raises ValueError: If nothing is observed or a latent site is missing in the guide.
        :raises NotImplementedError: If the structure of model and guide, or a guide distribution,
            is not supported; the message names the site and a way out.
        """
        structure = self._get_structure(model, guide, args, kwargs)
        plates, log_weights, draws, shared = structure.weight_plates, [], [], []
        for run_model, run_guide in self._runs(model, guide, structure, shared):
            draw = _Draw(run_guide, plates, args, kwargs)
            values, log_q = self._densities_at(draw)
            replay = poutine.replay(run_model, trace=with_values(draw.guide_trace, values))
            model_trace = poutine.trace(replay).get_trace(*args, **kwargs)
            if WeightPlates.of(model_trace, draw.guide_trace) != plates:
                # The sites' plates depend on the arguments: look at them afresh.
                self._structure = None
                return self.differentiable_loss(model, guide, *args, **kwargs)
            sites = plates.local(model_trace)
            log_p = (local_log_prob(s, s["value"], plates) for s in sites.values())
            log_weights.append(sum(log_p, torch.zeros(())) - log_q)
            draws.append(draw)
            if len(draws) == 1:
                shared.append(draw.shared_with(model_trace))
                global_term = global_elbo(model_trace, draw.guide_trace, plates)
                scale = plates.scale(next(iter(sites.values()))) if sites else 1.0
        # [M K, ..., datum]: in one piece, or K pieces without the leading dimension.
        log_w = log_weights[0] if self.vectorize_particles else torch.stack(log_weights)
        if not log_w.dim():
            log_w = log_w.expand(self.num_particles * self.K)
        log_w = log_w.reshape(self.num_particles, self.K, *log_w.shape[1:])
        local_term = self._log_mean_weight(log_w, draws).sum() * (scale / self.num_particles)
        return -(local_term + global_term)

    # How the bound is differentiated: what subclasses change.

    def _densities_at(self, draw: _Draw) -> tuple[dict[str, Tensor], Tensor]:
        """The values of z that densities see where they are not the drawn ones, and log q."""
        log_q = (local_log_prob(s, s["value"], draw.weight_plates) for s in draw.sites.values())
        return {}, sum(log_q, torch.zeros(()))

    def _log_mean_weight(self, log_w: Tensor, draws: list[_Draw]) -> Tensor:
        """log 1/K sum_k w_k, from [M, K, ...] to [M, ...]."""
        return log_w.logsumexp(1) - math.log(self.K)

    # Running the model and the guide.

    def _get_trace(self, model, guide, args, kwargs):
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace))
        return model_trace.get_trace(*args, **kwargs), guide_trace

    def _get_structure(self, model, guide, args, kwargs) -> _Structure:
        known = self._structure
        if known is not None and known.model() == model and known.guide() == guide:
            return known
        with poutine.block(), torch.no_grad():
            model_trace, guide_trace = self._get_trace(model, guide, args, kwargs)
        if is_validation_enabled():
            for trace in (model_trace, guide_trace):
                trace.compute_log_prob()
                for site in random_sites(trace).values():
                    check_site_shape(site, max_plate_nesting=math.inf)
        weight_plates = WeightPlates.of(model_trace, guide_trace)
        refuse_joint_guide(guide_trace, weight_plates)
        nesting = max_plate_nesting((model_trace, guide_trace))
        if self.max_plate_nesting < nesting:
            raise ValueError(
                f"max_plate_nesting is {self.max_plate_nesting}, but the plates of the model and "
                f"guide use {nesting} dimensions."
            )
        if math.isfinite(self.max_plate_nesting):
            nesting = int(self.max_plate_nesting)
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, nesting)
        self._structure = _Structure(_weak(model), _weak(guide), weight_plates, nesting)
        return self._structure

    def __getstate__(self):
        return {**self.__dict__, "_structure": None}

    def _runs(self, model, guide, structure: _Structure, shared: list[Trace]):
        """Model and guide for every run: one run with a plate of all samples, or M K without.

        :param list shared: Filled in by the first run, for the others.
        """
        num_samples = self.num_particles * self.K
        if self.vectorize_particles:
            nesting = structure.max_plate_nesting
            plate = ParticlePlate(structure.weight_plates, num_samples, nesting)
            yield plate(model), plate(guide)
            return
        yield model, guide
        for _ in range(1, num_samples):
            yield poutine.replay(model, trace=shared[0]), poutine.replay(guide, trace=shared[0])

    @staticmethod
    def _item(loss: Tensor) -> float:
        value = loss.item()
        warn_if_nan(value, "loss")
        return value


class DRegIWELBO(PartiallyCollapsedIWELBO):
    r"""Importance-weighted ELBO with the doubly reparameterised gradient (DReG).

    The value is that of :class:`PartiallyCollapsedIWELBO`. For what the local latents z are
    reparameterised by, the gradient is

    .. math::
        \sum_k \tilde w_k^2\, \frac{\partial \log w_k}{\partial z_k} \frac{d z_k}{d\phi},
        \qquad \tilde w_k = w_k \big/ \sum_j w_j,

    and :math:`\sum_k \tilde w_k\, \partial \log w_k` for everything else. It has the same
    expectation, and its signal-to-noise ratio grows like :math:`\sqrt K`. The densities see copies
    of z whose gradient is multiplied by :math:`\tilde w_k` on its way to the sampler; in log q the
    guide's parameters, and global latents that it reads, are held fixed. One forward and one
    backward pass; a guide in which one local latent depends on another is run once more.

    Source: Tucker et al. (2019); Rudner et al. (2021), eq. 5 and appendix D. Parameters as in
    :class:`PartiallyCollapsedIWELBO`.

    :raises NotImplementedError: Besides the conditions there, for Delta sites, ``pyro.factor`` and
        ``poutine.scale`` among the guide's local sites, where the formula does not hold.
    """

    def _densities_at(self, draw: _Draw) -> tuple[dict[str, Tensor], Tensor]:
        plates, sites = draw.weight_plates, draw.sites
        leaves = {
            name: site["value"].detach().requires_grad_()
            for name, site in sites.items()
            if site["value"].requires_grad
        }
        for name, site in sites.items():
            if site["is_observed"]:
                raise NotImplementedError(
                    f"The guide observes '{name}' (pyro.factor, perhaps), for which no doubly "
                    "reparameterised gradient is known; use PartiallyCollapsedIWELBO."
                )
        for name in leaves:
            _check_doubly_reparameterisable(name, sites[name], plates)
        log_qs = [
            local_log_prob(site, leaves.get(name, site["value"].detach()), plates)
            for name, site in sites.items()
        ]
        log_q = sum((lq.detach() for lq in log_qs), torch.zeros(()))
        copies = {}
        for name, slope in _slopes(draw, leaves, log_qs).items():
            z, event_dim = sites[name]["value"], sites[name]["fn"].event_dim
            copy = z.view_as(z)
            copy.register_hook(partial(_weigh_gradient, draw, event_dim))
            # log q as a function of z alone, to first order: its value, and d/dz = slope.
            tangent = sum_rightmost(slope * (copy - z.detach()), event_dim)
            log_q = log_q + sum_within_weights(tangent, sites[name], plates)
            copies[name] = copy
        return copies, log_q

    def _log_mean_weight(self, log_w: Tensor, draws: list[_Draw]) -> Tensor:
        value = super()._log_mean_weight(log_w.detach(), draws)
        weights = log_w.detach().softmax(1)
        per_run = [weights.flatten(0, 1)] if self.vectorize_particles else weights.flatten(0, 1)
        for draw, draw_weights in zip(draws, per_run, strict=True):
            draw.weights = draw_weights
        # Where a weight underflows, log w may be -inf and 0 * log w NaN.
        surrogate = (weights * log_w.masked_fill(weights == 0, 0.0)).sum(1)
        return value + (surrogate - surrogate.detach())


def _weigh_gradient(draw: _Draw, event_dim: int, gradient: Tensor) -> Tensor:
    """The second factor w~ of DReG, on the gradient's way from the densities to the sampler."""
    batch_dim = gradient.dim() - event_dim
    shape = draw.weights.shape[max(0, draw.weights.dim() - batch_dim) :] + (1,) * event_dim
    return gradient * draw.weights.reshape(shape)


def _slopes(draw: _Draw, leaves: dict[str, Tensor], log_qs: list[Tensor]) -> dict[str, Tensor]:
    """d log q / d z at the leaves, with the guide's parameters held fixed."""
    if not leaves:
        return {}
    total = sum(lq.sum() for lq in log_qs)
    if len(leaves) > 1:
        # Does a distribution's parameter depend on another draw, as in q(z2 | z1)?
        drawn = [draw.sites[name]["value"] for name in leaves]
        through = torch.autograd.grad(total, drawn, retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in through):
            sites = draw.rerun(leaves).values()
            total = sum(local_log_prob(s, s["value"], draw.weight_plates).sum() for s in sites)
    slopes = torch.autograd.grad(
        total, list(leaves.values()), retain_graph=True, materialize_grads=True
    )
    return dict(zip(leaves, slopes, strict=True))


def _check_doubly_reparameterisable(name: str, site: dict, weight_plates: WeightPlates) -> None:
    if isinstance(site["fn"], Delta):
        raise NotImplementedError(
            f"The guide's local site '{name}' is a Delta, for which the doubly reparameterised "
            "gradient does not hold; sample it from a TransformedDistribution, or use "
            "PartiallyCollapsedIWELBO."
        )
    factor = tempering(site, weight_plates)
    if not (isinstance(factor, float) and factor == 1.0):
        raise NotImplementedError(
            f"The guide's local site '{name}' is scaled by poutine.scale, for which no doubly "
            "reparameterised gradient is known; use PartiallyCollapsedIWELBO."
        )
