"""The global random number generators: Python's, numpy's, torch's on the CPU and on GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from pyro.util import get_rng_state, set_rng_state

__all__ = ["random_state", "same_random_state", "set_random_state", "untouched_random_state"]


def random_state() -> dict:
    """The states of all generators, for :func:`set_random_state`."""
    state = get_rng_state()
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict) -> None:
    """Restores the states that :func:`random_state` returned."""
    set_rng_state(state)
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def same_random_state(one: dict, other: dict) -> bool:
    """Whether two states are equal, so nothing has been drawn between them."""
    pairs = [(one["torch"], other["torch"]), *zip(one["numpy"], other["numpy"], strict=True)]
    pairs += zip(one.get("cuda", ()), other.get("cuda", ()), strict=False)
    same = all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
    return same and one["random"] == other["random"]


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Restores the state at the end, whatever is drawn inside."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
