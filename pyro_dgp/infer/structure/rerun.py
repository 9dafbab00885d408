"""Further runs of a model and guide, with the same random numbers and other draws."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.infer.sites import is_drawn, random_sites

__all__ = ["Rerun", "differs", "equal"]

# Factor by which distant draws are moved away from the original ones.
_WIDER = 4.0


class Rerun(NamedTuple):
    """Runs of the model and guide with the same random numbers.

    :param with_draws: A function from values of some sites to the traces of model and guide.
    :param other_draws: A function from a seed to a trace of the guide.
    """

    with_draws: Callable[[dict[str, Tensor]], tuple[Trace, Trace]]
    other_draws: Callable[[int], Trace]

    def others(self, guide_trace: Trace, seed: int) -> dict[str, Tensor]:
        """Other draws by a seed; distant ones for odd seeds."""
        fresh, values = random_sites(self.other_draws(seed)), {}
        for name, site in random_sites(guide_trace).items():
            if not is_drawn(site) or name not in fresh:
                continue
            value, other = site["value"].detach(), fresh[name]["value"].detach()
            if value.shape != other.shape:
                continue
            if seed % 2 and _is_real(site["fn"]):
                other = value + _WIDER * (other - value)
            values[name] = other
        return values


def _is_real(fn: Distribution) -> bool:
    try:
        support = fn.support
    except NotImplementedError:
        return False
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support in (constraints.real, constraints.real_vector)


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two densities are equal up to rounding."""
    return one.shape == other.shape and not bool(differs(one, other).any())


def differs(one: Tensor, other: Tensor) -> Tensor:
    """Where two densities differ by more than rounding.

    Rounding errors may depend on the number of rows, and those of a location are multiplied by the
    inverse of a small scale: half of the digits are left.
    """
    rounding = max(1e-6, torch.finfo(one.dtype).eps ** 0.5)
    counts = one.isfinite() | other.isfinite()
    return counts & ~torch.isclose(one, other, rtol=rounding, atol=rounding)
