"""Check that the weight of each datum depends on its own draws only."""

import math
from functools import reduce
from itertools import count
from operator import add

import torch
from pyro.poutine import Trace
from torch import Tensor

from pyro_dgp.infer.densities import local_log_prob
from pyro_dgp.infer.sites import Site
from pyro_dgp.infer.structure.rerun import Rerun, differs, equal
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["refuse_coupling"]


def refuse_coupling(
    model_trace: Trace, guide_trace: Trace, roles: Roles, draws: dict[str, Tensor], rerun: Rerun
) -> None:
    """Refuses densities of one datum that depend on draws of another one, which has K of its own.

    Each datum has a word of bits, and for any two there is a bit that the first word has and the
    second has not (:func:`distinct_words`). So every dependence is found by exchanging, for each
    bit, the draws of all data that have it, and looking whether densities of the others change.
    Where runs cannot be repeated, derivatives are used instead.

    :raises NotImplementedError: If there is such a dependence; names the plates and a site.
    """
    words = _Words(roles, model_trace, guide_trace)
    local = roles.local(model_trace), roles.local(guide_trace)
    sites = {name: site for name, site in local[1].items() if name in draws}
    if not sites or not words.num_bits:
        return
    own = {name: (site["value"].detach(), words.of_draw(site)) for name, site in sites.items()}
    word_of = {(i, n): words.of(site) for i in (0, 1) for n, site in local[i].items()}
    base = _local_densities((model_trace, guide_trace), roles)
    for _ in range(2):  # the first run has drawn what others replay, and dropout depends on that
        before, base = base, _local_densities(rerun.with_draws({}), roles)
        same_sites = before.keys() == base.keys() <= word_of.keys()
        if same_sites and all(equal(x, base[key]) for key, x in before.items()):
            break
    else:
        return _refuse_derivatives(model_trace, guide_trace, roles, draws, words)
    # First with distant draws, which also show dependences behind a threshold; then with draws of
    # the guide, in case the model rejects distant ones.
    for seed in (1, 0):
        try:
            others = rerun.others(guide_trace, seed)
            return _refuse_changes(base, word_of, own, others, roles, words.num_bits, rerun)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, NotImplementedError):
                raise


def _refuse_changes(
    base: dict, word_of: dict, own: dict, others: dict, roles: Roles, num_bits: int, rerun: Rerun
) -> None:
    """By values: the densities of data whose draws are kept must not change.

    :param dict base: Densities with the original draws, by trace and site.
    :param dict word_of: Words of the data of these densities.
    :param dict own: The original draws, with the words of their data.
    :param dict others: Other draws of the same sites.
    """
    for bit in range(num_bits):
        values = {
            name: torch.where(_has(word, bit, value), others[name], value)
            for name, (value, word) in own.items()
            if name in others
        }
        found = _local_densities(rerun.with_draws(values), roles)
        for key, x in base.items():
            if key not in found:
                continue
            changed = differs(x, found[key]) & ~_has(word_of[key], bit, x)
            if bool(changed.any()):
                raise _coupled(roles, key[1])


def _has(word: Tensor, bit: int, like: Tensor) -> Tensor:
    """Whether a word has a bit."""
    return (word >> bit & 1).bool().to(like.device)


def _coupled(roles: Roles, name: str) -> NotImplementedError:
    return NotImplementedError(
        f"Data in the plate(s) {sorted(roles.plates)} depend on each other's draws at the site "
        f"'{name}' (by a cumulative sum or batch normalisation, for instance), so that no datum "
        "has a weight of its own. Use K=1, or draw the local latents outside of these plates."
    )


class _Words:
    """A word for each datum, including those of sequential plates."""

    def __init__(self, roles: Roles, *traces: Trace) -> None:
        self.roles = roles
        shapes = {
            roles.group(site): self._shape(site)
            for trace in traces
            for site in roles.local(trace).values()
        }
        sizes = [math.prod(shape) for shape in shapes.values()]
        words, self.num_bits = distinct_words(sum(sizes))
        parts = zip(shapes.items(), words.split(sizes), strict=True)
        self._by_group = {group: part.reshape(shape) for (group, shape), part in parts}

    def _shape(self, site: Site) -> list[int]:
        sizes = self.roles.weight_dims(site)
        return [sizes.get(-d, 1) for d in range(self.roles.nesting, 0, -1)]

    def of(self, site: Site) -> Tensor:
        """Words in the shape of the plates of a local site."""
        return self._by_group[self.roles.group(site)]

    def of_draw(self, site: Site) -> Tensor:
        """Words in a shape that broadcasts with the draw."""
        word, event_dim = self.of(site), site["fn"].event_dim
        batch_dim = site["value"].dim() - event_dim
        word = word.reshape(word.shape[max(0, word.dim() - batch_dim) :])
        return word.reshape(word.shape + (1,) * event_dim)


def distinct_words(number: int) -> tuple[Tensor, int]:
    """Words of which none has all bits of another, and how many bits these take, the fewest.

    They are those with half of the bits set (Sperner's theorem).

    :param int number: Number N of words.
    :returns: The words as integers, [N], and the number of bits.
    """
    num_bits = next(t for t in count() if math.comb(t, t // 2) >= number)
    weight = torch.zeros(1, dtype=torch.int8)  # numbers of bits of 0, 1, 2, ...
    for _ in range(num_bits):
        weight = torch.cat([weight, weight + 1])
    return (weight == num_bits // 2).nonzero()[:number, 0], num_bits


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
    words: "_Words",
) -> None:
    """By derivatives: those of a density by draws of other data must be 0."""
    local = roles.local(model_trace), roles.local(guide_trace)
    terms = [
        (term, words.of(local[i][name]))
        for (i, name), term in _local_densities((model_trace, guide_trace), roles).items()
        if term.requires_grad
    ]
    names = [name for name, value in draws.items() if value.requires_grad and name in local[1]]
    if not terms or not names:
        return
    for bit in range(words.num_bits):
        chosen = reduce(add, (term.where(~_has(w, bit, term), 0.0).sum() for term, w in terms))
        try:
            gradients = torch.autograd.grad(
                chosen, [draws[n] for n in names], retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # a graph that cannot be gone through twice
            return
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is None:
                continue
            other = _has(words.of_draw(local[1][name]), bit, gradient)
            if bool((other & (gradient != 0) & gradient.isfinite()).any()):
                raise _coupled(roles, name)
