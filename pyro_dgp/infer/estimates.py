"""From the samples of some runs to the bound and its gradient estimate."""

from dataclasses import replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from pyro_dgp.infer.bounds import Bound, Coefficients
from pyro_dgp.infer.buffers import untouched_buffers
from pyro_dgp.infer.graph import leaves
from pyro_dgp.infer.paths import refuse_tracing
from pyro_dgp.infer.random_state import random_state, set_random_state
from pyro_dgp.infer.running import Runs
from pyro_dgp.infer.samples import Samples

__all__ = ["estimate"]


def estimate(bound: Bound, run: Runs, chunks: list[slice], twice: bool) -> tuple[Tensor, Tensor]:
    """The bound, as a scalar whose derivative is the gradient estimate, and the log weights.

    :param bool twice: Whether to hold the graph of one chunk at a time: chunks are first drawn for
        their weights, without a graph, and then again for their gradient.
    :raises NotImplementedError: If ``torch.jit.trace`` is on and would record a wrong gradient.
    """

    def again(rows: slice) -> Samples:
        with untouched_buffers():  # running statistics see the batch once, in the first run
            return run(rows)

    first, *others = chunks
    samples = [run(first)]
    if not twice or not others or not torch.is_grad_enabled():
        samples += [again(rows) for rows in others]
        value, log_weights, coefficients = _value(bound, samples[0], [s.weights for s in samples])
        if torch.is_grad_enabled():
            surrogate = reduce(add, (s.surrogate(coefficients) for s in samples))
            value = value + (surrogate - surrogate.detach())
        return value, log_weights

    refuse_tracing()
    weights, states, kept = [samples[0].weights], [], run.others.copy()
    with torch.no_grad():
        for rows in others:
            states.append(random_state())
            weights.append(again(rows).weights)
    run.others = kept  # those added since have no graph
    value, log_weights, coefficients = _value(bound, samples[0], weights)
    gradients: dict[Tensor, Tensor] = {}
    # The samples of a chunk hold its graph, so they must be freed before the next chunk is drawn.
    _add_gradients(gradients, samples.pop().surrogate(coefficients))
    for rows, state in zip(others, states, strict=True):
        set_random_state(state)
        _add_gradients(gradients, again(rows).surrogate(coefficients))
    return _WithGradients.apply(value, tuple(gradients.values()), *gradients), log_weights


def _value(
    bound: Bound, first: Samples, weights: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Coefficients]:
    """The bound's value, the log weights [M, K, ...], and each sample's weight in the gradient.

    :param list weights: For each run, log w of its samples, [samples, number of data], and the part
        of the bound outside the logarithms.
    """
    log_w, outside = zip(*weights, strict=True)
    log_weights = torch.cat(log_w)
    groups = [shape for _, shape in first.columns.values()]
    shape = groups[0] if len(groups) == 1 else log_weights.shape[1:]
    # L = N/B sum_n log 1/K sum_k w_nk - KL(all other sites)
    value = first.scale * bound.value(log_weights).sum() + sum(outside)
    by_set = log_weights.reshape(bound.num_particles, bound.K, *shape)
    coefficients = bound.coefficients(log_weights)
    if first.log_scored is not None:
        coefficients = replace(coefficients, signal=bound.signals(log_weights))
    return value, by_set, coefficients


class _WithGradients(torch.autograd.Function):
    """A value with given derivatives by some tensors."""

    @staticmethod
    def forward(ctx, value, gradients, *tensors):
        ctx.gradients = gradients
        return value

    @staticmethod
    def backward(ctx, by_value):
        return None, None, *(by_value * gradient for gradient in ctx.gradients)


def _add_gradients(gradients: dict[Tensor, Tensor], scalar: Tensor) -> None:
    """Adds the derivatives of a scalar by all leaves that it depends on."""
    inputs = leaves(scalar)
    if not inputs:
        return
    # The part of the graph that runs share is needed again.
    found = torch.autograd.grad(scalar, inputs, retain_graph=True)
    for leaf, gradient in zip(inputs, found, strict=True):
        gradients[leaf] = gradients[leaf] + gradient if leaf in gradients else gradient
