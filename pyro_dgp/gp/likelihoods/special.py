"""Functions that SciPy has and torch has not; without derivatives."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["with_scipy"]


def with_scipy(function: Callable, *arguments: Tensor) -> Tensor:
    """A function of SciPy's of tensors, on their device and in their dtype.

    :param function: Elementwise, such as ``scipy.special.betainc``.
    :param arguments: Tensors that broadcast.
    """
    like = arguments[0]
    arrays = [a.detach().double().cpu().numpy() for a in arguments]
    return torch.as_tensor(function(*arrays), dtype=like.dtype, device=like.device)
