"""Training: ``fit``, a thin loop over SVI, and optimisers."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from pyro.infer import SVI
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from tqdm.auto import tqdm

from pyro_dgp._checks import check_integer
from pyro_dgp.infer.loss import Loss
from pyro_dgp.infer.training.checkpoint import read_checkpoint, restore, save_checkpoint
from pyro_dgp.infer.training.guard import Guard
from pyro_dgp.infer.training.interrupt import Interrupt
from pyro_dgp.infer.training.minibatches import minibatches
from pyro_dgp.infer.training.natural_gradient import NaturalGradient
from pyro_dgp.infer.training.optim import Frozen, ScheduledAdam

__all__ = [
    "TrainingHistory",
    "annealed_adam",
    "fit",
    "paper_optimizer",
]


@runtime_checkable
class _Resumable(Protocol):
    """A callback with a state."""

    def __call__(self, step: int, loss: float) -> bool | None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class TrainingHistory:
    """The result of :func:`fit`.

    :param list losses: Loss (negative bound) per step, including those before a checkpoint.
    :param float seconds: Wall-clock time of the loop, including the time before a checkpoint.
    :param bool interrupted: Whether training ended by Ctrl-C.
    :param bool stopped: Whether the callback ended training.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    stopped: bool = False


def paper_optimizer(
    lr: float = 0.005, decay: float = 0.98, decay_steps: int = 1000
) -> PyroLRScheduler:
    """Adam with the paper's schedule.

    :param float lr: Initial learning rate.
    :param float decay: Factor of the learning rate every ``decay_steps`` steps.
    :param int decay_steps: Number of steps between two decays.
    """
    return ScheduledAdam(StepLR, {"lr": lr}, step_size=decay_steps, gamma=decay)


def annealed_adam(lr: float, num_steps: int) -> PyroLRScheduler:
    """Adam for short runs: the learning rate falls to 0 along half a cosine.

    :param float lr: Learning rate of the first step.
    :param int num_steps: Number of steps until the learning rate is 0.
    """
    # The first gradients, with a narrow q(u) and a small noise variance, are thousands of times
    # larger than later ones. A memory of 1000 steps for their squares, as is usual, would make
    # steps too small.
    adam = {"lr": lr, "betas": (0.9, 0.99)}
    return ScheduledAdam(CosineAnnealingLR, adam, T_max=max(1, num_steps))


def fit(
    model: Callable,
    guide: Callable,
    loss: Loss,
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

    :param model: The model, called as ``model(*batch)``.
    :param guide: The guide, called as ``guide(*batch)``.
    :param ~pyro.infer.ELBO loss: The loss, for instance :class:`~pyro_dgp.infer.DRegIWELBO`.
    :param data: Tensors with the same number of rows N, for instance ``(X, y)``; or a dict of them
        by the names of the arguments, for instance ``{"X": X, "y": y, "weight": w}``.
    :param int num_steps: Number of gradient steps, including those of a checkpoint.
    :param int batch_size: Number B of rows per minibatch, at most N; None for all data.
    :param optim: An optimiser of Pyro; None for :func:`paper_optimizer`. To continue after a call,
        give the same one again, with another ``seed``; a ``PyroLRScheduler`` is stepped after every
        step.
    :param int seed: Seed of the order of the rows, which every call starts anew. Draws come from
        torch's global generator, see ``pyro.set_rng_seed``.
    :param torch.Tensor weights: Relative frequencies with which rows are drawn, [N]; see
        :func:`minibatches`. None for equal frequencies.
    :param bool progress: Whether to show a progress bar.
    :param callback: A function called as ``callback(step, loss)`` after every step; True ends
        training, and ``KeyboardInterrupt`` does what Ctrl-C does. If it has ``state_dict`` and
        ``load_state_dict``, its state is part of the checkpoint.
    :param checkpoint: File in which parameters (not the buffers of modules), optimiser and random
        state are saved from time to time and at the end. If the file exists, training continues
        from it and gives the numbers of an uninterrupted run, to the last bit on the same machine.
        (Losses of Pyro that look for plates at their first use, which takes draws, need
        ``max_plate_nesting`` for that; those with parameters of their own, such as the baselines of
        ``TraceGraph_ELBO``, cannot be resumed.)
    :param float checkpoint_interval: Seconds between two checkpoints.
    :returns: The losses and the time. Ctrl-C ends the loop after the current step, saves the
        checkpoint if there is one, and returns normally; a second Ctrl-C ends it at once, without
        saving.
    :raises NonFiniteError: If a loss or a gradient is not finite; that step has changed no
        parameter. (At the first step, Pyro itself refuses NaN in the parameters of a distribution,
        with a ``ValueError``.)
    :raises ValueError: If the data are no tensors or differ in their number of rows, an option is
        out of range, loss or optimiser are not of Pyro's kind, or the checkpoint is damaged, has
        more than ``num_steps`` steps, or is of another model or other settings.
    """
    num_steps = check_integer("num_steps", num_steps, 0)
    names = ""
    if isinstance(data, Mapping):
        names = f"{', '.join(data)}: "
        model, guide = (_by_name(function, list(data)) for function in (model, guide))
        data = list(data.values())
    history = TrainingHistory()
    optim = paper_optimizer() if optim is None else optim
    if not isinstance(optim, PyroOptim):
        raise ValueError(
            f"optim must be an optimiser of Pyro, such as pyro.optim.Adam({{'lr': 0.01}}), but it "
            f"is {optim!r}."
        )
    if isinstance(loss, type) or not hasattr(loss, "loss_and_grads"):
        raise ValueError(f"loss must be an object such as DRegIWELBO(K=10), but it is {loss!r}.")
    guarded = Guard(loss)
    svi = SVI(model, guide, optim, loss=loss.loss, loss_and_grads=guarded)
    batches = minibatches(data, batch_size, seed, weights)
    resumable = callback if isinstance(callback, _Resumable) else None
    seen = data if weights is None else [*data, weights]
    settings = {} if checkpoint is None else {
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
        kept = state["progress"]["callback"]
        if resumable is not None and kept is not None:
            if kept["kind"] != type(resumable).__name__:
                raise ValueError(
                    f"The checkpoint {checkpoint} was made with a callback {kept['kind']}, not "
                    f"{type(resumable).__name__}. Remove it to start anew."
                )
            resumable.load_state_dict(kept["state"])

    def save(path: str | Path) -> None:
        state = {
            "settings": settings,
            "losses": history.losses,
            "seconds": history.seconds + time.perf_counter() - start_time,
            "stopped": history.stopped,
            "batches": batches.state(),
            "callback": None
            if resumable is None
            else {"kind": type(resumable).__name__, "state": resumable.state_dict()},
        }
        save_checkpoint(path, guarded.parameters, optim, state)

    first = num_steps if history.stopped else len(history.losses)
    start_time = saved_time = time.perf_counter()
    bar = tqdm(total=num_steps, initial=first, disable=not progress, unit="step")
    try:
        with bar, Interrupt() as interrupt:
            for step in range(first, num_steps):
                guarded.step = step
                value: float = svi.step(*next(batches))  # pyright: ignore[reportAssignmentType]
                _advance(optim, value)
                history.losses.append(value)
                if callback is not None:
                    try:
                        history.stopped = bool(callback(step, value))
                    except KeyboardInterrupt:
                        interrupt.seen = True
                bar.update()
                if step % 10 == 0:
                    bar.set_postfix(loss=f"{value:.4g}", refresh=False)
                now = time.perf_counter()
                history.interrupted = interrupt.seen
                last = step + 1 == num_steps or history.interrupted or history.stopped
                if checkpoint is not None and (last or now - saved_time >= checkpoint_interval):
                    save(checkpoint)
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
    """A function of positional arguments that passes them by name."""
    return lambda *values: function(**dict(zip(names, values, strict=True)))


def _describe(optim: PyroOptim) -> str:
    """The kind of optimiser with its numeric options; functions as options are left out."""
    if isinstance(optim, NaturalGradient):
        own = optim.lr, optim.decay, optim.decay_steps
        if optim.annealing_steps is not None:
            own = optim.lr, f"annealing_steps={optim.annealing_steps}"
        return f"NaturalGradient{own} {_describe(optim.optim)}"
    if isinstance(optim, Frozen):
        return f"Frozen({len(optim.parameters)}, {optim.num_steps}) {_describe(optim.optim)}"
    parts: list[object] = [optim.pt_optim_constructor, optim.pt_optim_args]
    if isinstance(optim, PyroLRScheduler):
        parts += [optim.pt_scheduler_constructor, optim.kwargs]
    names = (
        str({k: v for k, v in part.items() if isinstance(v, int | float | str)})
        if isinstance(part, dict)
        else getattr(part, "__name__", "")
        for part in parts
    )
    return " ".join(name for name in names if name)


def _digest(data: Sequence[Tensor]) -> str:
    """A digest that distinguishes data sets."""
    found = hashlib.sha256()
    for tensor in data:
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def _describe_loss(loss: Loss) -> str:
    """The class of a loss and its numeric options, except one that Pyro sets at the first use."""
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
    """Advances the learning-rate schedule, if there is one."""
    while isinstance(optim, NaturalGradient | Frozen):
        optim = optim.optim
    if isinstance(optim, PyroLRScheduler):
        plateau = optim.pt_scheduler_constructor is torch.optim.lr_scheduler.ReduceLROnPlateau
        optim.step(loss) if plateau else optim.step()
