"""The GRU over packed sequences equals PyTorch's, forward and backward."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from openvse.encoders.packed_gru import packed_gru


def _run(lengths, *, own, dtype=torch.float64):
    torch.manual_seed(0)
    gru = nn.GRU(5, 7, batch_first=True, bidirectional=True, dtype=dtype)
    words = torch.randn(len(lengths), max(lengths), 5, dtype=dtype, requires_grad=True)
    packed = pack_padded_sequence(words, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    states, final = packed_gru(gru, packed) if own else gru(packed)
    assert isinstance(states, PackedSequence)
    padded, read = pad_packed_sequence(states, batch_first=True)
    assert read.tolist() == list(lengths)
    weighted = (padded * torch.arange(padded.numel()).view_as(padded).sin()).sum() + (
        final * final.detach().cos()
    ).sum()
    gradients = torch.autograd.grad(weighted, [words, *gru.parameters()])
    return [padded, final, *gradients]


@pytest.mark.parametrize("lengths", [(4, 2, 6), (3, 3), (1,), (1, 5, 5, 2, 1), (7, 6, 5, 4)])
def test_states_and_gradients_equal_those_of_pytorch(lengths):
    for ours, theirs in zip(_run(lengths, own=True), _run(lengths, own=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_autocast_rounds_as_pytorch_does():
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (_run((4, 2, 6), own=own, dtype=torch.float32) for own in (True, False))
    assert ours[0].dtype == theirs[0].dtype == torch.float32
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.float(), other.float(), rtol=0.05, atol=0.05)


def test_frozen_words_need_no_gradient():
    gru = nn.GRU(5, 7, batch_first=True, bidirectional=True)
    packed = pack_padded_sequence(torch.randn(2, 3, 5), torch.tensor([3, 2]), batch_first=True)
    packed_gru(gru, packed)[0].data.sum().backward()
    assert gru.weight_ih_l0.grad.abs().sum() > 0


def test_a_frozen_gru_passes_the_gradient_on():
    gru = nn.GRU(5, 7, batch_first=True, bidirectional=True).requires_grad_(False)
    words = torch.randn(2, 3, 5, requires_grad=True)
    packed_gru(gru, pack_padded_sequence(words, torch.tensor([3, 2]), batch_first=True))[
        0
    ].data.sum().backward()
    assert words.grad.abs().sum() > 0
