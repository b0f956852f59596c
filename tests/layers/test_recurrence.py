"""The GRU over packed sequences equals PyTorch's, forward and backward, and does not see padding."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from openvse.functional import position_mask
from openvse.layers.recurrence import final_states, packed_gru, states_at_end

LENGTHS = [(4, 2, 6), (3, 3), (1,), (1, 5, 5, 2, 1), (7, 6, 5, 4)]


def _gru_and_words(lengths, dtype):
    torch.manual_seed(0)
    gru = nn.GRU(5, 7, batch_first=True, bidirectional=True, dtype=dtype)
    words = torch.randn(len(lengths), max(lengths) + 1, 5, dtype=dtype, requires_grad=True)
    return gru, words, position_mask(torch.tensor(lengths), words.shape[1])


def _ours(gru, words, mask):
    states = packed_gru(gru, words, mask)
    return states, final_states(states, mask)


def _pytorch(gru, words, mask):
    packed = pack_padded_sequence(words, mask.sum(dim=1), batch_first=True, enforce_sorted=False)
    states, final = gru(packed)
    padded, _ = pad_packed_sequence(states, batch_first=True, total_length=words.shape[1])
    return torch.stack(padded.chunk(2, dim=-1)), final


def _results(run, lengths, dtype=torch.float64):
    gru, words, mask = _gru_and_words(lengths, dtype)
    states, final = run(gru, words, mask)
    weights = torch.arange(states.numel(), dtype=dtype).view_as(states).sin()
    total = (states * weights).sum() + final.square().sum()
    return [states, final, *torch.autograd.grad(total, [words, *gru.parameters()])]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_and_gradients_equal_those_of_pytorch(lengths):
    for ours, theirs in zip(_results(_ours, lengths), _results(_pytorch, lengths), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_inference_equals_pytorch(lengths):
    gru, words, mask = _gru_and_words(lengths, torch.float64)
    with torch.inference_mode():
        for ours, theirs in zip(_ours(gru, words, mask), _pytorch(gru, words, mask), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_states_at_the_end_are_those_of_the_last_real_element():
    gru, words, mask = _gru_and_words((4, 2, 6), torch.float64)
    states, final = _ours(gru, words, mask)
    at_end = states_at_end(states, mask)
    torch.testing.assert_close(at_end[0], final[0], rtol=0, atol=0)
    torch.testing.assert_close(at_end[1, 1], states[1, 1, 1], rtol=0, atol=0)


def test_padding_is_not_seen():
    gru, words, mask = _gru_and_words((4, 2, 6), torch.float64)
    garbage = torch.where(mask.unsqueeze(-1), words, torch.full_like(words, torch.nan))
    torch.testing.assert_close(_ours(gru, garbage, mask), _ours(gru, words, mask), rtol=0, atol=0)


def test_autocast_rounds_as_pytorch_does():
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (_results(run, (4, 2, 6), torch.float32) for run in (_ours, _pytorch))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype == torch.float32
        torch.testing.assert_close(mine, other, rtol=0.05, atol=0.05)


def test_a_frozen_gru_passes_the_gradient_on():
    gru, words, mask = _gru_and_words((3, 2), torch.float32)
    packed_gru(gru.requires_grad_(False), words, mask).sum().backward()
    assert words.grad[mask].abs().min() > 0


def test_words_without_gradient_leave_the_weights_theirs():
    gru, words, mask = _gru_and_words((3, 2), torch.float32)
    packed_gru(gru, words.detach(), mask).sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in gru.parameters())
