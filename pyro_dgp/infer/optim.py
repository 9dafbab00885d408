"""Adam with a learning-rate schedule, whose step is one for all parameters."""

from collections.abc import Callable, Iterable

import torch
from pyro.optim.lr_scheduler import PyroLRScheduler
from torch import Tensor

__all__ = ["ScheduledAdam"]


class ScheduledAdam(PyroLRScheduler):
    """Pyro's Adam with a schedule, and its numbers, in a fraction of the time.

    Pyro has an optimiser for every parameter. So has this one, for their state and schedules; but
    parameters take their steps together, after a first one each, in torch's fused implementation.

    :param scheduler: A class from ``torch.optim.lr_scheduler``.
    :param dict optim_args: For ``torch.optim.Adam``.
    :param kwargs: For the scheduler.
    """

    def __init__(self, scheduler: Callable, optim_args: dict, **kwargs) -> None:
        optim_args = {**optim_args, "fused": True}
        super().__init__(
            scheduler, {"optimizer": torch.optim.Adam, "optim_args": optim_args, **kwargs}
        )
        # Steps for the optimisers of single parameters, whose options and state it is given.
        self._all = torch.optim.Adam([torch.zeros(1)], **optim_args)

    def __call__(self, params: Iterable[Tensor], *args, **kwargs) -> None:
        params = list(params)
        for p in params:
            # The fused step takes gradients to lie in memory as parameters do, as backward makes
            # them; one that was set by hand may be expanded.
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = torch.empty_like(p).copy_(p.grad)
        known = {p: self.optim_objs[p].optimizer for p in params if p in self.optim_objs}
        super().__call__([p for p in params if p not in known], *args, **kwargs)
        groups: dict[float, dict] = {}
        for parameter, optimizer in known.items():
            (group,) = optimizer.param_groups
            groups.setdefault(group["lr"], {**group, "params": []})["params"].append(parameter)
        self._all.param_groups = list(groups.values())
        self._all.state = {p: optimizer.state[p] for p, optimizer in known.items()}
        self._all.step(*args, **kwargs)
