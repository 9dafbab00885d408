"""fit(): a thin loop over SVI."""

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pyro.infer import ELBO, SVI
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from tqdm.auto import tqdm

from pyro_dgp.infer.checkpoint import read_checkpoint, restore, save_checkpoint
from pyro_dgp.infer.guard import Guard
from pyro_dgp.infer.minibatches import minibatches
from pyro_dgp.infer.natural_gradient import NaturalGradient
from pyro_dgp.infer.optim import ScheduledAdam

__all__ = [
    "TrainingHistory",
    "annealed_adam",
    "fit",
    "paper_optimizer",
]


@dataclass
class TrainingHistory:
    """What happened in :func:`fit`.

    :param list losses: The loss (negative bound) of every step, those before a checkpoint included.
    :param float seconds: Wall-clock time of the loop, likewise.
    :param bool interrupted: Whether Ctrl-C was pressed.
    :param bool stopped: Whether the callback ended training.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    stopped: bool = False


def paper_optimizer(
    lr: float = 0.005, decay: float = 0.98, decay_steps: int = 1000
) -> PyroLRScheduler:
    """Adam with the paper's schedule: the learning rate times ``decay`` every ``decay_steps``."""
    return ScheduledAdam(StepLR, {"lr": lr}, step_size=decay_steps, gamma=decay)


def annealed_adam(lr: float, num_steps: int) -> PyroLRScheduler:
    """Adam for few steps: its learning rate falls to 0 along half a cosine.

    :param float lr: Learning rate of the first step.
    :param int num_steps: Steps until it is 0.
    """
    # The first gradients, of a narrow q(u) and a small noise variance, are thousands of times the
    # later ones. Squares remembered for 1000 steps, as is usual, would hold the parameters back.
    adam = {"lr": lr, "betas": (0.9, 0.99)}
    return ScheduledAdam(CosineAnnealingLR, adam, T_max=max(1, num_steps))


def fit(
    model: Callable,
    guide: Callable,
    loss: ELBO,
    data: Sequence[Tensor] | Mapping[str, Tensor],
    *,
    num_steps: int,
    batch_size: int | None = 64,
    optim: PyroOptim | None = None,
    seed: int = 0,
    weights: Tensor | None = None,
    progress: bool = True,
    callback: Callable[[int, float], bool | None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_interval: float = 30.0,
) -> TrainingHistory:
    """Minimises ``loss`` with minibatches in a shuffled order.

    :param model: Called as ``model(*batch)``.
    :param guide: Called as ``guide(*batch)``.
    :param ~pyro.infer.ELBO loss: For instance :class:`~pyro_dgp.infer.DRegIWELBO`.
    :param data: Tensors with one number of rows N, for instance ``(X, y)``; or a dict of them by
        the names of the arguments, for instance ``{"X": X, "y": y, "weight": w}``.
    :param int num_steps: Number of gradient steps, those of a checkpoint included.
    :param int batch_size: B, at most N is used; None for all data at every step.
    :param optim: None for :func:`paper_optimizer`. Give the same one again, with another ``seed``,
        to go on where a call stopped; a ``PyroLRScheduler`` is stepped after every step.
    :param int seed: Of the order of the rows, which every call starts anew. Draws come from torch's
        global generator, which ``pyro.set_rng_seed`` fixes.
    :param torch.Tensor weights: How often rows are drawn, relative to one another, [N]; see
        :func:`minibatches`. None for all alike.
    :param bool progress: Show a progress bar.
    :param callback: Called as ``callback(step, loss)`` after every step; True ends training. If it
        has ``state_dict`` and ``load_state_dict``, its state goes into the checkpoint, too.
    :param checkpoint: File that gets, now and then and at the end, what it takes to go on:
        parameters (not the buffers of modules), optimiser, random state. If it is there, training
        starts from it and ends with the numbers of a run that was never interrupted, to the last
        bit on the same machine. (Losses of Pyro's own that look for plates when they are first
        used, which takes draws, need ``max_plate_nesting`` for that; those with parameters of their
        own, such as the baselines of ``TraceGraph_ELBO``, cannot be resumed.)
    :param float checkpoint_interval: Seconds between two checkpoints.
    :returns: The losses and the time. Ctrl-C ends the loop after the step at hand, saves a
        checkpoint if there is to be one, and returns what there is; a second one ends it at once,
        without saving.
    :raises NonFiniteError: If a loss or a gradient is not finite; no parameter has been touched by
        that step. (Pyro itself refuses NaN in a distribution's parameters, with a ``ValueError``.)
    :raises ValueError: If the tensors differ in their number of rows, an option is out of range, or
        the checkpoint is damaged, beyond ``num_steps``, or that of another model or other settings.
    """
    if num_steps < 0:
        raise ValueError(f"num_steps must not be negative, but it is {num_steps}.")
    names = ""
    if isinstance(data, Mapping):
        names = f"{', '.join(data)}: "
        model, guide = (_by_name(function, list(data)) for function in (model, guide))
        data = list(data.values())
    history = TrainingHistory()
    optim = paper_optimizer() if optim is None else optim
    guarded = Guard(loss)
    svi = SVI(model, guide, optim, loss=loss.loss, loss_and_grads=guarded)
    batches = minibatches(data, batch_size, seed, weights)
    seen = data if weights is None else [*data, weights]
    settings = None if checkpoint is None else {
        "batch_size": batch_size, "seed": seed, "num_rows": len(data[0]),
        "data": names + _digest(seen), "optim": _describe(optim), "loss": _describe_loss(loss),
    }  # fmt: skip
    if checkpoint is not None and Path(checkpoint).exists():
        state = read_checkpoint(checkpoint)
        _check_fits(checkpoint, state["progress"], settings, num_steps)
        restore(checkpoint, state, model, guide, next(batches), optim)
        history.losses = state["progress"]["losses"]
        history.seconds = state["progress"]["seconds"]
        history.stopped = state["progress"]["stopped"]
        batches.load_state(state["progress"]["batches"])
        if hasattr(callback, "load_state_dict") and state["progress"]["callback"] is not None:
            callback.load_state_dict(state["progress"]["callback"])

    def save() -> None:
        state = {
            "settings": settings,
            "losses": history.losses,
            "seconds": history.seconds + time.perf_counter() - start_time,
            "stopped": history.stopped,
            "batches": batches.state(),
            "callback": callback.state_dict() if hasattr(callback, "state_dict") else None,
        }
        save_checkpoint(checkpoint, guarded.parameters, optim, state)

    first = num_steps if history.stopped else len(history.losses)
    start_time = saved_time = time.perf_counter()
    bar = tqdm(total=num_steps, initial=first, disable=not progress, unit="step")
    try:
        with bar, _Interrupt() as interrupt:
            for step in range(first, num_steps):
                guarded.step = step
                value = svi.step(*next(batches))
                _advance(optim, value)
                history.losses.append(value)
                if callback is not None:
                    history.stopped = bool(callback(step, value))
                bar.update()
                if step % 10 == 0:
                    bar.set_postfix(loss=f"{value:.4g}", refresh=False)
                now = time.perf_counter()
                history.interrupted = interrupt.seen
                last = step + 1 == num_steps or history.interrupted or history.stopped
                if checkpoint is not None and (last or now - saved_time >= checkpoint_interval):
                    save()
                    saved_time = now
                if history.interrupted or history.stopped:
                    break
    except KeyboardInterrupt:
        history.interrupted = True
    finally:
        guarded.clear_gradients()
        history.seconds += time.perf_counter() - start_time
    return history


def _by_name(function: Callable, names: list[str]) -> Callable:
    """The function with arguments by position that it takes by name."""
    return lambda *values: function(**dict(zip(names, values, strict=True)))


class _Interrupt:
    """Inside, the first Ctrl-C only sets ``seen``; the second raises ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self.seen = False
        self.previous = None

    def __enter__(self) -> "_Interrupt":
        # Only the main thread may, and needs to, handle signals; a handler of the caller's stays.
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number, frame) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True

    def __exit__(self, *_) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)


def _describe(optim: PyroOptim) -> str:
    """What kind of optimiser it is, with its numbers; functions have no such description."""
    if isinstance(optim, NaturalGradient):
        own = optim.lr, optim.decay, optim.decay_steps
        if optim.annealing_steps is not None:
            own = optim.lr, f"annealing_steps={optim.annealing_steps}"
        return f"NaturalGradient{own} {_describe(optim.optim)}"
    parts = [optim.pt_optim_constructor, optim.pt_optim_args]
    if isinstance(optim, PyroLRScheduler):
        parts += [optim.pt_scheduler_constructor, optim.kwargs]
    return " ".join(
        part.__name__
        if hasattr(part, "__name__")
        else str({k: v for k, v in part.items() if isinstance(v, int | float | str)})
        for part in parts
        if isinstance(part, dict) or hasattr(part, "__name__")
    )


def _digest(data: Sequence[Tensor]) -> str:
    """Tells one set of data from another."""
    found = hashlib.sha256()
    for tensor in data:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]


def _describe_loss(loss: ELBO) -> str:
    """Its class and its numbers, but one that losses of Pyro's own find out at their first use."""
    numbers = {k: v for k, v in vars(loss).items() if isinstance(v, int | float | str)}
    numbers.pop("max_plate_nesting", None)
    return f"{type(loss).__name__} {dict(sorted(numbers.items()))}"


def _check_fits(path: str | Path, progress: dict, settings: dict, num_steps: int) -> None:
    for name, value in settings.items():
        found = progress["settings"][name]
        if found != value:
            raise ValueError(
                f"The checkpoint {path} was made with {name}={found}, not {value}. Remove it to "
                "start anew."
            )
    if len(progress["losses"]) > num_steps:
        raise ValueError(
            f"The checkpoint {path} has {len(progress['losses'])} steps, more than "
            f"num_steps={num_steps}. Remove it to start anew."
        )


def _advance(optim: PyroOptim, loss: float) -> None:
    """The next step of a learning rate's schedule, if there is one."""
    if isinstance(optim, NaturalGradient):
        optim = optim.optim
    if isinstance(optim, PyroLRScheduler):
        plateau = optim.pt_scheduler_constructor is torch.optim.lr_scheduler.ReduceLROnPlateau
        optim.step(loss) if plateau else optim.step()
