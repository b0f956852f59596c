"""A bidirectional GRU over sequences of different lengths that trains fast on a CPU."""

from __future__ import annotations

from typing import Any, cast, no_type_check

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from openvse.functional import of_values
from openvse.kernels import is_traced, shapes_are_fixed
from openvse.registry import installed, load_part
from openvse.types import on_cpu

# Rows of packed sequences are rounded up to a multiple of this. oneDNN compiles a kernel for each new shape and stride
# of a matrix product, which takes longer than the product itself if the sequences are short.
_BLOCK = 128


def packed_gru(gru: nn.GRU, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "W B N H"]:
    """Run a GRU of one layer, in W = 1 or 2 directions, over sequences without their padding, which is at their ends.

    On a CPU, PyTorch's backward pass adds up the gradient of the weights, and of the whole packed batch, once for each
    time step and direction. Here both directions take each step together, and each of the two gradients is one matrix
    product after the last step (benchmarks/gru.py). On a GPU, an installed package may have a kernel for it (the entry
    point ``kernel.gru``). Return the states of both directions, 0 at padding.
    """
    if shapes_are_fixed():
        return _padded_gru(gru, values, mask)
    states: Tensor | None = None
    if values.is_cuda and (entry := installed("kernel").get("gru")) is not None:
        states = load_part(entry)(gru, values, mask.sum(dim=1))
    return _packed_gru(gru, values, mask) if states is None else states


def _packed_gru(gru: nn.GRU, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "W B N H"]:
    """Run a GRU in one or W = 2 directions. Everything that the lengths decide is computed on the CPU."""
    sizes, count = on_cpu(mask).sum(dim=0), mask.numel()
    forwards, backwards, steps = of_values(mask, reading_order)
    if values.device.type == "cpu" and gru.bidirectional and torch.is_grad_enabled():
        states = _run_on_cpu(gru, values.flatten(0, 1)[torch.stack((forwards, backwards))], sizes.tolist())
        each = torch.cat((forwards, backwards + count))
        padded = states.new_zeros(2 * count, states.shape[2]).index_copy(0, each, states.flatten(0, 1))
        return padded.view(2, *mask.shape, -1)
    # Sequences that share their elements, as an expanded tensor, are not copied.
    rows = values[0].index_select(0, steps) if values.stride(0) == 0 else values.flatten(0, 1).index_select(0, forwards)
    read: Tensor = gru(PackedSequence(rows, sizes))[0].data.unflatten(1, (-1, gru.hidden_size))
    padded = read.new_zeros(count, *read.shape[1:]).index_copy_(0, forwards, read)
    return padded.view(*mask.shape, -1, gru.hidden_size).permute(2, 0, 1, 3)


def reading_order(mask: Bool[Tensor, "B N"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the places of the elements of sequences as read from each end, by steps, and the step of each."""
    lengths = mask.sum(dim=1)
    order = lengths.argsort(descending=True, stable=True)  # the longest sequence first
    steps, ranks = mask[order].T.nonzero(as_tuple=True)
    starts, ends = order[ranks] * mask.shape[1], lengths[order[ranks]] - 1
    return starts + steps, starts + ends - steps, steps


def _padded_gru(gru: nn.GRU, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "W B N H"]:
    """Compute ``packed_gru`` without the values of the mask.

    The backward direction reads the reversed elements. Both go on over the padding, whose states are left out.
    """
    lengths, read = mask.sum(dim=1), [values]
    steps = torch.arange(mask.shape[1], device=mask.device)
    mirrored = (lengths.unsqueeze(1) - 1 - steps).clamp(min=0).unsqueeze(-1)
    if gru.bidirectional:
        read.append(values.gather(1, mirrored.expand(-1, -1, values.shape[2])))
    read_by = scanned_states if is_traced() else _states_of
    states = [read_by(each, *weights) for each, weights in zip(read, gru.all_weights, strict=True)]
    states[1:] = [each.gather(1, mirrored.expand(-1, -1, gru.hidden_size)) for each in states[1:]]
    return torch.stack(states).masked_fill(~mask.unsqueeze(-1), 0.0)


def scanned_states(
    values: Float[Tensor, "B N C"],
    input_weight: Float[Tensor, "G C"],
    state_weight: Float[Tensor, "G H"],
    input_bias: Float[Tensor, "G"],
    state_bias: Float[Tensor, "G"],
) -> Float[Tensor, "B N H"]:
    """Return the states of one direction of a GRU after each element, in a program that is exported.

    PyTorch would unroll its own GRU for the number of elements of the example. The weights belong to the reset, update
    and new gates, G = 3 H.
    """
    from torch._higher_order_ops.scan import scan

    @no_type_check  # the tests' checks of shapes cannot be part of a program
    def step(state: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        of_state = torch.addmm(state_bias, state, state_weight.T)
        (door_r, door_z, new), (state_r, state_z, state_n) = gates.chunk(3, dim=1), of_state.chunk(3, dim=1)
        update, candidate = ((door_z + state_z).sigmoid(), (new + (door_r + state_r).sigmoid() * state_n).tanh())
        after = candidate + update * (state - candidate)
        return after, after.clone()

    gates = (values @ input_weight.T + input_bias).transpose(0, 1)
    _, states = scan(step, values.new_zeros(values.shape[0], state_weight.shape[1]), gates)
    return cast(Tensor, states.transpose(0, 1))


def _states_of(values: Float[Tensor, "B N C"], *weights: Tensor) -> Float[Tensor, "B N H"]:
    """Return the states of one direction by PyTorch's GRU."""
    first = values.new_zeros(1, len(values), weights[1].shape[1])
    states: Tensor = torch.gru(values.transpose(0, 1), first, weights, True, 1, 0.0, True, False, False)[0]
    return states.transpose(0, 1)


def start_orthogonally(gru: nn.GRU) -> None:
    """Give a GRU orthogonal weights and biases of 0, as HGR's released code does."""
    for weight in gru.parameters():
        nn.init.orthogonal_(weight) if weight.dim() == 2 else nn.init.zeros_(weight)


def states_at_end(states: Float[Tensor, "W B N H"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "W B H"]:
    """Return the states at the last element, where the backward direction has read only this element."""
    items, ends, _ = of_values(mask, _ends)
    return states[:, items, ends[0]]


def final_states(states: Float[Tensor, "W B N H"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "W B H"]:
    """Return the state of each direction after its last step: at the last element, and backwards at the first."""
    items, ends, directions = of_values(mask, _ends)
    return states[directions[:, : len(states)], items.unsqueeze(1), ends[: len(states)].T].transpose(0, 1)


def _ends(mask: Bool[Tensor, "B N"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the numbers of items, the last and the first element of each, and the directions that end there."""
    items, last = torch.arange(mask.shape[0], device=mask.device), mask.sum(dim=1) - 1
    return items, torch.stack((last, torch.zeros_like(last))), torch.arange(2, device=mask.device).unsqueeze(0)


def _run_on_cpu(gru: nn.GRU, data: Float[Tensor, "2 R C"], sizes: list[int]) -> Float[Tensor, "2 R H"]:
    """Return the states of both directions for packed rows, each read from its own end."""
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else data.dtype
    input_weight, state_weight, input_bias, state_bias = (
        torch.stack(pair).to(kind) for pair in zip(*gru.all_weights, strict=True)
    )
    with torch.autocast("cpu", enabled=False):
        rows = nn.functional.pad(data.to(kind), (0, 0, 0, -data.shape[1] % _BLOCK))
        gates = torch.baddbmm(input_bias.unsqueeze(1), rows, input_weight.mT)
        states: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
            gates, state_weight, state_bias, sizes, data.dtype
        )
    return states


class _Recurrence(torch.autograd.Function):
    """``h_t = (1 - z) n + z h``, ``r, z = sigmoid(x_rz + W_rz h + b_rz)``, ``n = tanh(x_n + r (W_n h + b_n))``.

    x is the contribution of the inputs to the three gates, packed: ``[2, R, 3H]`` for two directions and the R elements
    of all sequences, step by step, followed by unused rows. States are kept in ``precision``, everything else in the
    precision of the weights, as PyTorch does under autocast.
    """

    @staticmethod
    def forward(
        context: Any, gates: Tensor, weight: Tensor, bias: Tensor, sizes: list[int], precision: torch.dtype
    ) -> Tensor:
        width, rows = weight.shape[2], sum(sizes)
        before, hidden = _roomy(gates, width), _roomy(gates, 3 * width)
        new, reset_update = gates.new_empty(2, rows, width), gates.new_empty(2, rows, 2 * width)
        states = torch.empty_like(new, dtype=precision)
        state = states.new_zeros(2, sizes[0], width)
        bias, transposed = bias.unsqueeze(1), weight.mT
        # Views of all steps at once: slicing in the loop would take longer than the arithmetic of a small GRU.
        for x_door, x_new, old, h, h_door, h_new, door, reset, update, candidate, result in _by_step(
            sizes,
            *_parts(gates, width),
            before,
            hidden,
            *_parts(hidden, width),
            reset_update,
            *reset_update.split_with_sizes([width, width], dim=2),
            new,
            states,
        ):
            state = state.narrow(1, 0, old.shape[1])
            old.copy_(state)
            torch.baddbmm(bias, old, transposed, out=h)
            torch.add(x_door, h_door, out=door).sigmoid_()
            torch.addcmul(x_new, reset, h_new, out=candidate).tanh_()
            state = torch.add(candidate, (state - candidate).mul_(update), out=result)
        context.save_for_backward(weight, before, hidden, new, reset_update)
        context.sizes = sizes
        return states

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        weight, before, hidden, new, reset_update = context.saved_tensors
        width, rows = weight.shape[2], new.shape[1]
        reset, update = reset_update.split_with_sizes([width, width], dim=2)
        # The gradient of a state reaches the gates through these factors, which do not depend on the loop.
        to_new = 1 - new.square()
        to_reset = _parts(hidden, width)[1][:, :rows] * reset * (1 - reset)
        to_update = (before[:, :rows] - new) * update * (1 - update)
        at_hidden, at_new = _roomy(hidden, 3 * width), new.new_zeros(before.shape)
        carried = grad.new_zeros(2, 0, width)
        steps = _by_step(
            context.sizes,
            grad,
            update,
            reset,
            to_new,
            to_reset,
            to_update,
            at_new,
            at_hidden,
            *at_hidden.split_with_sizes([width, width, width], dim=2),
        )
        for at, z, r, f_new, f_reset, f_update, inwards, whole, by_reset, by_update, by_new in reversed(steps):
            at_state = at.clone()
            at_state.narrow(1, 0, carried.shape[1]).add_(carried)
            through_gate = at_state * z
            torch.mul(at_state - through_gate, f_new, out=inwards)
            torch.mul(inwards, f_reset, out=by_reset)
            torch.mul(at_state, f_update, out=by_update)
            torch.mul(inwards, r, out=by_new)
            carried = through_gate.add_(torch.bmm(whole, weight))
        at_gates = torch.cat([_parts(at_hidden, width)[0], at_new], dim=2)
        return at_gates, torch.bmm(at_hidden.mT, before), at_hidden.sum(dim=1), None, None


def _parts(gates: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Split gate values into the reset and update gates and the new state."""
    reset_update, new = gates.split_with_sizes([2 * width, width], dim=2)
    return reset_update, new


def _roomy(like: Tensor, width: int) -> Tensor:
    """Return zeros ``[2, R, width]`` for the R rows of ``like``, whose strides are the same for most R."""
    rows = like.shape[1]
    return like.new_zeros(2, 1 << (rows - 1).bit_length(), width).narrow(1, 0, rows)


def _by_step(sizes: list[int], *packed: Tensor) -> list[tuple[Tensor, ...]]:
    """Return, for each time step, its rows of every tensor."""
    rows = sum(sizes)
    return list(zip(*(tensor.narrow(1, 0, rows).split_with_sizes(sizes, dim=1) for tensor in packed), strict=True))
