"""The kernel of a GRU in Triton: by its interpreter on a CPU (``make kernel-check``), and compiled for GPUs."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

triton = pytest.importorskip("triton", reason="Triton is not installed: make kernel-check")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

from openvse_triton.gru import _backward, _forward, walked_states  # noqa: E402


@pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs the interpreter or a GPU")
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_values_and_gradients_equal_those_of_pytorch(dtype: torch.dtype, tolerance: float, bidirectional: bool) -> None:
    device = "cpu" if INTERPRETED else "cuda"
    for inputs, units, lengths in ((32, 32, [9, 1, 7]), (5, 20, [7, 1, 5, 3])):
        plain = nn.GRU(inputs, units, batch_first=True, bidirectional=bidirectional).to(dtype).double()
        kernel = nn.GRU(inputs, units, batch_first=True, bidirectional=bidirectional)
        kernel.load_state_dict(plain.state_dict())
        kernel.to(device, dtype)
        values = torch.randn(len(lengths), lengths[0], inputs).to(dtype)
        other, given = values.double().requires_grad_(), values.to(device).requires_grad_()
        states = walked_states(kernel, given, torch.tensor(lengths, device=device))
        packed = nn.utils.rnn.pack_padded_sequence(other, torch.tensor(lengths), True, enforce_sorted=False)
        expected = nn.utils.rnn.pad_packed_sequence(plain(packed)[0], True)[0]
        expected = torch.stack(expected.chunk(1 + bidirectional, dim=2))
        weights = torch.randn(expected.shape, dtype=torch.float64)
        (expected * weights).sum().backward()
        (states.cpu().double() * weights).sum().backward()
        pairs = [(states, expected), (given.grad, other.grad)]
        pairs += [
            (mine.grad, theirs.grad) for mine, theirs in zip(kernel.parameters(), plain.parameters(), strict=True)
        ]
        for mine, theirs in pairs:
            assert (mine.cpu().double() - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("generation", [80, 90])
def test_it_compiles_for_gpus(generation: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, outputs in ((_forward, {}), (_backward, {"given": "*fp32", "to_gates": "*fp32", "to_hidden": "*fp32"})):
        types = dict.fromkeys(("gates", "weight", "bias"), "*fp32") | {"lengths": "*i32", "states": "*fp32"}
        types |= outputs | {"steps": "i32", "ways": "i32", "units": "constexpr", "width": "constexpr"}
        source = ASTSource(kernel, types, constexprs={"units": 32, "width": 32})
        target = GPUTarget("cuda", generation, 32)
        assert triton.compile(source, target=target, options={"num_warps": 1}).asm["cubin"]
