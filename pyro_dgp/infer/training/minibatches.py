"""Minibatches of rows in a shuffled order, whose position can be saved and restored."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["minibatches"]


def minibatches(
    data: Sequence[Tensor], batch_size: int | None, seed: int, weights: Tensor | None = None
) -> "_Minibatches":
    """An endless stream of batches of one size: shuffled passes over the rows, one after the other.

    With weights, a pass is a systematic resample of the rows: each of the N rows occurs
    N w_i / sum(w) times, rounded up or down at random so that the mean is exact. So the mean of a
    bound over rows becomes a weighted mean, for any bound and any estimator of its gradient.

    :param data: Tensors with the same number of rows N.
    :param int batch_size: Number B of rows per batch; None or more than N for all rows, in their
        order (with weights: for one pass).
    :param int seed: Seed of the shuffling.
    :param torch.Tensor weights: Weights of the rows, non-negative, [N]; None for equal weights.
    :raises ValueError: If data are no tensors with rows, numbers of rows differ, ``batch_size`` is
        less than 1, or weights are negative, not finite or all 0.
    """
    if isinstance(data, Tensor) or not all(isinstance(t, Tensor) and t.dim() for t in data):
        raise ValueError(
            "data must be several torch tensors with rows, such as (X, y), or (y,) for a single "
            "one: not a tensor itself, nor arrays."
        )
    num_rows = {len(tensor) for tensor in data}
    if len(num_rows) != 1 or 0 in num_rows:
        raise ValueError(
            "data must be tensors with one and the same positive number of rows, but they have "
            f"{[len(tensor) for tensor in data]}."
        )
    (size,) = num_rows
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 or None, but it is {batch_size}.")
    if weights is not None:
        weights = weights.detach().double().cpu()
        if weights.shape != (size,):
            raise ValueError(
                f"weights must be one per row, [{size}], but their shape is {tuple(weights.shape)}."
            )
        if not (bool((weights >= 0).all()) and 0 < weights.sum().item() < math.inf):
            raise ValueError("weights must be non-negative and finite, and not all 0.")
    return _Minibatches(
        tuple(data), size, size if batch_size is None else batch_size, seed, weights
    )


class _Minibatches(Iterator):
    def __init__(
        self,
        data: tuple[Tensor, ...],
        size: int,
        batch_size: int,
        seed: int,
        weights: Tensor | None,
    ) -> None:
        self.data, self.size, self.batch_size = data, size, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.left = torch.empty(0, dtype=torch.long)
        # Cumulative weights of the rows, scaled to end at N.
        self.edges = None if weights is None else size * weights.cumsum(0) / weights.sum()

    def __next__(self) -> tuple[Tensor, ...]:
        batch_size = self.batch_size
        if batch_size >= self.size:
            if self.edges is None:
                return self.data
            batch_size = self.size
        while len(self.left) < batch_size:
            self.left = torch.cat([self.left, self._pass()])
        index, self.left = self.left[:batch_size], self.left[batch_size:]
        return tuple(tensor[index.to(tensor.device)] for tensor in self.data)

    def _pass(self) -> Tensor:
        """N row numbers in a shuffled order."""
        order = torch.randperm(self.size, generator=self.generator)
        if self.edges is None:
            return order
        points = torch.arange(self.size) + torch.rand((), generator=self.generator).double()
        # The last edge is N up to rounding, so a point may lie beyond the last row with a weight.
        last = int(torch.searchsorted(self.edges, self.edges[-1]))
        return torch.searchsorted(self.edges, points, right=True).clamp_max(last)[order]

    def state(self) -> dict[str, Tensor]:
        """The position in the stream, for :meth:`load_state`."""
        return {"generator": self.generator.get_state(), "left": self.left.clone()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continues from a :meth:`state`."""
        self.generator.set_state(state["generator"])
        self.left = state["left"]
