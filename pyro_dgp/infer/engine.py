r"""The importance-weighted bound of any Pyro model and guide, with a gradient estimator.

For each datum n, the guide draws z_1, ..., z_K, the estimator chooses the values that the densities
are given in their place, the model is run on these,

.. math::
    \log w_{nk} = \log p(x_n, z_{nk}) - \log q(z_{nk}), \qquad
    L_K = \frac NB \sum_n \log \frac1K \sum_k w_{nk} \;-\; \mathrm{KL}(all\ other\ sites),

and the coefficients of the weights define the surrogate whose gradient is the estimate.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from pyro.infer import ELBO
from pyro.infer.util import torch_backward
from pyro.poutine import Trace
from pyro.util import warn_if_nan
from torch import Tensor

from pyro_dgp._checks import check_integer
from pyro_dgp.infer.bounds import Bound, WeightDiagnostics, weight_diagnostics
from pyro_dgp.infer.buffers import untouched_buffers
from pyro_dgp.infer.estimates import estimate
from pyro_dgp.infer.estimators import Estimator
from pyro_dgp.infer.running import NewStructure, Runs, chunks
from pyro_dgp.infer.samples import is_collision
from pyro_dgp.infer.structure.broadcasting import UNKNOWN, wrong_broadcasting, wrongly_broadcast
from pyro_dgp.infer.structure.inspection import Structure, both_traces
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["ImportanceWeightedELBO"]


# Evaluations before which the structure of model and guide is examined again: at first, weights may
# be 0 or modules in another mode than in training.
_LOOKS = (10, 100, 1000, 10_000)


class ImportanceWeightedELBO(ELBO):
    """A bound and a gradient estimator; for parameters see
    :class:`~pyro_dgp.infer.elbo.PartiallyCollapsedIWELBO`.
    """

    def __init__(
        self,
        K: int,
        num_particles: int = 1,
        beta: float = 0.0,
        piwae: bool = False,
        chunk_size: int | None = None,
        max_plate_nesting: int | float = math.inf,
        vectorize_particles: bool = True,
        retain_graph: bool | None = None,
        alpha: float = 0.0,
    ) -> None:
        num_particles = check_integer("num_particles", num_particles, 1)
        super().__init__(num_particles=num_particles, retain_graph=retain_graph)
        self.K = check_integer("K", K, 1)
        self.beta, self.piwae, self.alpha = beta, piwae, alpha
        _ = self.bound  # refuses options out of range
        self.chunk_size = None if chunk_size is None else check_integer("chunk_size", chunk_size, 1)
        self.max_plate_nesting = max_plate_nesting
        self.vectorize_particles = vectorize_particles
        self._structure: Structure | None = None
        self._log_weights: Tensor | None = None
        self._num_evaluations = 0

    #: Whether local draws may have no gradient.
    scores = False

    @property
    def estimator(self) -> Estimator:
        """How the bound is differentiated."""
        raise NotImplementedError

    @property
    def bound(self) -> Bound:
        """The bound as a function of log weights."""
        return Bound(self.num_particles, self.K, self.beta, self.piwae, self.alpha)

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """The negative bound, without gradients."""
        with torch.no_grad():
            return self._item(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """The negative bound; adds the gradient estimate to the parameters' ``.grad``."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        torch_backward(loss, self.retain_graph)
        return self._item(loss)

    def differentiable_loss(
        self, model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The negative bound as a scalar whose derivative is the gradient estimate.

        :raises ValueError: If nothing is observed or a latent site is missing in the guide.
        :raises NotImplementedError: If the structure of model and guide, or a guide distribution,
            is not supported; the message names the site and a remedy.
        """
        self._num_evaluations += 1
        if self._num_evaluations in _LOOKS:
            self._structure = None
        for _ in range(2):
            roles = self._get_structure(model, guide, args, kwargs).roles
            sets = self._num_sets(roles)
            runs = Runs(
                model, guide, args, kwargs, roles, self.estimator, sets,
                self.num_particles * self.K // sets, self.vectorize_particles,
            )  # fmt: skip
            try:
                value, log_weights = estimate(
                    self.bound, runs, self._chunks(roles), twice=self.chunk_size is not None
                )
                self._log_weights = log_weights
                return -value
            except NewStructure:
                # The plates of the sites depend on the arguments: examine the structure again.
                self._structure = None
            except ValueError as error:
                # So they do if plates now use the dimension of the samples.
                if not is_collision(error):
                    raise
                self._structure = None
        raise NotImplementedError(
            "The plates of the model's or the guide's sites differ between two runs with the same "
            "arguments, so the importance weights have no fixed plates: let each site stand in the "
            "same plates in every run."
        )

    def weight_diagnostics(self) -> WeightDiagnostics:
        """How unequal the importance weights of the last evaluation were.

        :returns: Effective sample size, largest normalised weight and Pareto k, each [M, ...] with
            the dimensions of the data plates, or [M, number of data] if one of them is sequential;
            ``advice()`` explains them.
        :raises RuntimeError: If nothing has been evaluated yet.
        """
        if self._log_weights is None:
            raise RuntimeError("There are no weights yet: evaluate the loss first.")
        return weight_diagnostics(self._log_weights)

    def _chunks(self, roles: Roles) -> list[slice]:
        """The M K samples, split into runs of model and guide."""
        number = self.num_particles * self.K
        size = (self.chunk_size or number) if self.vectorize_particles else 1
        if not roles.sets_together:
            size = min(size, self.K)
        return chunks(self._num_sets(roles), number, size)

    def _num_sets(self, roles: Roles) -> int:
        """Number of draws that the M estimates need of the sites that are not local."""
        return self.num_particles if roles.averaged else 1

    def _get_trace(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> tuple[Trace, Trace]:
        """Required by Pyro's abstract class; the estimates do not use it."""
        return both_traces(model, guide, args, kwargs)

    def _get_structure(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> Structure:
        piwae = self.piwae and self.num_particles > 1
        # With several weights in a logarithm, each must depend on one datum only.
        options = {
            "independent": (self.K > 1 and self.beta < 1) or piwae,
            "piwae": piwae,
            "scored": self.scores,
        }
        if self._structure is None or not self._structure.fits(model, guide, options):
            with untouched_buffers():
                found = Structure.of(model, guide, args, kwargs, self.max_plate_nesting, options)
                if self.vectorize_particles and self.num_particles * self.K > 1:
                    found = _broadcasting(found, model, guide, args, kwargs)
            _warn_of_options_without_effect(self, found)
            self._structure = found
        return self._structure

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_structure": None, "_log_weights": None}

    @staticmethod
    def _item(loss: Tensor) -> float:
        value = loss.item()
        warn_if_nan(value, "loss")  # pyright: ignore[reportCallIssue, reportArgumentType]
        return value


def _broadcasting(
    structure: Structure, model: Callable, guide: Callable, args: tuple, kwargs: dict
) -> Structure:
    """Refuses models that do not broadcast over samples, and finds those that do not over sets."""
    roles = structure.roles
    if structure.has_local_draws:
        name = wrongly_broadcast(model, guide, args, kwargs, roles)
        if name not in (None, UNKNOWN):
            raise wrong_broadcasting(name)
    if roles.averaged:
        name = wrongly_broadcast(model, guide, args, kwargs, roles, num_sets=2)
        structure = replace(structure, roles=replace(roles, sets_together=name is None))
    return structure


def _warn_of_options_without_effect(loss: ImportanceWeightedELBO, structure: Structure) -> None:
    given = {"K": loss.K > 1, "beta": loss.beta > 0, "alpha": loss.alpha > 0}
    given["num_particles"] = loss.num_particles > 1 and not structure.roles.averaged
    names = ", ".join(name for name, is_given in given.items() if is_given)
    if names and not structure.has_local_draws:
        warnings.warn(
            "No latent site is drawn in the data plate, so there are no importance weights: "
            f"{names} can do nothing. (num_particles averages over draws of global sites.)",
            stacklevel=5,
        )
