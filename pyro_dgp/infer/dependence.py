"""Which sites depend on which draws: what that says of their roles, and what has no estimate."""

from dataclasses import dataclass, field, replace

import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from pyro_dgp.infer.coupling import refuse_coupling
from pyro_dgp.infer.densities import closed_form_kl
from pyro_dgp.infer.graph import nodes
from pyro_dgp.infer.rerun import Rerun, equal
from pyro_dgp.infer.roles import Roles, check_sites
from pyro_dgp.infer.sites import (
    is_drawn,
    is_random,
    log_prob,
    plates_of,
    random_sites,
    tensors_of,
)

__all__ = ["find_roles", "marked_draws"]

# Runs with other draws that show what reads them, every other far away, as what is read may lie
# behind a threshold; discrete ones (True) may be the same again.
_NUM_REDRAWN = {False: 4, True: 10}


class marked_draws(Messenger):
    """Cuts the guide's draws off from what they are made of, so that dependence on each shows.

    A trace inside this handler has the marked draws.
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
    """The roles of all sites, by their plates and by what depends on what.

    :param Trace model_trace: A run without importance samples, replayed against ``guide_trace``.
    :param Trace guide_trace: A run inside :class:`marked_draws`.
    :param Rerun rerun: For further runs.
    :param bool independent: Each datum's weight must depend on its own draws only.
    :param bool piwae: Refuse global draws that the weights depend on.
    :param bool scored: Local draws need no reparameterisation.
    :raises NotImplementedError: If a structure has no right estimate: names the sites and the
        remedy.
    """
    check_sites(random_sites(model_trace), random_sites(guide_trace))
    reads = _Reads.of(model_trace, guide_trace)
    marked = frozenset(
        name
        for trace in (model_trace, guide_trace)
        for name, site in random_sites(trace).items()
        if site["infer"].get("shared")
    )
    unread = reads.draws.keys() - reads.needed() - marked
    # What no density depends on differentiably, it may depend on otherwise.
    discrete = any(not reads.draws[name].is_floating_point() for name in unread)
    if unread and any(
        _reads_anyhow(model_trace, guide_trace, rerun, unread, seed)
        for seed in range(_NUM_REDRAWN[discrete])
    ):
        unread = set()
    sites = random_sites(guide_trace)
    plated = {name for name in reads.draws if plates_of(sites[name])}
    while True:
        once = marked | unread
        free = frozenset(n for n in reads.observed if not reads.by[n] & (plated - once))
        roles = Roles.of(model_trace, guide_trace, once, free, scored)
        # An unread draw whose density reads a local one has to stand in the weights with it.
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

    :param dict draws: The marked draws.
    :param dict by: For each site, draws other than its own.
    :param set observed: Observed sites.
    :param dict deltas: The draws of which points are made that the guide hands out.
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
                except (KeyError, NotImplementedError):  # a flow that knows its own draws only
                    density = tensors_of(site["fn"])
                by = read([site["value"], *density]) - {name}
                found.by.setdefault(name, set()).update(by)
                if site["is_observed"]:
                    found.observed.add(name)
                elif name not in found.draws:
                    found.deltas.setdefault(name, read([site["value"]]))
        return found

    def needed(self) -> set[str]:
        """Draws that an observation depends on, be it by way of other draws' densities."""
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
    """Whether the model's densities at other sites are not the same with other draws at these."""
    others = rerun.others(guide_trace, seed)
    try:
        again, _ = rerun.with_draws({name: others[name] for name in names & others.keys()})
    except (RuntimeError, ValueError):  # that a value does not fit has been read off it
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
    """AutoDiagonalNormal and its kin draw all latents at once and hand them out as Deltas: drawn
    once, they would give K equal weights."""
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
    """Sites with one draw cannot read those with K; with two bounds, nor the other way round."""
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
