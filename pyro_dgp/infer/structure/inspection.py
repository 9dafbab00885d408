"""The structure of a model and guide, found from a run of both."""

import inspect
import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.runtime import Message
from pyro.util import check_model_guide_match, check_site_shape, set_rng_seed
from torch import Tensor

from pyro_dgp.infer.random_state import random_state, set_random_state, untouched_random_state
from pyro_dgp.infer.sites import (
    is_drawn,
    log_prob,
    random_sites,
    with_values,
    without_points,
)
from pyro_dgp.infer.structure.dependence import find_roles, marked_draws
from pyro_dgp.infer.structure.rerun import Rerun
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["Structure", "both_traces", "run_guide"]

# Of other draws; far from the small seeds that users set, which would give the same draws again.
_FIRST_SEED = 2**31


@dataclass(frozen=True)
class Structure:
    """The roles of the sites of a model and guide.

    :param model: A weak reference to the model.
    :param guide: A weak reference to the guide.
    :param Roles roles: The roles of the sites.
    :param bool has_local_draws: Whether there are local draws, so that K has an effect.
    :param dict options: Options of :func:`~pyro_dgp.infer.structure.dependence.find_roles` that
        were used.
    """

    model: Callable[[], Callable | None]
    guide: Callable[[], Callable | None]
    roles: Roles
    has_local_draws: bool
    options: dict

    def fits(self, model: Callable, guide: Callable, options: dict) -> bool:
        """Whether it is the structure of this model and guide, found with these options."""
        return (self.model(), self.guide(), self.options) == (model, guide, options)

    @classmethod
    def of(
        cls,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict,
        max_plate_nesting: int | float,
        options: dict,
    ) -> "Structure":
        """Finds the structure by runs of both, which leave the random number generators unchanged.

        :param model: The model.
        :param guide: The guide.
        :param tuple args: Arguments of model and guide.
        :param dict kwargs: Keyword arguments of model and guide.
        :param max_plate_nesting: Number of dimensions reserved for plates; infinity for those in
            use.
        :param dict options: Options of :func:`~pyro_dgp.infer.structure.dependence.find_roles`.
        """
        # A new loss must not change the draws of a training in progress.
        with (
            poutine.block(),
            torch.inference_mode(False),
            torch.enable_grad(),
            untouched_random_state(),
        ):
            before = random_state()
            with marked_draws():
                guide_trace = run_guide(guide, guide, args, kwargs)
            state = random_state()

            def run_model(trace: Trace) -> Trace:
                set_random_state(state)
                return poutine.trace(poutine.replay(model, trace=trace)).get_trace(*args, **kwargs)

            @torch.no_grad()
            def with_draws(values: dict[str, Tensor]) -> tuple[Trace, Trace]:
                set_random_state(before)
                trace = with_values(without_points(guide_trace), values)
                trace = run_guide(guide, poutine.replay(guide, trace=trace), args, kwargs)
                return run_model(trace), trace

            @torch.no_grad()
            def other_draws(seed: int) -> Trace:
                set_rng_seed(_FIRST_SEED + seed)
                return run_guide(guide, guide, args, kwargs)

            model_trace = run_model(guide_trace)
            _check_shapes(model_trace, guide_trace)
            again = Rerun(with_draws, other_draws)
            roles = find_roles(model_trace, guide_trace, again, **options)
        if max_plate_nesting < roles.nesting:
            raise ValueError(
                f"max_plate_nesting is {max_plate_nesting}, but the plates of the model and "
                f"guide use {roles.nesting} dimensions."
            )
        if math.isfinite(max_plate_nesting):
            roles = replace(roles, nesting=int(max_plate_nesting))
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, roles.nesting)
        local = any(is_drawn(site) for site in roles.local(guide_trace).values())
        return cls(_weak(model), _weak(guide), roles, local, options)


def run_guide(guide: Callable, handled: Callable, args: tuple, kwargs: dict) -> Trace:
    """A trace of ``handled``, the guide inside of handlers."""
    trace = poutine.trace(handled).get_trace(*args, **kwargs)
    if isinstance(poutine.unwrap(guide), GuideMessenger):
        # It runs the model, whose observations are not sites of the guide.
        for name, site in random_sites(trace).items():
            if site["is_observed"]:
                trace.remove_node(name)
    return trace


def both_traces(model: Callable, guide: Callable, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
    """Traces of one run of the model and of the guide."""
    guide_trace = run_guide(guide, guide, args, kwargs)
    replay = poutine.replay(model, trace=guide_trace)
    return poutine.trace(replay).get_trace(*args, **kwargs), guide_trace


def _weak(function: Callable) -> Callable[[], Callable | None]:
    """A reference that does not keep a model in memory."""
    try:
        return weakref.WeakMethod(function) if inspect.ismethod(function) else weakref.ref(function)
    except TypeError:  # a callable with __slots__
        return lambda: function


def _check_shapes(model_trace: Trace, guide_trace: Trace) -> None:
    """Refuses batch dimensions left of all plates, which would be taken for samples."""
    for name, site in random_sites(guide_trace).items():
        _check_shape(guide_trace.nodes[name], torch.empty(site["fn"].batch_shape))
    for name, site in random_sites(model_trace).items():
        _check_shape(model_trace.nodes[name], log_prob(site, site["value"]))


def _check_shape(site: Message, log_density: Tensor) -> None:
    check_site_shape({**site, "log_prob": log_density}, max_plate_nesting=sys.maxsize)
