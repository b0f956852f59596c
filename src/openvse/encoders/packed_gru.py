"""A GRU over packed sequences whose backward pass is fast on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence


def packed_gru(
    gru: nn.GRU, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, "B N S"], Float[Tensor, "2 B H"]]:
    """Run a bidirectional GRU of one layer over sequences whose padding, at their ends, it does not see.

    On a CPU, PyTorch's backward pass adds up the gradient of the weights, and of the whole packed batch, once for each
    time step. Here both follow from one matrix product each, after the last step (benchmarks/gru.py).

    Args:
        gru: one layer, two directions, with biases.
        values: B sequences.
        mask: which elements are real; each sequence has one, and none after padding.

    Returns:
        The states of both directions side by side (S = 2H), 0 at padding, and each direction's last state.
    """
    order = mask.sum(dim=1).argsort(descending=True, stable=True)
    steps, ranks = mask[order].T.nonzero(as_tuple=True)  # step by step, the longest sequence first
    rows = order[ranks] * mask.shape[1] + steps
    sizes = mask.sum(dim=0).cpu()
    data = values.flatten(0, 1).index_select(0, rows)
    if data.device.type == "cpu" and torch.is_grad_enabled():
        states, final = _run_on_cpu(gru, data, sizes.tolist())
    else:
        packed, final = gru(PackedSequence(data, sizes))
        states = packed.data
    padded = states.new_zeros(mask.numel(), states.shape[1]).index_copy(0, rows, states)
    return padded.view(*mask.shape, -1), final.new_empty(final.shape).index_copy(1, order, final)


def _run_on_cpu(gru: nn.GRU, data: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Return the packed states and the last ones, the longest sequence first."""
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else data.dtype
    weights = [weight.to(kind) for weight in gru.all_weights[0] + gru.all_weights[1]]
    inputs = data.to(kind)
    with torch.autocast("cpu", enabled=False):
        forward = _states(inputs, weights[:4], sizes, False, data.dtype)
        backward = _states(inputs, weights[4:], sizes, True, data.dtype)
    # The sequences that end at a step are the last rows of that step; the shortest end first.
    ends = [
        forward[end - size + longer : end]
        for end, size, longer in zip(accumulate(sizes), sizes, [*sizes[1:], 0], strict=True)
    ]
    final = torch.stack([torch.cat(ends[::-1]), backward[: sizes[0]]])
    return torch.cat([forward, backward], dim=1), final


def _states(
    data: Tensor, weights: list[Tensor], sizes: list[int], backwards: bool, precision: torch.dtype
) -> Tensor:
    input_weight, state_weight, input_bias, state_bias = weights
    gates = F.linear(data, input_weight, input_bias)
    states: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
        gates, state_weight, state_bias, sizes, backwards, precision
    )
    return states


class _Recurrence(torch.autograd.Function):
    """``h_t = (1 - z) n + z h``, ``r, z = sigmoid(x_rz + W_rz h + b_rz)``, ``n = tanh(x_n + r (W_n h + b_n))``.

    x are the inputs' share of the three gates, packed: ``[R, 3H]`` for the R tokens of all sequences, step by step.
    States are kept in ``precision``, all else in that of the weights, as PyTorch does it under autocast.
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
        before, new = (gates.new_empty(len(gates), width) for _ in range(2))
        doors, hidden = gates.new_empty(len(gates), 2 * width), torch.empty_like(gates)
        states = gates.new_empty(len(gates), width, dtype=precision)
        state = states.new_zeros(0 if backwards else sizes[0], width)
        for rows in _steps(sizes, backwards):
            size = rows.stop - rows.start
            if size > len(state):  # sequences that begin here, seen from their end
                state = torch.cat([state, state.new_zeros(size - len(state), width)])
            before[rows] = state = state[:size]
            torch.addmm(bias, before[rows], weight.T, out=hidden[rows])
            torch.add(gates[rows, : 2 * width], hidden[rows, : 2 * width], out=doors[rows]).sigmoid_()
            reset, update = doors[rows, :width], doors[rows, width:]
            torch.addcmul(gates[rows, 2 * width :], reset, hidden[rows, 2 * width :], out=new[rows]).tanh_()
            state = torch.add(new[rows], (state - new[rows]).mul_(update), out=states[rows])
        context.save_for_backward(weight, before, hidden[:, 2 * width :], new, doors)
        context.sizes, context.backwards = sizes, backwards
        return states

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        weight, before, inner, new, doors = context.saved_tensors
        width = weight.shape[1]
        reset, update = doors[:, :width], doors[:, width:]
        # What the loss does to a state reaches the gates through these factors, which do not wait for the loop.
        to_new = 1 - new.square()
        to_reset = inner * reset * (1 - reset)
        to_update = (before - new) * update * (1 - update)
        at_hidden, at_new = weight.new_empty(len(grad), 3 * width), torch.empty_like(new)
        carried = grad.new_zeros(0, width)
        for rows in _steps(context.sizes, not context.backwards):
            shared = min(rows.stop - rows.start, len(carried))
            at_state = grad[rows].clone()
            at_state[:shared] += carried[:shared]
            kept = at_state * update[rows]
            inwards = torch.mul(at_state - kept, to_new[rows], out=at_new[rows])
            torch.mul(inwards, to_reset[rows], out=at_hidden[rows, :width])
            torch.mul(at_state, to_update[rows], out=at_hidden[rows, width : 2 * width])
            torch.mul(inwards, reset[rows], out=at_hidden[rows, 2 * width :])
            carried = kept.add_(at_hidden[rows] @ weight)
        at_gates = torch.cat([at_hidden[:, : 2 * width], at_new], dim=1)
        return at_gates, at_hidden.T @ before, at_hidden.sum(dim=0), None, None, None


def _steps(sizes: list[int], backwards: bool) -> Iterator[slice]:
    """Yield the rows of each time step."""
    rows = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    return iter(rows[::-1] if backwards else rows)
