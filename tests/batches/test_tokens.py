"""The table of token ids."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from openvse.batches.loaders import TokenTable
from openvse.functional import pad

SENTENCES = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=7), min_size=1, max_size=8)


@given(SENTENCES, st.data())
def test_take_equals_padding_a_list(sentences, data):
    tokens = [torch.tensor(ids) for ids in sentences]
    table = TokenTable(tokens)
    positions = data.draw(st.lists(st.integers(0, len(tokens) - 1), min_size=1, max_size=10))
    taken = table.take(np.array(positions))
    expected = pad([tokens[position] for position in positions])
    assert len(table) == len(tokens)
    assert torch.equal(taken.values, expected.values)
    assert taken.mask is not None and expected.mask is not None
    assert torch.equal(taken.mask, expected.mask)


def test_padding_is_zero_whatever_lies_behind():
    table = TokenTable([torch.tensor([5]), torch.tensor([7, 8, 9])])
    taken = table.take(np.array([0, 1]))
    assert taken.values.tolist() == [[5, 0, 0], [7, 8, 9]]
    assert taken.mask.tolist() == [[True, False, False], [True, True, True]]
    assert taken.values.dtype == torch.int64


def test_lengths():
    assert TokenTable([torch.tensor([5]), torch.tensor([7, 8, 9])]).lengths.tolist() == [1, 3]
    assert len(TokenTable([])) == 0
