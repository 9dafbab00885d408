"""Adam with a learning-rate schedule, in one fused step; parameters that are frozen at first."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from pyro_dgp._checks import check_integer

__all__ = ["Frozen", "ScheduledAdam"]


class ScheduledAdam(PyroLRScheduler):
    """Equivalent to Pyro's Adam with a schedule, in a fraction of the time.

    Pyro has one optimiser per parameter. This class keeps them for their state and schedules; but
    after the first step, all parameters are updated together by torch's fused implementation.

    :param scheduler: A class from ``torch.optim.lr_scheduler``.
    :param dict optim_args: Arguments of ``torch.optim.Adam``, except ``fused`` and ``foreach``.
    :param kwargs: Arguments of the scheduler.
    """

    def __init__(self, scheduler: Callable, optim_args: dict[str, Any], **kwargs: Any) -> None:
        self._args = optim_args = {**optim_args, "fused": True, "foreach": None}
        super().__init__(
            scheduler, {"optimizer": torch.optim.Adam, "optim_args": optim_args, **kwargs}
        )
        # Steps for the optimisers of single parameters, whose options and state it is given.
        self._all = torch.optim.Adam([torch.zeros(1)], **optim_args)

    def _get_optim(self, params: Tensor) -> LRScheduler:
        optim_args = {**self._args, "fused": _can_be_fused(params)}
        return self.pt_scheduler_constructor(
            torch.optim.Adam([params], **optim_args), **self.kwargs
        )

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        params = list(params)
        for p in params:
            if p.grad is not None and not p.grad.is_contiguous():
                p.grad = p.grad.contiguous()
        known = {
            p: self.optim_objs[p].optimizer
            for p in params
            if p in self.optim_objs and _can_be_fused(p)
        }
        super().__call__([p for p in params if p not in known], *args, **kwargs)
        groups: dict[float, dict] = {}
        for parameter, optimizer in known.items():
            (group,) = optimizer.param_groups
            groups.setdefault(group["lr"], {**group, "params": []})["params"].append(parameter)
        self._all.param_groups = list(groups.values())
        self._all.state = defaultdict(dict, {p: o.state[p] for p, o in known.items()})
        self._all.step(*args, **kwargs)


def _can_be_fused(parameter: Tensor) -> bool:
    """The fused step takes all arrays to be contiguous: of a slice it would overwrite the rest."""
    return parameter.is_contiguous() and not parameter.is_complex()


class Frozen(PyroOptim):
    """Another optimiser, which does not change some parameters in the first steps.

    Schedules of these parameters advance meanwhile, and so do not start late.

    :param ~pyro.optim.PyroOptim optim: Optimiser of all parameters. If it is a ``PyroLRScheduler``,
        :func:`~pyro_dgp.infer.fit` advances it; in your own loop, call its ``step()``.
    :param parameters: Parameters that are frozen, in unconstrained space, such as
        ``dgp.likelihood.parameters()``.
    :param int num_steps: Number of steps for which they are.
    :raises ValueError: If ``num_steps`` is negative or no integer, or ``parameters`` are not those
        that are optimised, but values with a constraint, for instance.
    """

    def __init__(self, optim: PyroOptim, parameters: Iterable[Tensor], num_steps: int) -> None:
        self.optim, self.parameters = optim, list(parameters)
        self.num_steps = check_integer("num_steps", num_steps, 0)
        self.steps_done = 0
        self._check(all(p.is_leaf for p in self.parameters))

    @property
    def optim_objs(self) -> dict:
        """The other optimiser's, by parameter."""
        return self.optim.optim_objs

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        params = list(params)
        if self.steps_done < self.num_steps:
            if not self.steps_done and self.parameters:
                self._check(bool({id(p) for p in self.parameters} & {id(p) for p in params}))
            for p in self.parameters:
                p.grad = None
        self.steps_done += 1
        self.optim(params, *args, **kwargs)

    @staticmethod
    def _check(are_optimised: bool) -> None:
        if not are_optimised:
            raise ValueError(
                "What Frozen was given is not among the optimised parameters, which are "
                "unconstrained: give it module.parameters(), and put it around NaturalGradient."
            )

    def get_state(self) -> dict:
        """The other optimiser's state, and the number of steps."""
        return {"steps_done": self.steps_done, "optim": self.optim.get_state()}

    def set_state(self, state_dict: dict) -> None:
        """Takes what :meth:`get_state` gave."""
        self.steps_done = state_dict["steps_done"]
        self.optim.set_state(state_dict["optim"])
