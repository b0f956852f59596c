"""A bidirectional GRU over sequences of different lengths, whose training is fast on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence


def packed_gru(
    gru: nn.GRU, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, "2 B N H"], Float[Tensor, "2 B H"]]:
    """Run a bidirectional GRU of one layer over sequences whose padding, at their ends, it does not see.

    On a CPU, PyTorch's backward pass adds up the gradient of the weights, and of the whole packed batch, once for each
    time step and direction. Here both directions take each step together, and both gradients follow from one matrix
    product each, after the last step (benchmarks/gru.py).

    Args:
        gru: one layer, two directions, with biases.
        values: B sequences.
        mask: which elements are real; each sequence has one, and none after padding.

    Returns:
        The states of the two directions, 0 at padding, and their last states.
    """
    lengths = mask.sum(dim=1)
    order = lengths.argsort(descending=True, stable=True)
    steps, ranks = mask[order].T.nonzero(as_tuple=True)  # step by step, the longest sequence first
    starts, ends = order[ranks] * mask.shape[1], lengths[order[ranks]] - 1
    places = torch.stack([starts + steps, starts + ends - steps])  # as read from either end
    flat, sizes = values.flatten(0, 1), mask.sum(dim=0).cpu()
    if values.device.type == "cpu" and torch.is_grad_enabled():
        states = _run_on_cpu(gru, flat[places], sizes.tolist())
        last = (sizes.cumsum(dim=0) - sizes)[lengths[order] - 1] + torch.arange(len(order))
        final = states.index_select(1, last)
    else:
        packed, final = gru(PackedSequence(flat[places[0]], sizes))
        states = torch.stack(packed.data.chunk(2, dim=1))
        places = places[:1].expand(2, -1)
    padded = [
        side.new_zeros(len(flat), side.shape[1]).index_copy(0, place, side)
        for side, place in zip(states, places, strict=True)
    ]
    unsorted = final.new_empty(final.shape).index_copy(1, order, final)
    return torch.stack(padded).view(2, *mask.shape, -1), unsorted


def states_at_end(states: Float[Tensor, "2 B N H"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "2 B H"]:
    """Return both directions' states at the last element, where the backward one has read that element alone."""
    return states[:, torch.arange(len(mask), device=mask.device), mask.sum(dim=1) - 1]


def _run_on_cpu(gru: nn.GRU, data: Float[Tensor, "2 R C"], sizes: list[int]) -> Float[Tensor, "2 R H"]:
    """Return the states of both directions for packed rows that each reads from its own end."""
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else data.dtype
    input_weight, state_weight, input_bias, state_bias = (
        torch.stack(pair).to(kind) for pair in zip(*gru.all_weights, strict=True)
    )
    with torch.autocast("cpu", enabled=False):
        gates = torch.baddbmm(input_bias.unsqueeze(1), data.to(kind), input_weight.mT)
        states: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
            gates, state_weight, state_bias, sizes, data.dtype
        )
    return states


class _Recurrence(torch.autograd.Function):
    """``h_t = (1 - z) n + z h``, ``r, z = sigmoid(x_rz + W_rz h + b_rz)``, ``n = tanh(x_n + r (W_n h + b_n))``.

    x are the inputs' share of the three gates, packed: ``[2, R, 3H]`` for two directions and the R elements of all
    sequences, step by step. States are kept in ``precision``, all else in that of the weights, as PyTorch does it under
    autocast.
    """

    @staticmethod
    def forward(
        context: Any, gates: Tensor, weight: Tensor, bias: Tensor, sizes: list[int], precision: torch.dtype
    ) -> Tensor:
        width = weight.shape[2]
        before, inner, new = (gates.new_empty(*gates.shape[:2], width) for _ in range(3))
        doors = gates.new_empty(*gates.shape[:2], 2 * width)
        states = before.to(precision, copy=True)
        state = states.new_zeros(2, sizes[0], width)
        for rows in _steps(sizes):
            before[:, rows] = state = state[:, : rows.stop - rows.start]
            hidden = torch.baddbmm(bias.unsqueeze(1), before[:, rows], weight.mT)
            inner[:, rows] = hidden[..., 2 * width :]
            door = torch.add(
                gates[:, rows, : 2 * width], hidden[..., : 2 * width], out=doors[:, rows]
            ).sigmoid_()
            torch.addcmul(
                gates[:, rows, 2 * width :], door[..., :width], inner[:, rows], out=new[:, rows]
            ).tanh_()
            change = (state - new[:, rows]).mul_(door[..., width:])
            state = torch.add(new[:, rows], change, out=states[:, rows])
        context.save_for_backward(weight, before, inner, new, doors)
        context.sizes = sizes
        return states

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        weight, before, inner, new, doors = context.saved_tensors
        width = weight.shape[2]
        reset, update = doors[..., :width], doors[..., width:]
        # What the loss does to a state reaches the gates through these factors, which do not wait for the loop.
        to_new = 1 - new.square()
        to_reset = inner * reset * (1 - reset)
        to_update = (before - new) * update * (1 - update)
        at_hidden, at_new = weight.new_empty(*new.shape[:2], 3 * width), torch.empty_like(new)
        carried = grad.new_zeros(2, 0, width)
        for rows in reversed([*_steps(context.sizes)]):
            at_state = grad[:, rows].clone()
            at_state[:, : carried.shape[1]] += carried
            kept = at_state * update[:, rows]
            inwards = torch.mul(at_state - kept, to_new[:, rows], out=at_new[:, rows])
            torch.mul(inwards, to_reset[:, rows], out=at_hidden[:, rows, :width])
            torch.mul(at_state, to_update[:, rows], out=at_hidden[:, rows, width : 2 * width])
            torch.mul(inwards, reset[:, rows], out=at_hidden[:, rows, 2 * width :])
            carried = kept.add_(torch.bmm(at_hidden[:, rows], weight))
        at_gates = torch.cat([at_hidden[..., : 2 * width], at_new], dim=2)
        return at_gates, torch.bmm(at_hidden.mT, before), at_hidden.sum(dim=1), None, None


def _steps(sizes: list[int]) -> Iterator[slice]:
    """Yield the rows of each time step."""
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        yield slice(end - size, end)
