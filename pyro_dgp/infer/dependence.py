"""Which sites depend on which draws, and which such structures have no right estimate."""

import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_dgp.infer.particles import WeightPlates, delta, is_random, log_prob, random_sites
from pyro_dgp.infer.paths import nodes

__all__ = ["marked_draws", "refuse_dependence"]


class marked_draws(Messenger):
    """Cuts the guide's draws off from what they are made of, so that dependence on each shows.

    A trace inside this handler has the marked draws.
    """

    def _pyro_post_sample(self, msg):
        value = msg["value"]
        drawn = is_random(msg) and not msg["is_observed"] and delta(msg["fn"]) is None
        if drawn and isinstance(value, Tensor) and value.is_floating_point():
            msg["value"] = value.detach().clone().requires_grad_()


@torch.enable_grad()
def refuse_dependence(
    model_trace: Trace, guide_trace: Trace, weight_plates: WeightPlates, piwae: bool = False
) -> None:
    """Refuses local sites that are not drawn where they stand, and globals that see K draws.

    :param Trace model_trace: A run without importance samples, replayed against ``guide_trace``.
    :param Trace guide_trace: A run inside :class:`marked_draws`.
    :param bool piwae: Refuse global draws that the weights depend on, too.
    :raises NotImplementedError: Names the sites and the remedy.
    """
    draws = {
        id(site["value"]): (name, weight_plates.is_local(site), site["infer"].get("is_auxiliary"))
        for name, site in random_sites(guide_trace).items()
        if delta(site["fn"]) is None and not site["is_observed"]
    }

    def sources(*tensors: Tensor) -> list[tuple[str, bool, bool]]:
        found = (id(node.variable) for node in nodes(tensors, ()) if hasattr(node, "variable"))
        return [draws[i] for i in found if i in draws]

    for name, site in random_sites(guide_trace).items():
        if weight_plates.is_local(site) and delta(site["fn"]) is not None:
            found = sources(site["value"])
            joint = [n for n, is_local, is_auxiliary in found if is_auxiliary and not is_local]
            if joint:
                # AutoDiagonalNormal and its kin draw all latents at once and hand them out as
                # Deltas: drawn once, they would give K equal weights.
                raise NotImplementedError(
                    f"The guide draws the local latent site '{name}' as a part of '{joint[0]}', "
                    "outside its plate, so it cannot be drawn K times. Use AutoNormal, or a guide "
                    "that samples it inside the plate."
                )
    for trace in (guide_trace, model_trace):
        for name, site in random_sites(trace).items():
            try:
                found = sources(site["value"], log_prob(site, site["value"]))
            except (KeyError, NotImplementedError):  # a flow that knows its own draws only
                continue
            if not weight_plates.is_local(site):
                local = [n for n, is_local, _ in found if is_local]
                if local:
                    raise NotImplementedError(
                        f"Site '{name}' stands outside the plates of the importance weights but "
                        f"depends on the local latent site '{local[0]}', which has K draws. Put it "
                        f"into the plate(s) {sorted(weight_plates.names)}, or use Trace_ELBO."
                    )
            elif piwae:
                shared = [n for n, is_local, _ in found if not is_local]
                if shared:
                    raise NotImplementedError(
                        f"The local site '{name}' depends on the global latent site '{shared[0]}', "
                        "whose gradient would follow neither of PIWAE's two bounds; leave out "
                        "piwae=True, or make the global latent a parameter."
                    )
