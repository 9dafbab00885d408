"""Buffers of modules, such as the running statistics of batch normalisation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

__all__ = ["untouched_buffers"]


@contextmanager
def untouched_buffers() -> Iterator[None]:
    """Restores at the end the buffers of all modules that are called inside."""
    kept: dict[tuple[nn.Module, str], tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, _: Any) -> None:
        for name, buffer in module.named_buffers(recurse=False):
            if not is_lazy(buffer):  # those without a shape yet have no value either
                kept.setdefault((module, name), (buffer, buffer.detach().clone()))

    hook = register_module_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()
        for (module, name), (buffer, value) in kept.items():
            module._buffers[name] = buffer  # some modules replace theirs
            # A graph that is waiting for its backward pass may hold it: not a change for autograd.
            buffer.data.copy_(value)
