"""Samples of a run: how they are drawn, and their contribution to the bound."""

from functools import partial
from typing import NamedTuple

import torch
from pyro.poutine import Trace
from pyro.poutine.plate_messenger import PlateMessenger
from pyro.poutine.runtime import Message, default_process_message
from torch import Tensor

from pyro_dgp.infer.bounds import Coefficients
from pyro_dgp.infer.paths import Gates, refuse_tracing, weighted_copy
from pyro_dgp.infer.sites import SAMPLES, is_random, shown_elements
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["SamplePlate", "Samples", "Terms", "is_collision"]

#: Terms of log w, each with the group of local sites (:meth:`Roles.group`) it belongs to.
Terms = list[tuple[tuple, Tensor]]


class SamplePlate(PlateMessenger):
    """A plate of importance samples, to the left of all others, for the local sites.

    Other sites have one draw for all samples of a set. If there are several sets, those on which
    other terms depend are in this plate, too, with equal values within a set.

    :param Roles roles: The roles of the sites.
    :param int size: Number of samples.
    :param int num_sets: Number of sets, of equally many samples each.
    """

    def __init__(self, roles: Roles, size: int, num_sets: int = 1) -> None:
        super().__init__(SAMPLES, size, dim=-1 - roles.nesting)
        self.roles, self.num_sets = roles, num_sets

    def _process_message(self, msg: Message) -> None:
        if self._is_local(msg):
            super()._process_message(msg)
        elif self.num_sets > 1 and msg.get("name") in self.roles.averaged:
            super()._process_message(msg)
            if msg.get("value") is None:
                self._draw_by_set(msg)

    def _draw_by_set(self, msg: Message) -> None:
        """Draws one value per set, and repeats it for the samples of the set."""
        default_process_message(msg)
        value, K = msg.get("value"), self.size // self.num_sets
        if value is not None:
            msg["value"] = value[::K].repeat_interleave(K, 0)

    def _is_local(self, msg: Message) -> bool:
        return is_random(msg) and self.roles.is_local(msg)

    def _postprocess_message(self, msg: Message) -> None:
        pass


def is_collision(error: Exception) -> bool:
    """Whether the error is that a plate of the model uses the dimension of the samples."""
    return SAMPLES in str(error) and "collide" in str(error)


class _PathWeights:
    """Factors of the gradient of local draws between the densities and the sampler.

    Holds no tensor of the graph in which its hooks are, as that graph could not be freed then.
    """

    coefficients: Coefficients
    columns: dict[tuple, tuple[slice, torch.Size]]

    def weigh(self, site: "_Site", gradient: Tensor) -> Tensor:
        """The gradient for the sampler, from the one by the densities' copy of the draw."""
        columns, shape = self.columns[site.group]
        batch_dim = gradient.dim() - site.event_dim

        def like_batch(x: Tensor) -> Tensor:
            x = x[:, columns].reshape(-1, *shape)
            return x.reshape(x.shape[max(0, x.dim() - batch_dim) :])

        coefficients = self.coefficients.map(like_batch)

        def weighed(doubly):
            factor = coefficients.factor(doubly).to(gradient.dtype)
            return gradient * factor.reshape(factor.shape + (1,) * site.event_dim)

        if site.shown is None:
            return weighed(site.doubly)
        if site.hidden_is_unused and bool(gradient.masked_fill(site.shown, 0.0).any()):
            raise NotImplementedError(
                f"The guide's local site '{site.name}' is masked, but the model reads what the "
                "mask hides, and local sites that depend on each other are masked differently: no "
                "doubly reparameterised gradient is known. Mask the model's sites as the guide's, "
                "or use PartiallyCollapsedIWELBO."
            )
        # A draw that is masked in the guide has no score.
        return weighed(site.doubly).where(site.shown, weighed(0.0))


class _Site(NamedTuple):
    """Data of a site that are needed to weigh the gradient of its draw."""

    name: str
    group: tuple
    event_dim: int
    doubly: Tensor | float
    shown: Tensor | None
    hidden_is_unused: bool


class Samples:
    """Some of the M K samples: the draws of one run of the guide, and then their densities.

    :param slice rows: Indices of the samples.
    :param torch.Tensor log_p: The model's part of log w, [samples, number of data].
    :param torch.Tensor log_q: The guide's part of log w, [samples, number of data].
    :param torch.Tensor log_scored: The part of log q whose draws have no gradient, [samples, number
        of data]; None if all have one.
    :param torch.Tensor outside: The part of the bound outside the logarithms; 0 where these sites
        have the draws of another run.
    :param float scale: Scale N/B of the minibatch.
    """

    log_p: Tensor
    log_q: Tensor
    log_scored: Tensor | None
    outside: Tensor
    scale: float

    def __init__(self, rows: slice, guide_trace: Trace, gates: Gates) -> None:
        self.rows, self.guide_trace, self.gates = rows, guide_trace, gates
        self.roles = gates.roles
        self.sites = self.roles.local(guide_trace)
        self.path_weights = _PathWeights()

    def copy(
        self,
        name: str,
        doubly: Tensor | float,
        hidden_is_unused: bool = False,
        value: Tensor | None = None,
    ) -> Tensor:
        """A copy of a local draw for the densities; its gradient is weighed on its way back.

        :param str name: Name of the site.
        :param doubly: 1 for the doubly reparameterised gradient and 0 for the ordinary one; see
            :meth:`~pyro_dgp.infer.bounds.Coefficients.guide`.
        :param bool hidden_is_unused: Whether masked elements must have no gradient.
        :param torch.Tensor value: The draw with another graph; None for the guide's.
        :raises NotImplementedError: If ``torch.jit.trace`` is on.
        """
        refuse_tracing()
        site = self.sites[name]
        group, event_dim = self.roles.group(site), site["fn"].event_dim
        weighed = _Site(name, group, event_dim, doubly, shown_elements(site), hidden_is_unused)
        value = site["value"] if value is None else value
        return weighted_copy(value, partial(self.path_weights.weigh, weighed))

    def set_densities(self, log_p: Terms, log_q: Terms, scored: Terms) -> None:
        """Sums the terms of each group; the data of all groups are concatenated."""
        num_samples = self.rows.stop - self.rows.start
        lists = (log_p, log_q, scored) if scored else (log_p, log_q)
        sums: list[dict[tuple, Tensor]] = [{} for _ in lists]
        for total, terms in zip(sums, lists, strict=True):
            for group, term in terms:
                term = term.reshape((1,) * (1 + self.roles.nesting - term.dim()) + term.shape)
                total[group] = total[group] + term if group in total else term
        pieces: list[list[Tensor]] = [[] for _ in lists]
        self.path_weights.columns, stop = {}, 0
        for group in sums[0] | sums[1]:
            some = next(total[group] for total in sums if group in total)
            parts = [total[group] if group in total else some.new_zeros(()) for total in sums]
            shape = torch.broadcast_shapes(*(part.shape for part in parts))[1:]
            start, stop = stop, stop + shape.numel()
            self.path_weights.columns[group] = slice(start, stop), shape
            for piece, part in zip(pieces, parts, strict=True):
                piece.append(part.expand(num_samples, *shape).reshape(num_samples, -1))
        self.log_p, self.log_q, *log_scored = (
            _side_by_side(piece, num_samples) for piece in pieces
        )
        self.log_scored = log_scored[0] if scored else None

    @property
    def columns(self) -> dict[tuple, tuple[slice, torch.Size]]:
        """The columns of each group's data, and the shape of its plates."""
        return self.path_weights.columns

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """log w, [samples, number of data], and the outside part, without their graphs."""
        return (self.log_p - self.log_q).detach(), self.outside.detach()

    def surrogate(self, coefficients: Coefficients) -> Tensor:
        """A scalar whose gradient is that of the bound through these samples."""
        coefficients = self.path_weights.coefficients = coefficients.map(lambda x: x[self.rows])
        local: Tensor | float = 0.0
        terms = [(coefficients.model, self.log_p), (-coefficients.guide(), self.log_q)]
        if self.log_scored is not None and coefficients.signal is not None:
            terms.append((coefficients.signal, self.log_scored))
        for weight, log_density in terms:
            # Where a weight underflows, log w may be -inf and 0 * log w NaN.
            local = local + (weight * log_density.masked_fill(weight == 0, 0.0)).sum()
        return self.scale * local + self.outside


def _side_by_side(pieces: list[Tensor], num_samples: int) -> Tensor:
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(pieces or [torch.zeros(num_samples, 0)], 1)
