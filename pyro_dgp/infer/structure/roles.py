"""The role of each site: drawn K times within the weights, or once outside of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from pyro.distributions import Unit
from pyro.poutine import Trace
from pyro.poutine.indep_messenger import CondIndepStackFrame

from pyro_dgp.infer.sites import (
    SAMPLES,
    Site,
    is_reparameterised,
    max_plate_nesting,
    plates_of,
    random_sites,
)

__all__ = ["Role", "Roles", "check_sites"]


class Role(Enum):
    """How often a site is drawn, and where it enters the bound."""

    #: In the data plate, K draws per datum, in the importance weights.
    LOCAL = "local"
    #: In the data plate, one draw per datum for all K samples, outside the logarithm.
    SHARED = "shared"
    #: Outside the data plate, one draw, outside the logarithm.
    GLOBAL = "global"


@dataclass(frozen=True)
class Roles:
    """The roles of the sites of a model and guide.

    :param frozenset plates: Names of the plates of the importance weights: those common to all
        observed sites that depend on a local draw, and to all latent sites that share a plate with
        one of these.
    :param bool joint: Whether no site is in a plate, so that there is one weight.
    :param int nesting: Number of dimensions of plates; samples are in the next one to their left.
    :param frozenset once: Latent sites that would be local by their plates, but are drawn once:
        those marked with ``infer={"shared": True}`` and those on whose draw no observation depends.
    :param frozenset free: Observed sites that depend on no local draw; they may be in any plates.
    :param bool scored: Whether local sites need no reparameterisation.
    :param frozenset averaged: Latent sites that are not local, but on which other terms depend, so
        that each of the M estimates needs its own draw of them.
    :param bool sets_together: Whether several estimates may be drawn in one run, as model and guide
        broadcast over draws of those sites.
    """

    plates: frozenset[str]
    joint: bool
    nesting: int
    once: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    scored: bool = False
    averaged: frozenset[str] = frozenset()
    sets_together: bool = True
    #: All sites of model (0) and guide (1) when the roles were found, and whether a mask hid them.
    hidden: dict[tuple[int, str], bool] = field(default_factory=dict, compare=False, repr=False)
    #: The frames of the plates of all sites, as last seen.
    _places: dict = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        model_trace: Trace,
        guide_trace: Trace,
        once: frozenset[str] = frozenset(),
        free: frozenset[str] = frozenset(),
        scored: bool = False,
    ) -> "Roles":
        """Finds the weight plates from traces and refuses structures that have none.

        :param Trace model_trace: A run of the model.
        :param Trace guide_trace: A run of the guide.
        :param frozenset once: Latent sites to be drawn once, see :class:`Roles`.
        :param frozenset free: Observed sites that may be in any plates, see :class:`Roles`.
        :param bool scored: Whether local sites need no reparameterisation.
        :raises NotImplementedError: If the plates of observed and local sites have none in common,
            a plate inside the weights subsamples, model and guide put a site into different plates,
            or a guide site is not reparameterised; see also :func:`check_sites`.
        """
        model_sites, guide_sites = random_sites(model_trace), random_sites(guide_trace)
        observed, latent = check_sites(model_sites, guide_sites)
        nesting = max_plate_nesting((model_trace, guide_trace))
        plates = {name: frozenset(plates_of(s)) for name, s in {**observed, **latent}.items()}
        if not any(plates.values()):
            found = cls(frozenset(), bool(latent.keys() - once), nesting, once, free, scored)
            _check_reparameterised(found, guide_sites)
            return found
        latent_plates = {name: plates[name] for name in latent if name not in once}
        common = _common_plates(
            {name: plates[name] for name in observed.keys() - free or observed}, latent_plates
        )
        found = cls(common, False, nesting, once, free, scored)
        _check_reparameterised(found, guide_sites)
        for name in latent.keys() & model_sites.keys():
            _check_places(found, name, model_sites[name], guide_sites[name])
        for name, site in {**observed, **latent}.items():
            _refuse_subsampling(found, name, site)
        return found

    def role(self, site: Site) -> Role:
        """The role of a site of a trace, or of a message."""
        names = {frame.name for frame in site["cond_indep_stack"]}
        inside = self.joint or (bool(self.plates) and self.plates <= names)
        if inside and site["name"] not in self.once:
            return Role.LOCAL
        return Role.SHARED if inside and not self.joint else Role.GLOBAL

    def is_local(self, site: Site) -> bool:
        """Whether a site is in the weights."""
        return self.role(site) is Role.LOCAL

    def hold(self, model_trace: Trace, guide_trace: Trace) -> bool:
        """Whether these roles also apply to another run; refuses what :meth:`of` refuses."""
        sites = [
            ((i, name), site)
            for i, trace in enumerate((model_trace, guide_trace))
            for name, site in random_sites(trace).items()
        ]
        # Dependences of a site that was masked have not been seen.
        if any(self.hidden.get(key) and s["mask"] is not False for key, s in sites):
            return False
        places = {
            key: tuple(_place(f) for f in site["cond_indep_stack"] if f.name != SAMPLES)
            for key, site in sites
        }
        if places != self._places:
            if max_plate_nesting((model_trace, guide_trace)) > self.nesting:
                return False
            # With a single datum, dependences between data have not been seen either.
            if any(
                old[:3] != new[:3] and old[2] == 1
                for key, frames in places.items()
                for old, new in zip(self._places.get(key, ()), frames, strict=False)
            ):
                return False
            found = Roles.of(model_trace, guide_trace, self.once, self.free, self.scored)
            if (found.plates, found.joint) != (self.plates, self.joint):
                return False
            self._places.clear()
            self._places.update(places)
        return True

    def local(self, trace: Trace) -> dict[str, Site]:
        """The random sites of a trace that are in the weights."""
        return {name: site for name, site in random_sites(trace).items() if self.is_local(site)}

    def group(self, site: Site) -> tuple:
        """The iterations of sequential weight plates in which a local site is.

        Sites of one group share a tensor of weights; without sequential plates there is one group.
        """
        frames = plates_of(site)
        return tuple(
            (name, _iteration(frames[name]))
            for name in sorted(self.plates & frames.keys())
            if not frames[name].vectorized
        )

    def scale(self, site: Site) -> float:
        """N/B of a local site: the product of full_size / size over the weight plates."""
        frames = [frame for name, frame in plates_of(site).items() if name in self.plates]
        return math.prod(f.full_size / f.size for f in frames if f.full_size is not None)

    def weight_dims(self, site: Site) -> dict[int, int]:
        """Sizes of the vectorised weight plates of a local site by their dimensions, from -1."""
        frames = [frame for name, frame in plates_of(site).items() if name in self.plates]
        return {frame.dim: frame.size for frame in frames if frame.dim is not None}


def _place(frame: CondIndepStackFrame) -> tuple:
    iteration = None if frame.vectorized else _iteration(frame)
    return frame.name, frame.dim, frame.size, frame.full_size, iteration


def _iteration(frame: CondIndepStackFrame) -> int:
    # The counter continues if a plate is iterated over again.
    return (frame.counter - 1) % frame.size


def _subsamples(frame: CondIndepStackFrame) -> bool:
    return frame.full_size not in (None, frame.size)


def _check_places(roles: Roles, name: str, model_site: Site, guide_site: Site) -> None:
    if roles.is_local(model_site) != roles.is_local(guide_site):
        raise NotImplementedError(
            f"Site '{name}' stands in plate(s) {sorted(plates_of(model_site))} in the model, "
            f"but in {sorted(plates_of(guide_site))} in the guide: give the guide's plates the "
            "names of the model's."
        )
    if roles.group(model_site) != roles.group(guide_site):
        raise NotImplementedError(
            f"Site '{name}' stands in iteration {roles.group(model_site)} of a sequential "
            f"plate in the model, but in {roles.group(guide_site)} in the guide: let both "
            "go through the plate in one order."
        )


def _check_reparameterised(roles: Roles, guide_sites: dict[str, Site]) -> None:
    for name, site in guide_sites.items():
        if is_reparameterised(site):
            continue
        local, remedy = roles.is_local(site), "use a distribution with rsample"
        if isinstance(site["fn"], Unit):
            local = False
            remedy = "pass has_rsample=True to pyro.factor if all draws that it reads are"
        if not (local and roles.scored):
            raise NotImplementedError(
                f"The guide's site '{name}' ({type(site['fn']).__name__}) is not "
                f"reparameterised; {remedy}, or use "
                f"{'VIMCOIWELBO' if local else 'TraceGraph_ELBO'}."
            )


def _refuse_subsampling(roles: Roles, name: str, site: Site) -> None:
    for frame in plates_of(site).values() if roles.is_local(site) else ():
        if frame.name not in roles.plates and _subsamples(frame):
            raise NotImplementedError(
                f"Plate '{frame.name}' of site '{name}' subsamples inside the importance "
                f"weights of plate(s) {sorted(roles.plates)}: a weight needs all of its data. "
                f"Subsample {sorted(roles.plates)} instead."
            )


def check_sites(
    model_sites: dict[str, Site], guide_sites: dict[str, Site]
) -> tuple[dict[str, Site], dict[str, Site]]:
    """The observed sites and the latent ones by name, including those of the guide only.

    :raises ValueError: If no site is observed or a latent site is missing in the guide.
    :raises NotImplementedError: If a site is enumerated, or an observed site is in the guide.
    """
    for name, site in [*model_sites.items(), *guide_sites.items()]:
        if site["infer"].get("enumerate"):
            raise NotImplementedError(
                f"Site '{name}' is enumerated, which importance-weighted ELBOs do not support; "
                "remove config_enumerate and marginalise the site by hand, or use TraceEnum_ELBO."
            )
    observed = {n: s for n, s in model_sites.items() if s["is_observed"]}
    latent = {n: s for n, s in model_sites.items() if not s["is_observed"]}
    if not observed:
        raise ValueError("The model observes nothing: pass the data, so that some site has `obs`.")
    missing = [name for name in latent if name not in guide_sites]
    if missing:
        raise ValueError(
            f"The model's latent site '{missing[0]}' is missing in the guide: sample it there."
        )
    for name in guide_sites:
        if name in observed:
            raise NotImplementedError(
                f"The model's observed site '{name}' stands in the guide too, so its density "
                "would cancel. Hide it from the guide (poutine.block), as after "
                "poutine.condition, or sample it in the model."
            )
    return observed, latent | {n: s for n, s in guide_sites.items() if n not in model_sites}


def _common_plates(observed: dict[str, frozenset], latent: dict[str, frozenset]) -> frozenset[str]:
    """The plates of the weights, from the plates of each site."""
    seen = frozenset().union(*observed.values())
    beside: Iterable[str] = [name for name, plates in latent.items() if plates & seen]
    common = frozenset.intersection(*observed.values(), *(latent[name] for name in beside))
    plated = [*beside, *(name for name, plates in latent.items() if plates)]
    if plated and not common:
        first = latent[plated[0]]
        odd = next((n for n, plates in observed.items() if not plates >= first), plated[-1])
        raise NotImplementedError(
            f"Site '{odd}' and the local latent site '{plated[0]}' have no plate in common "
            f"with the other sites ({sorted((observed | latent)[odd])} and {sorted(first)}), so "
            "no plate can carry the importance weights. Put all observed sites into the local "
            "latents' plate, or use Trace_ELBO."
        )
    return common
