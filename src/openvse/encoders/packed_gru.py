"""A GRU over packed sequences whose backward pass is fast on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence


def packed_gru(gru: nn.GRU, packed: PackedSequence) -> tuple[PackedSequence, Float[Tensor, "2 B H"]]:
    """Run a bidirectional GRU of one layer: what ``gru(packed)`` returns, by the fastest way on this device.

    On a CPU, PyTorch adds up the gradient of the weights, and of the whole packed input, once for each time step. Here
    both follow from one matrix product each, after the last step (benchmarks/gru.py).

    Args:
        gru: one layer, two directions, with biases.
        packed: B sequences.

    Returns:
        The states of both directions side by side, and each direction's last state.
    """
    if packed.data.device.type != "cpu" or not torch.is_grad_enabled():
        states, final = gru(packed)
        return states, final
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else packed.data.dtype
    data = packed.data.to(kind)
    weights = [weight.to(kind) for weight in gru._flat_weights]
    sizes = packed.batch_sizes.tolist()
    with torch.autocast("cpu", enabled=False):
        forward = _states(data, weights[:4], sizes, False, packed.data.dtype)
        backward = _states(data, weights[4:], sizes, True, packed.data.dtype)
    # Sorted by length: the last states of the sequences that end at a step are the last rows of that step.
    shorter = [*sizes[1:], 0]
    ends = [
        forward[end - size + after : end]
        for end, size, after in zip(accumulate(sizes), sizes, shorter, strict=True)
    ]
    final = torch.stack([torch.cat(ends[::-1]), backward[: sizes[0]]])
    if packed.unsorted_indices is not None:
        final = final.index_select(1, packed.unsorted_indices)
    return packed._replace(data=torch.cat([forward, backward], dim=1)), final


def _states(
    data: Tensor, weights: list[Tensor], sizes: list[int], backwards: bool, precision: torch.dtype
) -> Tensor:
    input_weight, state_weight, input_bias, state_bias = weights
    gates = F.linear(data, input_weight, input_bias)
    states: Tensor = _Recurrence.apply(gates, state_weight, state_bias, sizes, backwards, precision)
    return states


class _Recurrence(torch.autograd.Function):
    """``h_t = (1 - z) n + z h``, ``r, z = sigmoid(x_rz + W_rz h + b_rz)``, ``n = tanh(x_n + r (W_n h + b_n))``.

    x are the inputs' share of the three gates, packed: ``[R, 3H]`` for the R tokens of all sequences, step by step.
    Matrix products run in the weights' precision; states and gates are kept in ``precision``, as PyTorch does.
    """

    @staticmethod
    def forward(
        context: Any,
        gates: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: list[int],
        backwards: bool,
        precision: torch.dtype,
    ) -> Tensor:
        width = weight.shape[1]
        states, before, inner, new = (gates.new_empty(len(gates), width, dtype=precision) for _ in range(4))
        doors = gates.new_empty(len(gates), 2 * width, dtype=precision)
        state = gates.new_zeros(0 if backwards else sizes[0], width, dtype=precision)
        for rows in _steps(sizes, backwards):
            size = rows.stop - rows.start
            if size > len(state):  # sequences that begin here, seen from their end
                state = torch.cat([state, state.new_zeros(size - len(state), width)])
            before[rows] = state = state[:size]
            hidden = torch.addmm(bias, state.to(weight.dtype), weight.T)
            doors[rows] = gates[rows, : 2 * width] + hidden[:, : 2 * width]
            reset, update = doors[rows].sigmoid_().split(width, dim=1)
            inner[rows] = hidden[:, 2 * width :]
            candidate = torch.addcmul(
                gates[rows, 2 * width :].to(precision), reset, inner[rows], out=new[rows]
            )
            state = torch.lerp(candidate.tanh_(), state, update, out=states[rows])
        context.save_for_backward(weight, before, inner, new, doors)
        context.sizes, context.backwards = sizes, backwards
        return states

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        weight, before, inner, new, doors = context.saved_tensors
        width = weight.shape[1]
        at_gates, at_hidden = (weight.new_empty(len(grad), 3 * width) for _ in range(2))
        carried = grad.new_zeros(0, width)
        for rows in _steps(context.sizes, not context.backwards):
            shared = min(rows.stop - rows.start, len(carried))
            at_state = grad[rows].clone()
            at_state[:shared] += carried[:shared]
            reset, update = doors[rows].split(width, dim=1)
            at_new = at_state * (1 - update) * (1 - new[rows].square())
            at_reset = at_new * inner[rows] * reset * (1 - reset)
            at_update = at_state * (before[rows] - new[rows]) * update * (1 - update)
            for gradients, third in ((at_gates, at_new), (at_hidden, at_new * reset)):
                for part, value in zip(
                    gradients[rows].split(width, dim=1), (at_reset, at_update, third), strict=True
                ):
                    part.copy_(value)
            carried = torch.addcmul((at_hidden[rows] @ weight).to(grad.dtype), at_state, update)
        at_weight = at_hidden.T @ before.to(weight.dtype)
        return at_gates, at_weight, at_hidden.sum(dim=0), None, None, None


def _steps(sizes: list[int], backwards: bool) -> Iterator[slice]:
    """Yield the rows of each time step."""
    rows = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    return iter(rows[::-1] if backwards else rows)
