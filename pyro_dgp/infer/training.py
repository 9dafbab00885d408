"""fit(): a thin loop over SVI."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyro
import pyro.optim
import pyro.poutine as poutine
import torch
from pyro.infer import ELBO, SVI
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler
from torch import Tensor
from tqdm.auto import tqdm

from pyro_dgp.infer.particles import log_prob, random_sites

__all__ = ["NonFiniteError", "TrainingHistory", "fit", "minibatches", "paper_optimizer"]


class NonFiniteError(ArithmeticError):
    """A loss or a gradient was NaN or infinite; the parameters are those before that step.

    :param int step: The step, counted from 0.
    :param list sites: Names of the sample sites or parameters at which it was seen.
    """

    def __init__(self, step: int, what: str, sites: list[str]) -> None:
        self.step, self.sites = step, sites
        where = f" at {', '.join(sites)}" if sites else ""
        super().__init__(
            f"Step {step}: the {what} is not finite{where}. The parameters are those before this "
            "step. Lower the learning rate, standardise the data, or use float64."
        )


@dataclass
class TrainingHistory:
    """What happened in :func:`fit`.

    :param list losses: The loss (negative bound) of every step.
    :param float seconds: Wall-clock time of the loop.
    :param bool interrupted: Whether Ctrl-C ended it.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False


def paper_optimizer(
    lr: float = 0.005, decay: float = 0.98, decay_steps: int = 1000
) -> PyroLRScheduler:
    """Adam with the paper's schedule: the learning rate times ``decay`` every ``decay_steps``."""
    return pyro.optim.StepLR(
        {
            "optimizer": torch.optim.Adam,
            "optim_args": {"lr": lr},
            "step_size": decay_steps,
            "gamma": decay,
        }
    )


def fit(
    model: Callable,
    guide: Callable,
    loss: ELBO,
    data: Sequence[Tensor],
    *,
    num_steps: int,
    batch_size: int | None = 64,
    optim: PyroOptim | None = None,
    seed: int = 0,
    progress: bool = True,
    callback: Callable[[int, float], None] | None = None,
) -> TrainingHistory:
    """Minimises ``loss`` with minibatches in a shuffled order.

    :param model: Called as ``model(*batch)``.
    :param guide: Called as ``guide(*batch)``.
    :param ~pyro.infer.ELBO loss: For instance :class:`~pyro_dgp.infer.DRegIWELBO`.
    :param data: Tensors with one number of rows N, for instance ``(X, y)``.
    :param int num_steps: Number of gradient steps.
    :param int batch_size: B, at most N is used; None for all data at every step.
    :param optim: None for :func:`paper_optimizer`. Give the same one again, with another ``seed``,
        to go on where a call stopped; a ``PyroLRScheduler`` is stepped after every step.
    :param int seed: Of the order of the rows, which every call starts anew. Draws come from torch's
        global generator, which ``pyro.set_rng_seed`` fixes.
    :param bool progress: Show a progress bar.
    :param callback: Called as ``callback(step, loss)`` after every step.
    :returns: The losses and the time. Ctrl-C ends the loop and returns what there is.
    :raises NonFiniteError: If a loss or a gradient is not finite; no parameter has been touched by
        that step. (Pyro itself refuses NaN in a distribution's parameters, with a ``ValueError``.)
    :raises ValueError: If the tensors differ in their number of rows or an option is out of range.
    """
    if num_steps < 0:
        raise ValueError(f"num_steps must not be negative, but it is {num_steps}.")
    history = TrainingHistory()
    optim = paper_optimizer() if optim is None else optim
    guarded = _Guard(loss)
    svi = SVI(model, guide, optim, loss=loss.loss, loss_and_grads=guarded)
    batches = minibatches(data, batch_size, seed)
    start = time.perf_counter()
    bar = tqdm(total=num_steps, disable=not progress, unit="step")
    try:
        with bar:
            for step in range(num_steps):
                guarded.step = step
                value = svi.step(*next(batches))
                if isinstance(optim, PyroLRScheduler):
                    _advance(optim, value)
                history.losses.append(value)
                if callback is not None:
                    callback(step, value)
                bar.update()
                if step % 10 == 0:
                    bar.set_postfix(loss=f"{value:.4g}", refresh=False)
    except KeyboardInterrupt:
        history.interrupted = True
    finally:
        guarded.clear_gradients()
        history.seconds = time.perf_counter() - start
    return history


def _advance(scheduler: PyroLRScheduler, loss: float) -> None:
    plateau = scheduler.pt_scheduler_constructor is torch.optim.lr_scheduler.ReduceLROnPlateau
    scheduler.step(loss) if plateau else scheduler.step()


def minibatches(
    data: Sequence[Tensor], batch_size: int | None, seed: int
) -> Iterator[tuple[Tensor, ...]]:
    """An endless stream of batches of one size: shuffled passes over the rows, end to end.

    :param data: Tensors with one number of rows N.
    :param int batch_size: B; None or more than N for all rows, in their order.
    :param int seed: Of the shuffling.
    """
    num_rows = {len(tensor) for tensor in data}
    if len(num_rows) != 1 or 0 in num_rows:
        raise ValueError(
            "data must be tensors with one and the same positive number of rows, but they have "
            f"{[len(tensor) for tensor in data]}."
        )
    (size,) = num_rows
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 or None, but it is {batch_size}.")
    return _stream(tuple(data), size, size if batch_size is None else batch_size, seed)


def _stream(data: tuple[Tensor, ...], size: int, batch_size: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    if batch_size >= size:
        while True:
            yield data
    left = torch.empty(0, dtype=torch.long)
    while True:
        while len(left) < batch_size:
            left = torch.cat([left, torch.randperm(size, generator=generator)])
        index, left = left[:batch_size], left[batch_size:]
        yield tuple(tensor[index.to(tensor.device)] for tensor in data)


class _Guard:
    """``loss_and_grads`` that raises before the optimiser sees what is not finite."""

    def __init__(self, loss: ELBO) -> None:
        self.loss = loss
        self.step = 0
        self.parameters: dict[str, Tensor] = {}

    def __call__(self, model, guide, *args, **kwargs) -> float:
        with poutine.trace(param_only=True) as params:
            value = self.loss.loss_and_grads(model, guide, *args, **kwargs)
        self.parameters.update(
            (name, site["value"].unconstrained()) for name, site in params.trace.nodes.items()
        )
        gradients = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
        if not math.isfinite(value):
            self.clear_gradients()
            bad = _non_finite_sites(model, guide, args, kwargs)
            raise NonFiniteError(self.step, "loss", bad)
        bad = _non_finite(gradients)
        if bad:
            self.clear_gradients()
            raise NonFiniteError(self.step, "gradient", bad)
        return value

    def clear_gradients(self) -> None:
        """Leaves nothing for a later step to add to, when a step did not reach the optimiser."""
        for p in self.parameters.values():
            p.grad = None


def _non_finite(tensors: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    if not tensors:
        return []
    # One number to look at. A norm overflows before its tensor does, hence the second look.
    norms = torch._foreach_norm(list(tensors.values()))
    if bool(torch.isfinite(torch.stack([norm.double() for norm in norms])).all()):
        return []
    return [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]


def _non_finite_sites(model, guide, args, kwargs) -> list[str]:
    """Runs model and guide once more and looks at every site's density."""
    bad = []
    with poutine.block(), torch.no_grad(), pyro.validation_enabled(False):
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        replay = poutine.replay(model, trace=guide_trace)
        model_trace = poutine.trace(replay).get_trace(*args, **kwargs)
        for trace in (guide_trace, model_trace):
            for name, site in random_sites(trace).items():
                finite = torch.isfinite(log_prob(site, site["value"])).all()
                if name not in bad and not bool(finite):
                    bad.append(name)
    return bad
