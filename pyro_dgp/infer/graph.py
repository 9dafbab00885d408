"""The autograd graph of a tensor."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.autograd.graph import Node

__all__ = ["leaves", "nodes"]


def leaves(tensor: Tensor) -> list[Tensor]:
    """The leaf tensors, mostly parameters, that the gradient of a tensor reaches."""
    return [node.variable for node in nodes([tensor], ()) if hasattr(node, "variable")]


def nodes(tensors: Iterable[Tensor], ends: Iterable) -> Iterator:
    """The nodes of an autograd graph, no further than ``ends``."""
    todo = [_node(tensor) for tensor in tensors if tensor.requires_grad]
    seen = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node not in ends:
            todo.extend(following for following, _ in node.next_functions)


def _node(tensor: Tensor) -> Node | None:
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    # A leaf has no grad_fn; its accumulator follows that of a view of it.
    with torch.enable_grad():
        of_view = tensor.view_as(tensor).grad_fn
    return None if of_view is None else of_view.next_functions[0][0]
