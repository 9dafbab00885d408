r"""Signal-to-noise ratios of gradient estimators.

.. math:: \mathrm{SNR} = |E[g]| / \sqrt{\mathrm{Var}[g]}

for every entry g of a loss's gradient, estimated from Q draws. Source: Rainforth et al. (2018);
Rudner et al. (2021), section 4. An estimate has a floor: draws of pure noise have
:math:`|\bar g| / s \approx \sqrt{2 / (\pi Q)}` on average. The square has an estimate without bias
for Gaussian draws (a ratio of noncentral F),

.. math:: \frac{Q - 3}{Q - 1} \frac{\bar g^2}{s^2} - \frac1Q,

which may be negative, and which orders in K are fitted to.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import accumulate
from operator import add
from typing import Any

import torch
from pyro.util import set_rng_seed
from torch import Tensor
from torch.distributions import Normal
from tqdm.auto import tqdm

from pyro_dgp._checks import check_integer, check_seed
from pyro_dgp.infer.buffers import untouched_buffers
from pyro_dgp.infer.loss import Loss
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.infer.snr.gradients import GradientDraws
from pyro_dgp.infer.snr.moments import Moments

__all__ = ["SNRProfile", "SNRProfiler"]

#: Number of blocks of draws with separate moments, for the jackknife.
_BLOCKS = 10
#: Number of samples per batch of draws by default.
_SAMPLES = 10_000


@dataclass(frozen=True)
class SNRProfile:
    """Moments of gradient draws, for each parameter, and signal-to-noise ratios.

    Dictionaries have the parameters' names in Pyro's param store as keys, and tensors of the
    shapes of the (unconstrained) parameters as values. An entry with the same gradient in every
    draw has the ratio infinity, or 0 if it has no gradient. :attr:`num_constant` counts both, and
    those that differ by rounding alone; :meth:`mean_snr` leaves all of them out.

    :param int num_draws: Number Q of draws.
    :param dict blocks: Moments of each block of draws, by parameter.
    :param dict draws: The draws themselves, [Q, ...], by parameter; None unless they were kept.
    :param frozenset batched: Names of the parameters whose gradients were drawn in batches.
    """

    num_draws: int
    blocks: dict[str, list[Moments]] = field(repr=False)
    draws: dict[str, Tensor] | None = field(default=None, repr=False)
    batched: frozenset[str] = frozenset()

    def _by_site(self, statistic: Callable[[Moments], Tensor]) -> dict[str, Tensor]:
        return {name: statistic(_total(blocks)) for name, blocks in self.blocks.items()}

    @property
    def mean(self) -> dict[str, Tensor]:
        return self._by_site(lambda moments: moments.mean)

    @property
    def std(self) -> dict[str, Tensor]:
        return self._by_site(lambda moments: moments.std)

    @property
    def snr(self) -> dict[str, Tensor]:
        """``|mean| / std``."""
        return self._by_site(lambda moments: moments.snr)

    @property
    def squared_snr(self) -> dict[str, Tensor]:
        """The squared ratio without bias; negative where the plain one is below its noise level."""
        return self._by_site(lambda moments: moments.squared_snr)

    @property
    def snr_error(self) -> dict[str, Tensor]:
        """Standard errors of :attr:`snr`."""
        return self._by_site(lambda moments: moments.snr_error)

    @property
    def num_constant(self) -> dict[str, int]:
        """Number of entries with the same gradient in every draw, up to rounding."""
        return {n: int(c.sum()) for n, c in self._by_site(lambda m: m.is_constant).items()}

    @property
    def floor(self) -> float:
        """The mean of :attr:`snr` where there is no signal: sqrt(2 / (pi Q))."""
        return math.sqrt(2 / (math.pi * self.num_draws))

    def interval(self, level: float = 0.95) -> dict[str, tuple[Tensor, Tensor]]:
        """Confidence intervals of :attr:`snr`, from the normal approximation of mean / std.

        :param float level: Nominal coverage of the intervals.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, but it is {level}.")
        z = Normal(0.0, 1.0).icdf(torch.tensor(0.5 + level / 2, dtype=torch.float64)).item()

        def ends(moments: Moments) -> tuple[Tensor, Tensor]:
            # An interval of the signed ratio; where that contains 0, the lower end is 0.
            low, high = (moments.snr + sign * z * moments.snr_error for sign in (-1, 1))
            return low.clamp(min=0), high

        return {name: ends(_total(blocks)) for name, blocks in self.blocks.items()}

    def mean_snr(self, sites: Iterable[str] | None = None, debiased: bool = False) -> float:
        """The paper's statistic: the mean of :attr:`snr` over all entries of some parameters.

        :param sites: Names of parameters; None for all.
        :param bool debiased: Whether to return the root of the mean of :attr:`squared_snr` instead
            (0 if that mean is negative).
        """
        return self._pooled(sites, debiased)[0]

    def mean_snr_error(self, sites: Iterable[str] | None = None, debiased: bool = False) -> float:
        """Standard error of :meth:`mean_snr`, by a jackknife over ten parts of the draws."""
        return self._pooled(sites, debiased)[1]

    def _pooled(self, sites: Iterable[str] | None, debiased: bool) -> tuple[float, float]:
        names = list(self.blocks) if sites is None else list(sites)
        _check_sites(names, self.blocks)

        def statistic(moments: Iterable[Moments]) -> float:
            pooled = torch.cat(
                [(m.squared_snr if debiased else m.snr)[~m.is_constant] for m in moments]
            )
            if not len(pooled):
                return 0.0
            mean = pooled.mean().item()
            return math.sqrt(max(mean, 0.0)) if debiased else mean

        without = zip(*(self._without_block[name] for name in names), strict=True)
        without = torch.tensor([statistic(moments) for moments in without], dtype=torch.float64)
        error = ((len(without) - 1) * without.var(unbiased=False)).sqrt().item()
        return statistic(_total(self.blocks[name]) for name in names), error

    @cached_property
    def _without_block(self) -> dict[str, list[Moments]]:
        """Moments of all blocks but one, for each block left out."""

        def without(blocks: list[Moments]) -> list[Moments]:
            before = list(accumulate(blocks, add))
            after = list(accumulate(reversed(blocks), add))[::-1]
            inner = [a + b for a, b in zip(before[:-2], after[2:], strict=True)]
            return [after[1], *inner, before[-2]]

        return {name: without(blocks) for name, blocks in self.blocks.items()}


def _total(blocks: list[Moments]) -> Moments:
    return reduce(add, blocks)


def _check_sites(names: Sequence[str], known: Iterable[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"has {unknown[0]!r}, which is no parameter" if unknown else "is empty"
        raise ValueError(f"sites {what}; there are: {', '.join(known)}.")


class SNRProfiler:
    """Estimates the signal-to-noise ratio of a loss's gradient, for each parameter.

    Parameters, their ``.grad``, buffers of modules, optimisers and the global random state are left
    unchanged, and all draws use the same minibatch. Gradients by parameters that reach the loss
    only through the guide's local distributions (those of an encoder) are drawn in batches if the
    loss is one of this package; all others need one evaluation per draw
    (:mod:`pyro_dgp.infer.snr.gradients`).

    :param model: The model, as for :class:`~pyro.infer.SVI`.
    :param guide: The guide, as for :class:`~pyro.infer.SVI`.
    :param ~pyro.infer.ELBO loss: Any ELBO of Pyro.
    :param int num_draws: Number Q of draws, at least 20.
    :param sites: Names of parameters in the param store; None for all.
    :param int chunk_size: Number of draws per batch; None for as many as make 10,000 samples.
    :param int seed: Seed of the draws; None to start from the global random state.
    :param bool keep_draws: Whether to keep the draws themselves, in the memory of the CPU.
    :param bool batch: Whether to draw in batches where possible; False for a loop.
    :param bool progress: Whether to show a progress bar.
    :raises ValueError: If a number is out of range.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        loss: Loss,
        num_draws: int = 1000,
        sites: Sequence[str] | None = None,
        chunk_size: int | None = None,
        seed: int | None = None,
        keep_draws: bool = False,
        batch: bool = True,
        progress: bool = False,
    ) -> None:
        self.model, self.guide, self.loss = model, guide, loss
        self.num_draws = check_integer("num_draws", num_draws, 2 * _BLOCKS)
        self.sites = sites
        self.chunk_size = None if chunk_size is None else check_integer("chunk_size", chunk_size, 1)
        self.seed = None if seed is None else check_seed("seed", seed)
        self.keep_draws, self.batch, self.progress = keep_draws, batch, progress

    def run(self, *args: Any, **kwargs: Any) -> SNRProfile:
        """Draws gradients at the current parameters.

        :param args: Arguments of model and guide, such as the minibatch.
        :param kwargs: Keyword arguments of model and guide.
        :returns: The moments of the draws.
        :raises ValueError: If a name of ``sites`` is not one of the model's or guide's parameters.
        """
        with untouched_random_state(), untouched_buffers():
            if self.seed is not None:
                set_rng_seed(self.seed)
            source = GradientDraws(self.model, self.guide, self.loss, args, kwargs)
            names = list(source.parameters) if self.sites is None else list(self.sites)
            _check_sites(names, source.parameters)
            batched = source.can_batch() if self.batch else set()
            together = [name for name in names if name in batched]
            alone = [name for name in names if name not in batched]
            size = self.chunk_size or max(1, _SAMPLES // source.rows_per_draw)
            blocks, draws = {}, {}
            passes = [(together, size, lambda n: source.batched(together, n))]
            passes += [(alone, 1, lambda n: {k: g[None] for k, g in source.looped(alone).items()})]
            for group, chunk, draw in passes:
                if group:
                    found, kept = self._moments(chunk, draw)
                    blocks.update(found)
                    draws.update(kept)
        return SNRProfile(
            self.num_draws,
            {name: blocks[name] for name in names},
            {name: draws[name] for name in names} if self.keep_draws else None,
            frozenset(together),
        )

    def _moments(
        self, chunk_size: int, draw: Callable[[int], dict[str, Tensor]]
    ) -> tuple[dict[str, list[Moments]], dict[str, Tensor]]:
        """Moments by block, and the draws if they are kept."""
        blocks: dict[str, list[Moments]] = {}
        kept: dict[str, list[Tensor]] = {}
        sizes = [len(part) for part in torch.arange(self.num_draws).tensor_split(_BLOCKS)]
        with tqdm(total=self.num_draws, disable=not self.progress, unit="draw") as bar:
            for size in sizes:
                block: dict[str, Moments] = {}
                # Single draws are collected, as moments are updated faster for many at once.
                waiting: list[dict[str, Tensor]] = []
                done = 0
                while done < size:
                    n = min(chunk_size, size - done)
                    waiting.append(draw(n))
                    done += n
                    bar.update(n)
                    if chunk_size > 1 or len(waiting) == 32 or done == size:
                        for name in waiting[0]:
                            chunk = torch.cat([w[name] for w in waiting]).detach()
                            moments = Moments.of(chunk)
                            block[name] = block[name] + moments if name in block else moments
                            if self.keep_draws:
                                kept.setdefault(name, []).append(chunk.cpu())
                        waiting.clear()
                for name, moments in block.items():
                    blocks.setdefault(name, []).append(moments)
        return blocks, {name: torch.cat(parts) for name, parts in kept.items()}
