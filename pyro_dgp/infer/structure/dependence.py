"""Which sites depend on which draws; their roles follow, and structures without an estimate."""

from dataclasses import dataclass, field, replace

import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from pyro_dgp.infer.densities import closed_form_kl
from pyro_dgp.infer.graph import nodes
from pyro_dgp.infer.sites import (
    is_drawn,
    is_random,
    log_prob,
    plates_of,
    random_sites,
    tensors_of,
)
from pyro_dgp.infer.structure.coupling import refuse_coupling
from pyro_dgp.infer.structure.rerun import Rerun, equal
from pyro_dgp.infer.structure.roles import Roles, check_sites

__all__ = ["find_roles", "marked_draws"]

# Number of runs with other draws, to see which densities change. Every second run has distant
# draws, as a density may depend on a draw beyond a threshold only. Discrete draws (True) may come
# out the same, so they take more runs.
_NUM_REDRAWN = {False: 4, True: 10}


class marked_draws(Messenger):
    """Detaches the draws of the guide from their parameters, so that each is a leaf of the graph.

    Densities can then be asked which draws they depend on. A trace inside this handler has the
    marked draws.
    """

    def _pyro_post_sample(self, msg: Message) -> None:
        if is_random(msg) and is_drawn(msg) and msg["value"].is_floating_point():
            msg["value"] = msg["value"].detach().clone().requires_grad_()


@torch.enable_grad()
def find_roles(
    model_trace: Trace,
    guide_trace: Trace,
    rerun: Rerun,
    *,
    independent: bool,
    piwae: bool = False,
    scored: bool = False,
) -> Roles:
    """The roles of all sites, by their plates and by their dependences.

    :param Trace model_trace: A run without importance samples, replayed against ``guide_trace``.
    :param Trace guide_trace: A run inside :class:`marked_draws`.
    :param Rerun rerun: Further runs of model and guide.
    :param bool independent: Whether each datum's weight must depend on its own draws only.
    :param bool piwae: Whether to refuse global draws that the weights depend on.
    :param bool scored: Whether local draws need no reparameterisation.
    :raises NotImplementedError: If there is no correct estimate for a structure; names the sites
        and a remedy.
    """
    check_sites(random_sites(model_trace), random_sites(guide_trace))
    reads = _Reads.of(model_trace, guide_trace)
    marked = frozenset(
        name
        for trace in (model_trace, guide_trace)
        for name, site in random_sites(trace).items()
        if site["infer"].get("shared")
    )
    sites = random_sites(guide_trace)
    plated = {name for name in reads.draws if plates_of(sites[name])}
    unread = reads.draws.keys() - reads.needed() - marked
    if any(map(plates_of, [*sites.values(), *random_sites(model_trace).values()])):
        unread &= plated  # the others are global, whether they are read or not
    # A density may depend on a draw without having a derivative by it.
    discrete = any(not reads.draws[name].is_floating_point() for name in unread)
    if unread and any(
        _reads_anyhow(model_trace, guide_trace, rerun, unread, seed)
        for seed in range(_NUM_REDRAWN[discrete])
    ):
        unread = set()
    while True:
        once = marked | unread
        free = frozenset(n for n in reads.observed if not reads.by[n] & (plated - once))
        roles = Roles.of(model_trace, guide_trace, once, free, scored)
        # An unread draw whose density depends on a local one must be in the weights with it.
        local = {name for name in reads.draws if roles.is_local(sites[name])}
        beside = {name for name in unread if reads.by[name] & local}
        if not beside:
            break
        unread -= beside

    _refuse_joint_draws(guide_trace, roles, reads)
    _refuse_reading(model_trace, guide_trace, roles, reads, piwae)
    if independent:
        refuse_coupling(model_trace, guide_trace, roles, reads.draws, rerun)
    averaged = {
        name
        for name in reads.draws
        if not roles.is_local(sites[name])
        and (
            any(name in of for of in reads.by.values())
            or not _has_kl(name, model_trace, guide_trace)
        )
    }
    hidden = {
        (i, name): site["mask"] is False
        for i, trace in enumerate((model_trace, guide_trace))
        for name, site in random_sites(trace).items()
    }
    return replace(roles, averaged=frozenset(averaged), hidden=hidden)


@dataclass
class _Reads:
    """Which draws of the guide the densities of each site depend on, by name.

    :param dict draws: The marked draws, by site.
    :param dict by: Names of the draws that the density of each site depends on, without its own.
    :param set observed: Names of the observed sites.
    :param dict deltas: Names of the draws from which each Delta of the guide is computed.
    """

    draws: dict[str, Tensor]
    by: dict[str, set[str]] = field(default_factory=dict)
    observed: set[str] = field(default_factory=set)
    deltas: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, model_trace: Trace, guide_trace: Trace) -> "_Reads":
        sites = random_sites(guide_trace)
        found = cls({name: site["value"] for name, site in sites.items() if is_drawn(site)})
        names = {id(value): name for name, value in found.draws.items()}

        def read(tensors: list) -> set[str]:
            graph = nodes([x for x in tensors if isinstance(x, Tensor)], ())
            leaves = (id(node.variable) for node in graph if hasattr(node, "variable"))
            return {names[leaf] for leaf in leaves if leaf in names}

        for trace in (guide_trace, model_trace):
            for name, site in random_sites(trace).items():
                try:
                    density = [log_prob(site, site["value"])]
                except (
                    KeyError,
                    NotImplementedError,
                ):  # a flow whose density is known at its own draws only
                    density = tensors_of(site["fn"])
                by = read([site["value"], *density]) - {name}
                found.by.setdefault(name, set()).update(by)
                if site["is_observed"]:
                    found.observed.add(name)
                elif name not in found.draws:
                    found.deltas.setdefault(name, read([site["value"]]))
        return found

    def needed(self) -> set[str]:
        """Draws that an observation depends on, also through the densities of other draws."""
        needed: set[str] = set()
        todo = [*self.observed, *self.deltas]
        while todo:
            new = self.by.get(todo.pop(), set()) - needed
            needed |= new
            todo += new
        return needed


def _reads_anyhow(
    model_trace: Trace, guide_trace: Trace, rerun: Rerun, names: set[str], seed: int
) -> bool:
    """Whether densities of the model's other sites change when these sites have other draws."""
    others = rerun.others(guide_trace, seed)
    try:
        again, _ = rerun.with_draws({name: others[name] for name in names & others.keys()})
    except (RuntimeError, ValueError):  # a value that is refused has been read
        return True
    a, b = random_sites(model_trace), random_sites(again)
    return a.keys() != b.keys() or any(
        not equal(log_prob(a[name], a[name]["value"]), log_prob(b[name], b[name]["value"]))
        for name in a.keys() - names
    )


def _has_kl(name: str, model_trace: Trace, guide_trace: Trace) -> bool:
    model_site = random_sites(model_trace).get(name)
    if model_site is None:
        return False
    return closed_form_kl(random_sites(guide_trace)[name], model_site) is not None


def _refuse_joint_draws(guide_trace: Trace, roles: Roles, reads: _Reads) -> None:
    """AutoDiagonalNormal and similar guides draw all latents at once and return them as Deltas:
    drawn once, they would give K equal weights."""
    sites = random_sites(guide_trace)
    for name, sources in reads.deltas.items():
        if not roles.is_local(sites[name]):
            continue
        for source in sources:
            site = sites[source]
            if site["infer"].get("is_auxiliary") and not roles.is_local(site):
                raise NotImplementedError(
                    f"The guide draws the local latent site '{name}' as a part of '{source}', "
                    "outside its plate, so it cannot be drawn K times. Use AutoNormal, or a guide "
                    "that samples it inside the plate."
                )


def _refuse_reading(
    model_trace: Trace, guide_trace: Trace, roles: Roles, reads: _Reads, piwae: bool
) -> None:
    """Sites with one draw cannot depend on those with K; with two bounds, nor the reverse."""
    guide_sites = random_sites(guide_trace)
    local_draws = {name for name in reads.draws if roles.is_local(guide_sites[name])}
    for name, site in (guide_sites | random_sites(model_trace)).items():
        read = reads.by[name]
        if not roles.is_local(site):
            if read & local_draws:
                raise NotImplementedError(
                    f"Site '{name}' stands outside the plates of the importance weights but "
                    f"depends on the local latent site '{min(read & local_draws)}', which has K "
                    f"draws. Put it into the plate(s) {sorted(roles.plates)}, or use Trace_ELBO."
                )
        elif piwae and read - local_draws:
            raise NotImplementedError(
                f"The local site '{name}' depends on the global latent site "
                f"'{min(read - local_draws)}', whose gradient would follow neither of PIWAE's two "
                "bounds; leave out piwae=True, or make the global latent a parameter."
            )
