"""Runs of a model and guide that draw importance samples and evaluate their densities."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace

from pyro_dgp.infer.densities import global_elbo, local_log_prob
from pyro_dgp.infer.estimators import Estimator
from pyro_dgp.infer.paths import Gates
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.infer.samples import SamplePlate, Samples, is_collision
from pyro_dgp.infer.sites import max_plate_nesting, subsample_sites, with_values
from pyro_dgp.infer.structure.inspection import both_traces, run_guide
from pyro_dgp.infer.structure.roles import Roles

__all__ = ["NewStructure", "Runs", "chunks"]


_NOT_OF_BROADCASTING = (
    NotImplementedError,
    torch.cuda.OutOfMemoryError,
    torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
)


class NewStructure(Exception):
    """The plates of the sites differ from those of the previous run."""


def chunks(num_sets: int, num_samples: int, most: int) -> list[slice]:
    """The samples of each run, which are either whole sets or a part of one set.

    :param int num_sets: Number of sets, of equally many samples.
    :param int num_samples: Number of samples in all sets.
    :param int most: Largest number of samples per run.
    """
    set_size, most = num_samples // num_sets, min(most, num_samples)
    if most >= set_size:
        starts = [*range(0, num_samples, most - most % set_size)]
    else:
        starts = [m * set_size + k for m in range(num_sets) for k in range(0, set_size, most)]
    stops = [*starts[1:], num_samples]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


@dataclass
class Runs:
    """Runs of model and guide that together draw all samples.

    All runs use the same minibatch, and runs of parts of one set use the same draws of the sites
    that are not local.

    :param model: The model.
    :param guide: The guide.
    :param tuple args: Arguments of model and guide.
    :param dict kwargs: Keyword arguments of model and guide.
    :param Roles roles: The roles of the sites of model and guide.
    :param Estimator estimator: The gradient estimator.
    :param int num_sets: Number of draws of the sites that are not local.
    :param int set_size: Number of samples that share such a draw.
    :param bool vectorized: Whether the samples of a run are in a dimension left of the plates.
    :param Trace subsamples: Sites that hold the minibatch, after the first run.
    """

    model: Callable
    guide: Callable
    args: tuple
    kwargs: dict
    roles: Roles
    estimator: Estimator
    num_sets: int
    set_size: int
    vectorized: bool
    subsamples: Trace = field(default_factory=Trace)
    #: Traces of the sites that are not local, by the number of the set.
    others: dict[int, Trace] = field(default_factory=dict)

    def __call__(self, rows: slice) -> Samples:
        """
        :param slice rows: The samples to draw: some sets of them, or a part of one set.
        """
        roles, size, key = self.roles, rows.stop - rows.start, rows.start // self.set_size
        sets = -(-size // self.set_size)
        gates = Gates(roles)
        with self._explained():
            guide = gates(self._handled(self.guide, key, size, sets))
            guide_trace = run_guide(self.guide, guide, self.args, self.kwargs)
        samples = Samples(rows, guide_trace, gates)
        seen = self.estimator(samples)
        with self._explained():
            model = self._handled(self.model, key, size, sets)
            replay = poutine.replay(model, trace=with_values(guide_trace, seen.values))
            replay = seen.priors(replay) if seen.priors else replay
            model_trace = poutine.trace(replay).get_trace(*self.args, **self.kwargs)
        if not roles.hold(model_trace, guide_trace):
            raise NewStructure

        sites = roles.local(model_trace)
        held = seen.priors.terms if seen.priors else {}
        log_p = [
            (roles.group(s), held[name] if name in held else local_log_prob(s, s["value"], roles))
            for name, s in sites.items()
        ]
        samples.set_densities(log_p + seen.tangents, seen.log_q, seen.scored)
        samples.scale = roles.scale(next(iter(sites.values()))) if sites else 1.0
        samples.outside = torch.zeros(())
        if key not in self.others:
            mean = global_elbo(model_trace, guide_trace, roles, size if sets > 1 else 1)
            samples.outside = mean * (sets / self.num_sets)
            self._keep(key, model_trace, guide_trace)
        return samples

    def _handled(self, function: Callable, key: int, size: int, num_sets: int) -> Callable:
        for trace in (self.subsamples, self.others.get(key)):
            if trace:
                function = poutine.replay(function, trace=trace)
        return SamplePlate(self.roles, size, num_sets)(function) if self.vectorized else function

    def _keep(self, key: int, model_trace: Trace, guide_trace: Trace) -> None:
        others = guide_trace.copy()
        for name in self.roles.local(guide_trace):
            others.remove_node(name)
        self.others[key] = others
        for trace in (guide_trace, model_trace):
            self.subsamples.nodes.update(subsample_sites(trace))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explains errors of a model that runs, but not with samples left of its plates."""
        try:
            yield
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            # A traced run may fail where this one, which is not, would not.
            traced = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
            known = isinstance(error, _NOT_OF_BROADCASTING) or traced
            if known or not self.vectorized or is_collision(error):
                raise
            try:
                with poutine.block(), torch.no_grad(), untouched_random_state():
                    traces = both_traces(self.model, self.guide, self.args, self.kwargs)
            except Exception:
                raise error from None
            if max_plate_nesting(traces) > self.roles.nesting:
                raise NewStructure from error
            raise RuntimeError(
                "The model or the guide runs by itself, but not with all samples at once in a "
                f"dimension to the left of its plates ({type(error).__name__}: {error}). Let it "
                "broadcast there, or pass vectorize_particles=False, which runs it for each sample."
            ) from error
