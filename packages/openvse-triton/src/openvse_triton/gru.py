"""A GRU of few units as one kernel of a GPU for each pass, in Triton, which comes with PyTorch's builds for CUDA.

A library starts several kernels for each step, and a step of 32 units computes next to nothing. Here a program keeps
the state and the weights of one direction of one sequence in registers, and walks the positions. Triton's interpreter
runs the same programs on a CPU (``make kernel-check``). No GPU has measured them yet.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MOST_UNITS = 64
"""The most units whose weights fit into the registers of a program."""


@triton.jit
def _matrix(start: tl.tensor, units: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    row, column = tl.arange(0, width)[:, None], tl.arange(0, width)[None, :]
    inside = (row < units) & (column < units)
    return tl.load(start + row * units + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _vector(start: tl.tensor, units: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    unit = tl.arange(0, width)
    return tl.load(start + unit, mask=unit < units, other=0.0).to(tl.float32)


@triton.jit
def _store(start: tl.tensor, values: tl.tensor, units: tl.constexpr, width: tl.constexpr) -> None:
    unit = tl.arange(0, width)
    tl.store(start + unit, values, mask=unit < units)


@triton.jit
def _tanh(x: tl.tensor) -> tl.tensor:
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _weights(weight: tl.tensor, bias: tl.tensor, way: tl.tensor, units: tl.constexpr, width: tl.constexpr) -> tl.tuple:
    size = units * units
    first, biases = weight + way * 3 * size, bias + way * 3 * units
    to_reset, to_update = _matrix(first, units, width), _matrix(first + size, units, width)
    to_new = _matrix(first + 2 * size, units, width)
    reset_bias, update_bias = _vector(biases, units, width), _vector(biases + units, units, width)
    new_bias = _vector(biases + 2 * units, units, width)
    return to_reset, to_update, to_new, reset_bias, update_bias, new_bias


@triton.jit
def _gates(gate: tl.tensor, state: tl.tensor, of: tl.tuple, units: tl.constexpr, width: tl.constexpr) -> tl.tuple:
    before = state[None, :]
    reset = tl.sigmoid(_vector(gate, units, width) + tl.sum(of[0] * before, 1) + of[3])
    update = tl.sigmoid(_vector(gate + units, units, width) + tl.sum(of[1] * before, 1) + of[4])
    hidden = tl.sum(of[2] * before, 1) + of[5]
    return reset, update, hidden, _tanh(_vector(gate + 2 * units, units, width) + reset * hidden)


@triton.jit
def _forward(
    gates: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    lengths: tl.tensor,
    states: tl.tensor,
    steps: tl.tensor,
    ways: tl.tensor,
    units: tl.constexpr,
    width: tl.constexpr,
) -> None:
    row, way = tl.program_id(0), tl.program_id(1)
    length, of = tl.load(lengths + row), _weights(weight, bias, way, units, width)
    state = tl.zeros((width,), tl.float32)
    for step in range(length):
        at = (row * steps + tl.where(way == 0, step, length - 1 - step)) * ways + way
        gate = gates + at * 3 * units
        _, update, _, new = _gates(gate, state, of, units, width)
        state = new + update * (state - new)
        _store(states + at * units, state, units, width)


@triton.jit
def _backward(
    gates: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    lengths: tl.tensor,
    states: tl.tensor,
    given: tl.tensor,
    to_gates: tl.tensor,
    to_hidden: tl.tensor,
    steps: tl.tensor,
    ways: tl.tensor,
    units: tl.constexpr,
    width: tl.constexpr,
) -> None:
    row, way = tl.program_id(0), tl.program_id(1)
    length, of = tl.load(lengths + row), _weights(weight, bias, way, units, width)
    earlier = tl.where(way == 0, -1, 1)
    carried = tl.zeros((width,), tl.float32)
    for step in range(length):
        place = tl.where(way == 0, length - 1 - step, step)
        at = (row * steps + place) * ways + way
        gate, first = gates + at * 3 * units, step == length - 1
        state = _vector(states + (at + tl.where(first, 0, earlier * ways)) * units, units, width)
        state = tl.where(first, 0.0, state)
        reset, update, hidden, new = _gates(gate, state, of, units, width)
        carried += _vector(given + at * units, units, width)
        by_new = carried * (1 - update) * (1 - new * new)
        by_update = carried * (state - new) * update * (1 - update)
        by_reset, by_hidden = by_new * hidden * reset * (1 - reset), by_new * reset
        _store(to_gates + at * 3 * units, by_reset, units, width)
        _store(to_gates + at * 3 * units + units, by_update, units, width)
        _store(to_gates + at * 3 * units + 2 * units, by_new, units, width)
        _store(to_hidden + at * units, by_hidden, units, width)
        back = tl.sum(of[0] * by_reset[:, None], 0) + tl.sum(of[1] * by_update[:, None], 0)
        carried = carried * update + back + tl.sum(of[2] * by_hidden[:, None], 0)


class _Walk(torch.autograd.Function):
    """The states of all sequences, from what their elements add to the gates."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
        rows, steps, ways, _, units = gates.shape
        states = gates.new_zeros(rows, steps, ways, units)
        given, sizes = (gates.contiguous(), weight.contiguous(), bias.contiguous(), lengths), (steps, ways, units)
        _forward[(rows, ways)](*given, states, *sizes, triton.next_power_of_2(units), num_warps=1)
        ctx.save_for_backward(*given, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        gates, weight, bias, lengths, states = ctx.saved_tensors
        rows, steps, ways, _, units = gates.shape
        by_gates, by_hidden = torch.zeros_like(gates, dtype=torch.float32), states.new_zeros(states.shape).float()
        given = gates, weight, bias, lengths, states, grad.contiguous(), by_gates, by_hidden
        _backward[(rows, ways)](*given, steps, ways, units, triton.next_power_of_2(units), num_warps=1)
        before = torch.zeros_like(states, dtype=torch.float32)
        before[:, 1:, 0] = states[:, :-1, 0].float()
        before[:, :-1, 1:] = states[:, 1:, 1:].float()
        both = torch.cat([by_gates[:, :, :, :2], by_hidden.unsqueeze(3)], dim=3)
        by_weight = torch.einsum("bnwgs,bnwk->wgsk", both, before)
        by_bias = both.sum((0, 1))
        return by_gates.to(gates.dtype), by_weight.to(weight.dtype), by_bias.to(bias.dtype), None


def walked_states(
    gru: nn.GRU, values: Float[Tensor, "B N C"], lengths: Int[Tensor, "B"]
) -> Float[Tensor, "W B N H"] | None:
    """Return the states of a GRU of one layer in W = 1 or 2 directions, 0 beyond the lengths, which are on its device.

    None if it has more than ``MOST_UNITS`` units. Sums are in fp32, whatever the type of values and weights is.
    """
    if gru.hidden_size > MOST_UNITS:
        return None
    into, between, first, second = (torch.stack(each) for each in zip(*gru.all_weights, strict=True))
    gates = torch.einsum("bnc,wgc->bnwg", values, into) + first
    units, ways = gru.hidden_size, len(into)
    shaped = gates.view(*gates.shape[:-1], 3, units), between.view(ways, 3, units, units), second.view(ways, 3, units)
    states: Tensor = _Walk.apply(*shaped, lengths.to(torch.int32))  # type: ignore[no-untyped-call]
    return states.permute(2, 0, 1, 3)
