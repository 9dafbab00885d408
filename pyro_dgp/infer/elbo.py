r"""Importance-weighted ELBOs for any Pyro model and guide.

With one weight per datum n and draw k (:mod:`pyro_dgp.infer.particles`),

.. math::
    L_K = \frac NB \sum_n \log \frac1K \sum_{k=1}^K w_{nk} \;-\; \mathrm{KL}(global\ sites).

The two classes estimate the same bounds (:mod:`pyro_dgp.infer.bounds`) and differ in the gradient
(:mod:`pyro_dgp.infer.paths`).
"""

import inspect
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real

import pyro.poutine as poutine
import torch
from pyro.distributions.util import sum_rightmost
from pyro.infer import ELBO
from pyro.infer.util import is_validation_enabled, torch_backward
from pyro.poutine import Trace
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.util import site_is_subsample
from pyro.util import check_model_guide_match, check_site_shape, warn_if_nan
from torch import Tensor

from pyro_dgp._checks import check_integer
from pyro_dgp.infer.bounds import Bound, Coefficients, WeightDiagnostics, weight_diagnostics
from pyro_dgp.infer.dependence import marked_draws, refuse_dependence
from pyro_dgp.infer.particles import (
    ParticlePlate,
    WeightPlates,
    delta,
    global_elbo,
    is_collision,
    local_log_prob,
    log_prob,
    max_plate_nesting,
    random_sites,
    same_mask,
    sum_within_weights,
    tempering,
    with_values,
)
from pyro_dgp.infer.paths import Gates, leaves, reaches
from pyro_dgp.infer.random_state import random_state, set_random_state, untouched_random_state
from pyro_dgp.infer.samples import Samples, Terms

__all__ = ["DRegIWELBO", "PartiallyCollapsedIWELBO"]


@dataclass(frozen=True)
class _Structure:
    """What a run of a model and guide tells about their sites."""

    model: Callable[[], Callable]
    guide: Callable[[], Callable]
    weight_plates: WeightPlates
    max_plate_nesting: int


class _NewStructure(Exception):
    """The sites' plates are not those of the run before."""


def _weak(function: Callable) -> Callable[[], Callable | None]:
    """A reference that does not keep a model alive."""
    try:
        return weakref.WeakMethod(function) if inspect.ismethod(function) else weakref.ref(function)
    except TypeError:  # a callable with __slots__
        return lambda: function


def _guide_trace(guide, handled, args, kwargs) -> Trace:
    """A run of ``handled``, the guide with handlers about it."""
    trace = poutine.trace(handled).get_trace(*args, **kwargs)
    if isinstance(poutine.unwrap(guide), GuideMessenger):
        # It draws from the guide by running the model, whose observations are none of its own.
        for name, site in random_sites(trace).items():
            if site["is_observed"]:
                trace.remove_node(name)
    return trace


def _check_shape(site: dict, log_density: Tensor) -> None:
    check_site_shape({**site, "log_prob": log_density}, max_plate_nesting=math.inf)


def _shared_sites(model_trace: Trace, guide_trace: Trace, weight_plates: WeightPlates) -> Trace:
    """What further draws have in common with these ones: global sites and subsamples."""
    shared = guide_trace.copy()
    for name in weight_plates.local(guide_trace):
        shared.remove_node(name)
    for name, site in model_trace.nodes.items():
        if site["type"] == "sample" and site_is_subsample(site):
            shared.nodes[name] = site
    return shared


class _WithGradients(torch.autograd.Function):
    """A value whose derivatives by some tensors are known."""

    @staticmethod
    def forward(ctx, value, gradients, *tensors):
        ctx.gradients = gradients
        return value

    @staticmethod
    def backward(ctx, by_value):
        return None, None, *(by_value * gradient for gradient in ctx.gradients)


def _add_gradients(gradients: dict[Tensor, Tensor], scalar: Tensor) -> None:
    """Adds the derivatives of a scalar by all leaves that it depends on."""
    inputs = leaves(scalar)
    if not inputs:
        return
    # The graph of what the first run shares with the others is needed again.
    found = torch.autograd.grad(scalar, inputs, retain_graph=True)
    for leaf, gradient in zip(inputs, found, strict=True):
        gradients[leaf] = gradients[leaf] + gradient if leaf in gradients else gradient


class PartiallyCollapsedIWELBO(ELBO):
    r"""Importance-weighted ELBO with the ordinary reparameterisation gradient (REG).

    Latent sites in the data plate (or, without any plate, all of them) are drawn K times and enter
    the importance weights; those outside are drawn once and enter through their KL, in closed form
    where Pyro has one. Every datum has a weight of its own, and a minibatch's N/B stands outside
    the logarithm, so the bound under subsampling has the full data's bound as its expectation.
    ``poutine.scale`` stands inside: it tempers densities, as annealing does. (To scale the loss,
    multiply the loss.) What
    is "partially collapsed" is up to the model: a site whose ``log_prob`` integrates something
    out, as :class:`~pyro_dgp.gp.GaussianLikelihood` does, is used as it is.

    The signal-to-noise ratio of the guide's gradient falls like :math:`1/\sqrt K`;
    :class:`DRegIWELBO` has the same value, and a gradient without that fault.

    Source: Burda et al. (2015); Rudner et al. (2021), eq. 1.

    :param int K: Importance samples per datum.
    :param int num_particles: M, independent estimates of the bound to average (MIWAE). Global sites
        share one draw over all M K samples.
    :param float beta: Share of the ordinary ELBO in the bound, from 0 to 1 (CIWAE).
    :param bool piwae: The guide has the gradient of this bound, the model that of the bound with
        one set of M K samples, which ``loss`` reports (PIWAE). A parameter of both has the sum.
    :param int chunk_size: Samples to hold in memory at once; None for all M K. The gradient is
        exact: samples are drawn twice from one state of the random number generators, for their
        weights and then for their gradient, which costs a forward pass more. Hooks on parameters
        see the gradient of each chunk before that of the whole.
    :param max_plate_nesting: Dimensions to leave to the model's plates; found by a run of the model
        and guide unless given. Give it where plates nest more deeply in some calls than in others.
    :param bool vectorize_particles: Draw samples in one run of model and guide, as a dimension to
        the left of their plates. False runs them once for every sample, for models that cannot
        broadcast.
    :param bool retain_graph: Keep the graph after ``loss_and_grads``.
    :raises ValueError: If K, ``num_particles`` or ``chunk_size`` is not a positive integer or
        ``beta`` not between 0 and 1.
    """

    def __init__(
        self,
        K: int,
        num_particles: int = 1,
        beta: float = 0.0,
        piwae: bool = False,
        chunk_size: int | None = None,
        max_plate_nesting: int | float = math.inf,
        vectorize_particles: bool = True,
        retain_graph: bool | None = None,
    ) -> None:
        num_particles = check_integer("num_particles", num_particles, 1)
        super().__init__(num_particles=num_particles, retain_graph=retain_graph)
        self.K = check_integer("K", K, 1)
        if not isinstance(beta, Real) or not 0 <= beta <= 1:
            raise ValueError(f"beta must be between 0 and 1, but it is {beta}.")
        self.beta, self.piwae = float(beta), piwae
        self.chunk_size = None if chunk_size is None else check_integer("chunk_size", chunk_size, 1)
        self.max_plate_nesting = max_plate_nesting
        self.vectorize_particles = vectorize_particles
        self._structure: _Structure | None = None
        self._log_weights: Tensor | None = None

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
        for _ in range(2):
            structure = self._get_structure(model, guide, args, kwargs)
            run = partial(self._run, structure, model, guide, args, kwargs)
            try:
                return -self._estimate(run)
            except _NewStructure:
                # The sites' plates depend on the arguments: look at them afresh.
                self._structure = None
            except ValueError as error:
                # So they do, if they now reach into the dimension of the samples.
                if not is_collision(error):
                    raise
                self._structure = None
        raise NotImplementedError(
            "The plates of the model's or the guide's sites differ between two runs with the same "
            "arguments, so the importance weights have no fixed plates: let each site stand in the "
            "same plates in every run."
        )

    def weight_diagnostics(self) -> WeightDiagnostics:
        """How unequal the importance weights of the last evaluation were.

        :returns: Effective sample size and largest normalised weight, each [M, ...] with the data
            plates' dimensions, or [M, number of data] if a plate of theirs is sequential.
        :raises RuntimeError: If nothing has been evaluated yet.
        """
        if self._log_weights is None:
            raise RuntimeError("There are no weights yet: evaluate the loss first.")
        return weight_diagnostics(self._log_weights)

    # How the bound is differentiated: what subclasses change.

    def _densities(self, samples: Samples) -> tuple[dict[str, Tensor], Terms, Terms]:
        """How log w depends on the local draws.

        :returns: The values that densities see where they are not the drawn ones; the terms of
            log q; and what is added to log p, of value 0, for the sake of its gradient.
        """
        plates, sites = samples.weight_plates, samples.sites
        log_q = [(plates.group(s), local_log_prob(s, s["value"], plates)) for s in sites.values()]
        copies = {}
        if self.piwae and torch.is_grad_enabled():
            reparameterised = (name for name, s in sites.items() if s["value"].requires_grad)
            copies = {name: samples.copy(name, doubly=0.0) for name in reparameterised}
        return copies, log_q, []

    # From samples to the bound.

    def _estimate(self, run: Callable[[slice, list[Trace]], Samples]) -> Tensor:
        """The bound, as a scalar whose derivative is the gradient estimate.

        :param run: Draws the given ones of the M K samples; what they all have in common is in the
            list, once the first run has put it there.
        """
        first, *others = self._chunks()
        shared: list[Trace] = []
        samples = [run(first, shared)]
        if self.chunk_size is None or not others or not torch.is_grad_enabled():
            samples += [run(rows, shared) for rows in others]
            value, coefficients = self._bound(samples[0], [s.log_w for s in samples])
            if not torch.is_grad_enabled():
                return value
            surrogate = sum(s.surrogate(coefficients) for s in samples)
            return value + (surrogate - surrogate.detach())

        # For the others' weights alone, at first, and for their gradient when these are known.
        log_w, states = [samples[0].log_w], []
        with torch.no_grad():
            for rows in others:
                states.append(random_state())
                log_w.append(run(rows, shared).log_w)
        value, coefficients = self._bound(samples[0], log_w)
        gradients: dict[Tensor, Tensor] = {}
        # None of a chunk's samples, which hold its graph, may be alive when the next are drawn.
        _add_gradients(gradients, samples.pop().surrogate(coefficients))
        for rows, state in zip(others, states, strict=True):
            set_random_state(state)
            _add_gradients(gradients, run(rows, shared).surrogate(coefficients))
        return _WithGradients.apply(value, tuple(gradients.values()), *gradients)

    def _chunks(self) -> list[slice]:
        """The M K samples by runs of model and guide."""
        total = self.num_particles * self.K
        size = min(self.chunk_size or total, total) if self.vectorize_particles else 1
        return [slice(start, min(start + size, total)) for start in range(0, total, size)]

    def _bound(self, samples: Samples, log_w: list[Tensor]) -> tuple[Tensor, Coefficients]:
        """The bound's value, and the weight of every sample in its gradient.

        :param Samples samples: The first ones, which have the term outside the logarithms.
        :param list log_w: Of all M K samples, [samples, number of data] each.
        """
        log_weights = torch.cat(log_w)
        columns = samples.path_weights.columns
        shape = next(iter(columns.values()))[1] if len(columns) == 1 else log_weights.shape[1:]
        self._log_weights = log_weights.reshape(self.num_particles, self.K, *shape)
        bound = Bound(self.num_particles, self.K, self.beta, self.piwae)
        value = samples.scale * bound.value(log_weights).sum() + samples.global_term.detach()
        return value, bound.coefficients(log_weights)

    # Running the model and the guide.

    def _run(self, structure, model, guide, args, kwargs, rows, shared: list[Trace]) -> Samples:
        """Draws some of the M K samples and evaluates their densities.

        :param list shared: Set by the first run: its global sites and subsamples.
        """
        plates, nesting = structure.weight_plates, structure.max_plate_nesting
        handlers = [partial(poutine.replay, trace=trace) for trace in shared]
        if self.vectorize_particles:
            handlers.append(ParticlePlate(plates, rows.stop - rows.start, nesting))
        run_model, run_guide = model, guide
        for handler in handlers:
            run_model, run_guide = handler(run_model), handler(run_guide)

        gates = Gates(plates)
        guide_trace = _guide_trace(guide, gates(run_guide), args, kwargs)
        samples = Samples(rows, guide_trace, gates)
        values, log_q, more_log_p = self._densities(samples)
        replay = poutine.replay(run_model, trace=with_values(guide_trace, values))
        model_trace = poutine.trace(replay).get_trace(*args, **kwargs)
        if WeightPlates.of(model_trace, guide_trace) != plates:
            raise _NewStructure

        sites = plates.local(model_trace)
        log_p = [(plates.group(s), local_log_prob(s, s["value"], plates)) for s in sites.values()]
        samples.set_densities(log_p + more_log_p, log_q, nesting)
        samples.scale = plates.scale(next(iter(sites.values()))) if sites else 1.0
        samples.global_term = torch.zeros(())
        if not shared:
            samples.global_term = global_elbo(model_trace, guide_trace, plates)
            shared.append(_shared_sites(model_trace, guide_trace, plates))
        return samples

    def _get_trace(self, model, guide, args, kwargs):
        guide_trace = _guide_trace(guide, guide, args, kwargs)
        replay = poutine.replay(model, trace=guide_trace)
        return poutine.trace(replay).get_trace(*args, **kwargs), guide_trace

    def _get_structure(self, model, guide, args, kwargs) -> _Structure:
        known = self._structure
        if known is not None and known.model() == model and known.guide() == guide:
            return known
        # A new loss must not change the draws of a training that goes on.
        with poutine.block(), torch.enable_grad(), untouched_random_state():
            with marked_draws():
                guide_trace = _guide_trace(guide, guide, args, kwargs)
            replay = poutine.replay(model, trace=guide_trace)
            model_trace = poutine.trace(replay).get_trace(*args, **kwargs)
        if is_validation_enabled():
            for site in random_sites(guide_trace).values():
                _check_shape(site, torch.empty(site["fn"].batch_shape))
            for site in random_sites(model_trace).values():
                _check_shape(site, log_prob(site, site["value"]))
        weight_plates = WeightPlates.of(model_trace, guide_trace)
        piwae = self.piwae and self.num_particles > 1
        refuse_dependence(model_trace, guide_trace, weight_plates, piwae)
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
        return {**self.__dict__, "_structure": None, "_log_weights": None}

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
    backward pass. With K = 1 or ``beta`` = 1 this is the "sticking the landing" gradient of the
    ordinary ELBO (Roeder et al., 2017).

    Source: Tucker et al. (2019); Rudner et al. (2021), eq. 5 and appendix D. Parameters as in
    :class:`PartiallyCollapsedIWELBO`.

    :raises NotImplementedError: Besides the conditions there, if a ``Delta`` or ``pyro.factor``
        among the guide's local sites depends both on a local draw and on parameters, if a local
        site's density cannot be evaluated (a flow without an inverse), if a scale is learned, or
        if local sites that depend on each other are scaled differently, or masked differently
        where the model reads what the guide's mask hides.
    :raises ValueError: If the derivative of log q by a draw is not finite.
    """

    def _densities(self, samples: Samples) -> tuple[dict[str, Tensor], Terms, Terms]:
        if not torch.is_grad_enabled():
            return super()._densities(samples)
        plates, sites, gates = samples.weight_plates, samples.sites, samples.gates
        hidden_is_unused = _check_scales_and_masks(samples)
        drawn = {name: sites[name]["value"].detach().requires_grad_() for name in gates.values}
        # Terms of log q: functions of the draws alone, phi being held fixed, and others.
        held, free = {}, {}
        for name, site in sites.items():
            if delta(site["fn"]) is not None or site["is_observed"]:
                log_q = local_log_prob(site, site["value"], plates)
                gated, other = reaches((site["value"], log_q), gates)
                if gated and other:
                    raise NotImplementedError(_MIXED.format(name=name))
                (held if gated else free)[name] = log_q
            elif name in drawn:
                held[name] = _log_prob_elsewhere(name, site, drawn[name], plates)
        slopes = _slopes(held, drawn, gates)

        copies = {
            name: samples.copy(
                name, tempering(site, plates) if name in held else 0.0, hidden_is_unused
            )
            for name, site in sites.items()
            if site["value"].requires_grad and not site["is_observed"]
        }
        log_q, tangents = [], []
        for name, site in sites.items():
            if name in free:
                log_q.append((plates.group(site), free[name]))
                continue
            with torch.no_grad():
                # At the draw itself, where a flow remembers its density, with its graph.
                value = local_log_prob(site, site["value"], plates).detach()
            log_q.append((plates.group(site), value))
        for name, slope in slopes.items():
            # log q as a function of z alone, to first order: its value, and d/dz = slope.
            site = sites[name]
            tangent = slope * (copies[name] - site["value"].detach())
            tangent = sum_rightmost(tangent, site["fn"].event_dim)
            tangents.append((plates.group(site), -sum_within_weights(tangent, site, plates)))
        return copies, log_q, tangents


_MIXED = (
    "The guide's local site '{name}' (a Delta or a factor) depends on a local draw and on "
    "parameters or global draws at once, for which no doubly reparameterised gradient is known; "
    "sample it from a TransformedDistribution, or use PartiallyCollapsedIWELBO."
)


def _log_prob_elsewhere(name: str, site: dict, z: Tensor, plates: WeightPlates) -> Tensor:
    """log q at a tensor that is not the very one drawn, which some flows remember."""
    try:
        return local_log_prob(site, z, plates)
    except (KeyError, NotImplementedError) as error:
        raise NotImplementedError(
            f"The guide's local site '{name}' ({type(site['fn']).__name__}) knows its density only "
            "where it has just been drawn, as a flow without an inverse does; use a flow that has "
            "one, or PartiallyCollapsedIWELBO."
        ) from error


def _slopes(held: dict[str, Tensor], drawn: dict[str, Tensor], gates: Gates) -> dict[str, Tensor]:
    """d log q / d z by site, with the guide's parameters and all other draws held fixed."""
    total = sum(log_q.sum() for log_q in held.values())
    if not drawn or not total.requires_grad:
        return {}
    own = gates.partials(total, list(drawn.values()))
    through = gates.partials(total, [gates.values[name] for name in drawn])
    slopes = {
        name: sum(slope for slope in slopes if slope is not None)
        for name, *slopes in zip(drawn, own, through, strict=True)
        if any(slope is not None for slope in slopes)
    }
    for name, slope in slopes.items():
        if not bool(slope.isfinite().all()) and bool(drawn[name].isfinite().all()):
            raise ValueError(
                f"The derivative of log q by the guide's local site '{name}' is not finite: a "
                "draw lies on the edge of the support, as far as the dtype tells (a saturated "
                "transform, perhaps). Use float64, or PartiallyCollapsedIWELBO."
            )
    return slopes


def _check_scales_and_masks(samples: Samples) -> bool:
    """Whether local draws that depend on each other are masked differently.

    A gradient comes to a draw by way of those that depend on it, with the weight of these.

    :raises NotImplementedError: If they are scaled differently, or a scale is to be learned.
    """
    plates, sites = samples.weight_plates, samples.sites
    scales = {name: tempering(site, plates) for name, site in sites.items()}
    for name, scale in scales.items():
        if isinstance(scale, Tensor) and scale.requires_grad:
            raise NotImplementedError(
                f"The guide's local site '{name}' is scaled by a tensor with a gradient, for which "
                "no doubly reparameterised one is known; detach the scale, or use "
                "PartiallyCollapsedIWELBO."
            )
    first = next(iter(sites), None)
    one_scale = all(bool(torch.as_tensor(s == scales[first]).all()) for s in scales.values())
    one_mask = all(same_mask(site, sites[first]) for site in sites.values())
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
