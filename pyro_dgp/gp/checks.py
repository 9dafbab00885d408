"""Checks of a model's layers and of its data."""

import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pyro_dgp.gp.layers import Layer

__all__ = ["LastBatch", "check_data", "check_layers", "input_width", "output_width"]


def check_layers(layers: Sequence[Layer]) -> None:
    """
    :param layers: Layers of a model, in order.
    :raises ValueError: If the layers do not fit together, or one belongs to another model.
    """
    for i, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise ValueError(
                f"layers[{i}] is a {type(layer).__name__}, no Layer: use GPLayer, LatentLayer, or "
                "a class of your own derived from pyro_dgp.gp.Layer."
            )
        if layer._pyro_name or any(layer is other for other in layers[:i]):
            raise ValueError(
                f"layers[{i}] is already part of a model: give every model layers of its own."
            )
    if not layers:
        raise ValueError("layers must end with a GPLayer, but there are none.")
    layers[-1].check_last()
    width = input_width(layers)
    for i, layer in enumerate(layers):
        if width is not None and layer.input_dim not in (None, width):
            raise ValueError(
                f"layers[{i}] takes {layer.input_dim} inputs, but the layers before it give "
                f"{width}."
            )
        width = None if width is None else layer.width(width)


def input_width(layers: Sequence[Layer]) -> int | None:
    """Number of columns of X that the layers take; None for any number.

    :param layers: Layers of a model, in order.
    :raises ValueError: If the latent inputs leave no column for X.
    """
    added = 0
    for i, layer in enumerate(layers):
        if layer.input_dim is not None:
            if layer.input_dim <= added:
                raise ValueError(
                    f"layers[{i}] takes {layer.input_dim} inputs, all of them latent: none is left "
                    "for X."
                )
            return layer.input_dim - added
        added += layer.latent_dim
    return None


def output_width(layers: Sequence[Layer]) -> int:
    """Number of output columns of the last layer.

    :param layers: Layers of a model, in order.
    """
    last = layers[-1]
    # A last layer that takes any number of columns has the same number of functions for all.
    return last.width(0 if last.input_dim is None else last.input_dim)


def check_data(
    X: Tensor,
    y: Tensor | None = None,
    covariates: Mapping[str, Tensor] | None = None,
    integer_targets: bool = False,
) -> None:
    """
    :param torch.Tensor X: Inputs, [N, D].
    :param torch.Tensor y: Targets, [N] or [N, P], or None.
    :param covariates: Covariates by name, each with one row per row of X.
    :param bool integer_targets: True if y may have an integer dtype.
    :raises TypeError: If an argument is no tensor, or of a wrong dtype.
    :raises ValueError: If a shape is wrong, or a value is NaN or infinite.
    """
    given = {"X": X} if y is None else {"X": X, "y": y}
    for argument, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{argument} must be a torch.Tensor, but it is a {type(value).__name__}; use "
                f"torch.as_tensor({argument})."
            )
        integers = argument == "y" and integer_targets and not value.is_complex()
        # There are no Cholesky factors in half precision.
        if not (value.dtype in (torch.float32, torch.float64) or integers):
            raise TypeError(
                f"{argument} must be floating point, of 32 or 64 bits, but it is {value.dtype}; "
                f"use {argument}.double()."
            )
    if X.dim() != 2 or X.shape[1] < 1:
        raise ValueError(
            f"X must have shape [N, D], but its shape is {tuple(X.shape)}; for a single input "
            "column use X.unsqueeze(-1)."
        )
    if len(X) == 0:
        raise ValueError("X has no rows.")
    if y is not None and (y.dim() not in (1, 2) or y.shape[-1] < 1):
        raise ValueError(f"y must have shape [N] or [N, P], but its shape is {tuple(y.shape)}.")
    for argument, value in (covariates or {}).items():
        if not isinstance(value, Tensor) or value.dim() < 1:
            raise TypeError(f"{argument} must be a torch.Tensor with a row for each row of X.")
        given[argument] = value
    for argument, value in given.items():
        if len(value) != len(X):
            raise ValueError(f"X has {len(X)} rows, but {argument} has {len(value)}.")
        if not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            raise ValueError(
                f"{argument} holds {bad} NaN or infinite values; drop or impute those rows."
            )


class LastBatch:
    """The tensors that were checked last, since a step's guide and model get the same ones.

    A change in place is detected if PyTorch counts it; it does not count changes through ``.data``
    or through a NumPy array that shares the memory.
    """

    def __init__(self) -> None:
        self._seen: dict = {}

    def is_again(self, tensors: Mapping[str, Tensor | None]) -> bool:
        """Whether these are the tensors of the last :meth:`keep`, unchanged since."""
        seen = self._seen  # read once, because another thread may replace it
        return seen.keys() == tensors.keys() and all(
            seen[name][0]() is value and seen[name][1] == _version(value)
            for name, value in tensors.items()
        )

    def keep(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Stores weak references to the tensors."""
        if any(t is not None and t.is_inference() for t in tensors.values()):
            tensors = {}  # inference tensors do not count their changes
        self._seen = {name: (_reference(t), _version(t)) for name, t in tensors.items()}

    def __reduce__(self) -> tuple[type["LastBatch"], tuple[()]]:
        return LastBatch, ()  # a copy or a pickle starts empty


def _reference(tensor: Tensor | None) -> Callable[[], Tensor | None]:
    return (lambda: None) if tensor is None else weakref.ref(tensor)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version
