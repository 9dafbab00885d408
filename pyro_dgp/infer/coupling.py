"""Check that the weight of each datum depends on its own draws only."""

import math
from functools import reduce
from operator import add

import torch
from pyro.poutine import Trace
from torch import Tensor

from pyro_dgp.infer.densities import local_log_prob
from pyro_dgp.infer.rerun import Rerun, differs, equal
from pyro_dgp.infer.roles import Roles
from pyro_dgp.infer.sites import Site

__all__ = ["refuse_coupling"]


def refuse_coupling(
    model_trace: Trace, guide_trace: Trace, roles: Roles, draws: dict[str, Tensor], rerun: Rerun
) -> None:
    """Refuses densities of one datum that depend on draws of another one, which has K of its own.

    All data are numbered, and any two numbers differ in at least one bit. So every dependence is
    found by exchanging, for each bit, the draws of all data in which it is set (then of all in
    which it is not), and looking whether densities of the other data change. Where runs cannot be
    repeated, derivatives are used instead.

    :raises NotImplementedError: If there is such a dependence; names the plates and a site.
    """
    numbers = _Numbers(roles)
    sites = {n: s for n, s in roles.local(guide_trace).items() if n in draws}
    own = {name: (site["value"].detach(), numbers.of_draw(site)) for name, site in sites.items()}
    numbers.count(model_trace, guide_trace)
    if not sites or not numbers.total_bits:
        return
    base = _local_densities(rerun.with_draws({}), roles)
    again = _local_densities(rerun.with_draws({}), roles)
    if any(not equal(x, again[key]) for key, x in base.items()):
        return _refuse_derivatives(model_trace, guide_trace, roles, draws, numbers)
    local = roles.local(model_trace), roles.local(guide_trace)
    number_of = {(i, name): numbers.of(local[i][name]) for i, name in base}
    # First with distant draws, which also show dependences behind a threshold; then with draws of
    # the guide, in case the model rejects distant ones.
    for seed in (1, 0):
        try:
            others = rerun.others(guide_trace, seed)
            return _refuse_changes(base, number_of, own, others, roles, numbers.total_bits, rerun)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, NotImplementedError):
                raise


def _refuse_changes(
    base: dict, number_of: dict, own: dict, others: dict, roles: Roles, num_bits: int, rerun: Rerun
) -> None:
    """By values: the densities of data whose draws are kept must not change.

    :param dict base: Densities with the original draws, by trace and site.
    :param dict number_of: Numbers of the data of these densities.
    :param dict own: The original draws, with the numbers of their data.
    :param dict others: Other draws of the same sites.
    """
    for bit in range(num_bits):
        for side in (0, 1):
            values = {
                name: torch.where(_has(number, bit, side, value), others[name], value)
                for name, (value, number) in own.items()
                if name in others
            }
            found = _local_densities(rerun.with_draws(values), roles)
            for key, x in base.items():
                if key not in found:
                    continue
                changed = differs(x, found[key]) & _has(number_of[key], bit, 1 - side, x)
                if bool(changed.any()):
                    raise _coupled(roles, key[1])


def _has(number: Tensor, bit: int, side: int, like: Tensor) -> Tensor:
    """Whether a bit of the number has the value ``side``."""
    return (number >> bit & 1 == side).to(like.device)


def _coupled(roles: Roles, name: str) -> NotImplementedError:
    return NotImplementedError(
        f"Data in the plate(s) {sorted(roles.plates)} depend on each other's draws at the site "
        f"'{name}' (by a cumulative sum or batch normalisation, for instance), so that no datum "
        "has a weight of its own. Use K=1, or draw the local latents outside of these plates."
    )


class _Numbers:
    """Numbers for all data, including those of sequential plates."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.by_group: dict[tuple, Tensor] = {}
        self.total = 0

    def of(self, site: Site) -> Tensor:
        """Numbers in the shape of the plates of a local site."""
        group, sizes = self.roles.group(site), self.roles.weight_dims(site)
        if group not in self.by_group:
            shape = [sizes.get(-d, 1) for d in range(self.roles.nesting, 0, -1)]
            size = math.prod(shape)
            self.by_group[group] = torch.arange(self.total, self.total + size).reshape(shape)
            self.total += size
        return self.by_group[group]

    def of_draw(self, site: Site) -> Tensor:
        """Numbers in a shape that broadcasts with the draw."""
        number, event_dim = self.of(site), site["fn"].event_dim
        batch_dim = site["value"].dim() - event_dim
        number = number.reshape(number.shape[max(0, number.dim() - batch_dim) :])
        return number.reshape(number.shape + (1,) * event_dim)

    def count(self, *traces: Trace) -> None:
        for trace in traces:
            for site in self.roles.local(trace).values():
                self.of(site)

    @property
    def total_bits(self) -> int:
        return max(0, self.total - 1).bit_length()


def _local_densities(traces: tuple[Trace, Trace], roles: Roles) -> dict[tuple[int, str], Tensor]:
    """Log densities of the local sites of model (0) and guide (1), summed within each weight."""
    found = {}
    for i, trace in enumerate(traces):
        for name, site in roles.local(trace).items():
            try:
                found[i, name] = local_log_prob(site, site["value"], roles)
            except (KeyError, NotImplementedError):  # a flow that knows its own draws only
                continue
    return found


def _refuse_derivatives(
    model_trace: Trace,
    guide_trace: Trace,
    roles: Roles,
    draws: dict[str, Tensor],
    numbers: _Numbers,
) -> None:
    """By derivatives: those of a density by draws of other data must be 0."""
    local = roles.local(model_trace), roles.local(guide_trace)
    terms = [
        (term, numbers.of(local[i][name]))
        for (i, name), term in _local_densities((model_trace, guide_trace), roles).items()
        if term.requires_grad
    ]
    names = [name for name, value in draws.items() if value.requires_grad and name in local[1]]
    if not terms or not names:
        return
    for bit in range(numbers.total_bits):
        for side in (0, 1):
            chosen = reduce(
                add, (term.where(_has(n, bit, side, term), 0.0).sum() for term, n in terms)
            )
            try:
                gradients = torch.autograd.grad(
                    chosen, [draws[n] for n in names], retain_graph=True, allow_unused=True
                )
            except RuntimeError:  # a graph that cannot be gone through twice
                return
            for name, gradient in zip(names, gradients, strict=True):
                if gradient is None:
                    continue
                other = _has(numbers.of_draw(local[1][name]), bit, 1 - side, gradient)
                if bool((other & (gradient != 0) & gradient.isfinite()).any()):
                    raise _coupled(roles, name)
