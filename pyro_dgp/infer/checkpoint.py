"""What it takes to go on with training as if it had never stopped."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_dgp._files import written_whole
from pyro_dgp.infer.random_state import random_state, set_random_state, untouched_random_state

__all__ = ["load_checkpoint", "save_checkpoint"]

_FORMAT = "pyro_dgp checkpoint 1"


def save_checkpoint(
    path: str | Path, parameters: dict[str, Tensor], optim: PyroOptim, progress: dict
) -> None:
    """Writes parameters, optimiser, random state and progress; the file is whole at any time.

    :param path: File to write; its folder is made.
    :param parameters: Unconstrained parameters by their names in Pyro's param store.
    :param optim: Their optimiser.
    :param progress: Plain numbers, strings, lists, dicts and tensors.
    """
    state = {
        "format": _FORMAT,
        "parameters": {name: p.detach() for name, p in parameters.items()},
        "optimizer": optim.get_state(),
        "random_state": _plain(random_state()),
        "progress": progress,
    }
    with written_whole(Path(path)) as temporary:
        torch.save(state, temporary)


def load_checkpoint(
    path: str | Path, model: Callable, guide: Callable, args: tuple, optim: PyroOptim
) -> dict:
    """Puts parameters, optimiser and random state into the state that was saved.

    The first part of the names, which tells models of one process apart, may be another one.

    :param path: A file of :func:`save_checkpoint`; loading it runs no code of it.
    :param model: Called as ``model(*args)``, with its guide, to find the parameters.
    :param guide: See ``model``.
    :param tuple args: See ``model``.
    :param optim: Loses the state that it has.
    :returns: The progress that was saved.
    :raises ValueError: If the file is no checkpoint, or that of a model with other parameters.
    """
    content = io.BytesIO(Path(path).read_bytes())
    try:
        state = torch.load(content, map_location="cpu", weights_only=True)
        saved, optimizer, progress = (state[k] for k in ("parameters", "optimizer", "progress"))
        known = state["format"] == _FORMAT
    except Exception as error:  # torch.load has many ways of saying so
        raise ValueError(f"{path} is no checkpoint, or a damaged one. Remove it.") from error
    if not known:
        raise ValueError(f"{path} was written by another version of pyro_dgp. Remove it.")
    parameters = _parameters(model, guide, args)
    names = _match(path, saved, parameters)
    with torch.no_grad():
        for name, value in saved.items():
            parameters[names[name]].copy_(value)
    optim.optim_objs.clear()
    # What belongs to no parameter keeps its name.
    optim.set_state({names.get(name, name): s for name, s in optimizer.items()})
    set_random_state(_unplain(state["random_state"]))
    return progress


def _parameters(model: Callable, guide: Callable, args: tuple) -> dict[str, Tensor]:
    with untouched_random_state(), torch.no_grad(), poutine.block():
        with poutine.trace(param_only=True) as capture:
            guide_trace = poutine.trace(guide).get_trace(*args)
            poutine.replay(model, trace=guide_trace)(*args)
        return {name: site["value"].unconstrained() for name, site in capture.trace.nodes.items()}


def _match(path, saved: dict[str, Tensor], parameters: dict[str, Tensor]) -> dict[str, str]:
    """The model's name of each saved parameter."""

    def key(name: str) -> str:
        return re.sub(r"^[^.$]*(?=[.$])", "", name)

    current = {key(name): name for name in parameters}
    if len(current) < len(parameters):  # several models in one: their first names count
        current = {name: name for name in parameters}
        names = {name: current.get(name) for name in saved}
    else:
        names = {name: current.get(key(name)) for name in saved}
    for name, mine in names.items():
        if mine is None or parameters[mine].shape != saved[name].shape:
            raise ValueError(
                f"{path} is the checkpoint of another model: {name} {list(saved[name].shape)} "
                "has no counterpart here. Use another file, or remove this one."
            )
    missing = set(parameters) - set(names.values())
    if missing:
        raise ValueError(
            f"{path} is the checkpoint of another model: it has no {sorted(missing)[0]}. Use "
            "another file, or remove this one."
        )
    return names


def _plain(state: dict) -> dict:
    """The random state without NumPy's arrays, which ``weights_only`` refuses to load."""
    kind, keys, *rest = state["numpy"]
    return state | {"numpy": (kind, torch.as_tensor(keys.astype(np.int64)), *rest)}


def _unplain(state: dict) -> dict:
    kind, keys, *rest = state["numpy"]
    return state | {"numpy": (kind, keys.numpy().astype(np.uint32), *rest)}
