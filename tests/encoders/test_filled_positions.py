"""Captions that fill all positions of a text model."""

from __future__ import annotations

import torch

from openvse.encoders.transformers_text import append_last, fill_positions

IDS = torch.tensor([[5, 6, 7], [8, 9, 0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])


def test_padding_stands_behind_or_before() -> None:
    behind, place = fill_positions(IDS, MASK, size=4, padding=1, left=False)
    assert behind.tolist() == [[5, 6, 7, 1], [8, 9, 1, 1]]
    assert place[MASK].tolist() == [0, 1, 2, 0, 1]
    before, place = fill_positions(IDS, MASK, size=4, padding=1, left=True)
    assert before.tolist() == [[1, 5, 6, 7], [1, 1, 8, 9]]
    assert place[MASK].tolist() == [1, 2, 3, 2, 3]


def test_a_caption_may_fill_all_positions() -> None:
    for left in (False, True):
        full, _ = fill_positions(IDS[:1], MASK[:1], size=3, padding=1, left=left)
        assert full.tolist() == [[5, 6, 7]]


def test_the_last_state_follows_the_real_ones() -> None:
    states = torch.arange(6.0).reshape(2, 3, 1)
    wider, mask = append_last(states, MASK, torch.tensor([[10.0], [20.0]]))
    assert [row[real].flatten().tolist() for row, real in zip(wider, mask, strict=True)] == [
        [0, 1, 2, 10],
        [3, 4, 20],
    ]
