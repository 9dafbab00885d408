"""Slices, copies and conversions of the batch of any distribution, whatever its parameters are.

The parameters per element of the batch are those attributes whose leading dimensions are the batch
shape: tensors, other distributions, and tuples and dicts of these.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_dgp.gp.fixed import mapped_copy

__all__ = ["assembled", "converted", "held", "mapped"]

D = TypeVar("D", bound=Distribution)


def mapped(d: D, fn: Callable[[Tensor], Tensor]) -> D:
    """The distribution with ``fn`` applied to its parameters per element of the batch.

    :param d: A distribution.
    :param fn: Function of the batch's dimensions only, such as ``lambda t: t[:, 3]``.
    """

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return fn(value) if _has_batch(value, d) else value
        if isinstance(value, Distribution):
            return mapped(value, fn)
        if isinstance(value, tuple):
            return tuple(of(v) for v in value)
        return {k: of(v) for k, v in value.items()} if isinstance(value, dict) else value

    new = copy.copy(d)
    new.__dict__.update({name: of(v) for name, v in vars(d).items() if not _is_shape(v)})
    new._batch_shape = fn(torch.empty(()).expand(d.batch_shape)).shape
    return new


def converted(d: D, dtype: torch.dtype, device: torch.device) -> D:
    """The distribution in another dtype and on another device; integers stay integers."""

    def to(t: Tensor) -> Tensor:
        return t.to(device, dtype if t.is_floating_point() else t.dtype)

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return to(value)
        if isinstance(value, nn.Module):
            return mapped_copy(value, to)
        if isinstance(value, Distribution):
            return converted(value, dtype, device)
        if isinstance(value, tuple) and not _is_shape(value):
            return tuple(of(v) for v in value)
        return {k: of(v) for k, v in value.items()} if isinstance(value, dict) else value

    new = copy.copy(d)
    new.__dict__.update({name: of(v) for name, v in vars(d).items()})
    return new


def assembled(parts: Iterable[tuple[tuple[slice, ...], D]], shape: tuple[int, ...]) -> D:
    """One distribution from parts of its batch.

    :param parts: Pairs of indices into the leading dimensions of the batch and the distribution
        there.
    :param shape: Sizes of these dimensions.
    :raises ValueError: If there are no parts.
    """
    full, num = None, len(shape)
    for where, part in parts:
        if full is None:
            if part.batch_shape[:num] == torch.Size(shape):
                return part
            full = mapped(part, lambda t: t.new_empty(*shape, *t.shape[num:]))
        for whole, some in zip(held(full), held(part), strict=True):
            whole[where] = some
    if full is None:
        raise ValueError("There are no parts to assemble.")
    return full


def held(d: Distribution) -> Iterator[Tensor]:
    """The parameters per element of the distribution's batch, tensor by tensor."""

    def of(value: Any) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            if _has_batch(value, d):
                yield value
        elif isinstance(value, Distribution):
            yield from held(value)
        elif isinstance(value, tuple | dict) and not _is_shape(value):
            for v in value.values() if isinstance(value, dict) else value:
                yield from of(v)

    for value in vars(d).values():
        yield from of(value)


def _has_batch(value: Tensor, d: Distribution) -> bool:
    shape = d.batch_shape
    return value.shape[: len(shape)] == shape


def _is_shape(value: Any) -> bool:
    return isinstance(value, torch.Size)
