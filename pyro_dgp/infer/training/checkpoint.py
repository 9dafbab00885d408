"""Checkpoints, from which training goes on exactly as if it had not been interrupted."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_dgp._files import read_tensors, write_tensors
from pyro_dgp.infer.buffers import untouched_buffers
from pyro_dgp.infer.random_state import random_state, set_random_state, untouched_random_state
from pyro_dgp.infer.sites import unconstrained_parameters

__all__ = ["parameters_of", "read_checkpoint", "restore", "save_checkpoint"]

_FORMAT = "pyro_dgp checkpoint 4"


def save_checkpoint(
    path: str | Path, parameters: dict[str, Tensor], optim: PyroOptim, progress: dict
) -> None:
    """Writes parameters, optimiser, random state and progress; the file is whole at any time.

    :param path: File to write; its folder is made.
    :param parameters: Unconstrained parameters by their names in Pyro's param store.
    :param optim: The optimiser of these parameters.
    :param progress: More to save: numbers, strings, lists, dicts and tensors.
    """
    state = {
        "format": _FORMAT,
        "parameters": {name: p.detach() for name, p in parameters.items()},
        "optimizer": optim.get_state(),
        "random_state": random_state(),
        "progress": progress,
    }
    write_tensors(state, Path(path))


def read_checkpoint(path: str | Path) -> dict:
    """What :func:`save_checkpoint` wrote; reading it runs no code of the file.

    :raises ValueError: If the file is no checkpoint, or a damaged one.
    :raises OSError: If it cannot be read.
    """
    state = read_tensors(Path(path), "checkpoint")
    if state["format"] != _FORMAT:
        raise ValueError(f"{path} was written by another version of pyro_dgp. Remove it.")
    return state


def restore(
    path: str | Path, state: dict, model: Callable, guide: Callable, args: tuple, optim: PyroOptim
) -> None:
    """Puts parameters, optimiser and random state into the state that was saved.

    The first part of the parameters' names may differ: it distinguishes models of one process.

    :param path: The file, for error messages.
    :param dict state: The result of :func:`read_checkpoint`.
    :param model: The model, called as ``model(*args)`` to find the parameters.
    :param guide: The guide, called as ``guide(*args)``.
    :param tuple args: Arguments of model and guide.
    :param optim: The optimiser; its present state is discarded.
    :raises ValueError: If the checkpoint belongs to a model with other parameters; nothing is
        changed in that case.
    """
    parameters = parameters_of(model, guide, args)
    names = _match(path, state["parameters"], parameters)
    with torch.no_grad():
        for name, value in state["parameters"].items():
            parameters[names[name]].copy_(value)
    optim.optim_objs.clear()
    optim.set_state(_renamed(state["optimizer"], optim, names))
    set_random_state(_with_arrays(state["random_state"]))


def parameters_of(model: Callable, guide: Callable, args: tuple) -> dict[str, Tensor]:
    """The unconstrained parameters of a model and its guide by their names in the param store."""
    with untouched_random_state(), untouched_buffers(), torch.no_grad(), poutine.block():
        with poutine.trace(param_only=True) as capture:
            guide_trace = poutine.trace(guide).get_trace(*args)
            poutine.replay(model, trace=guide_trace)(*args)
        return unconstrained_parameters(capture.trace)


def _match(
    path: str | Path, saved: dict[str, Tensor], parameters: dict[str, Tensor]
) -> dict[str, str]:
    """The name in this model of each saved parameter."""
    by_rest = {_without_first_part(name): name for name in parameters}
    if len(by_rest) == len(parameters):
        found = {name: by_rest.get(_without_first_part(name)) for name in saved}
    else:  # a model made of several: the first parts distinguish them
        found = {name: name if name in parameters else None for name in saved}
    names = {
        name: mine
        for name, mine in found.items()
        if mine is not None
        and parameters[mine].shape == saved[name].shape
        and parameters[mine].dtype == saved[name].dtype
    }
    strange = saved.keys() - names.keys()
    missing = parameters.keys() - names.values()
    if strange or missing or len(set(names.values())) < len(names):
        raise ValueError(
            f"{path} is the checkpoint of another model: {min(strange or missing or names)} is in "
            "one of the two, or of another shape or dtype. Use another file name, or remove it."
        )
    return names


def _without_first_part(name: str) -> str:
    return re.sub(r"^[^.$]*(?=[.$])", "", name)


def _renamed(state: dict, optim: PyroOptim, names: dict[str, str]) -> dict:
    """The state of an optimiser, which may be one around another, with other names."""
    inner = getattr(optim, "optim", None)
    if isinstance(inner, PyroOptim):
        return {**state, "optim": _renamed(state["optim"], inner, names)}
    # Entries that belong to no parameter keep their names.
    return {names.get(name, name): s for name, s in state.items()}


def _with_arrays(state: dict) -> dict:
    kind, keys, *rest = state["numpy"]
    return state | {"numpy": (kind, keys.numpy().astype(np.uint32), *rest)}
