"""The shared mathematics against definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openvse.functional import (
    compact,
    keep_at_least_one,
    kth_largest,
    masked_softmax,
    normalize,
    pad,
    position_mask,
    sinusoidal_positions,
    sort_descending,
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from(["float64", "float32", "bfloat16"]),
    st.booleans(),
)
def test_sort_equals_torch_sort_of_each_item(lengths: list[int], dtype: str, with_gradient: bool) -> None:
    mask = position_mask(torch.tensor(lengths), max(lengths))
    local = torch.randn(len(lengths), max(lengths), 3).to(getattr(torch, dtype)).requires_grad_(with_gradient)
    ranked = sort_descending(local, mask)
    assert ranked.dtype == local.dtype
    for item, length in enumerate(lengths):
        expected = local[item, :length].T.sort(dim=-1, descending=True).values
        assert torch.equal(ranked[item, :, :length], expected)
        assert (ranked[item, :, length:] == 0).all()


def test_gradient_of_sort_is_the_permutation() -> None:
    torch.manual_seed(0)
    local = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    mask = position_mask(torch.tensor([5, 3]), 5)
    assert torch.autograd.gradcheck(lambda x: sort_descending(x, mask), (local,))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 7), st.integers(0, 99), st.sampled_from([(), (2,)]))
def test_compact_keeps_the_order_of_what_stays(items: int, size: int, seed: int, width: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(items, size, generator=generator) > 0.5
    mask[:, -1] = True
    values = torch.randint(1, 100, (items, size, *width), generator=generator)
    moved, kept = compact(values, mask)
    assert moved.shape[1] == int(mask.sum(dim=1).max())
    for item in range(items):
        assert torch.equal(moved[item][kept[item]], values[item][mask[item]])
        assert (moved[item][~kept[item]] == 0).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from([(), (3,)]))
def test_pad_keeps_every_item(lengths: list[int], width: tuple[int, ...]) -> None:
    items = [torch.randint(1, 9, (length, *width)) for length in lengths]
    inputs = pad(items)
    assert inputs.mask is not None and inputs.mask.sum(dim=1).tolist() == lengths
    for row, mask, item in zip(inputs.values, inputs.mask, items, strict=True):
        assert torch.equal(row[mask], item)
        assert (row[~mask] == 0).all()


def test_sinusoids_are_products_of_frequency_and_position() -> None:
    waves = sinusoidal_positions(7, 6, dtype=torch.float64)
    for k in range(7):
        for j in range(3):
            angle = k / 10000 ** (2 * j / 6)
            assert waves[k, 2 * j].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert waves[k, 2 * j + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert sinusoidal_positions(4, 5).shape == (4, 5)


def test_an_emptied_item_keeps_its_first_real_element() -> None:
    mask = torch.tensor([[False, True, True], [True, True, False], [False, False, False]])
    keep = torch.tensor([[False, False, False], [False, True, True], [True, True, True]])
    expected = torch.tensor([[False, True, False], [False, True, False], [False, False, False]])
    assert torch.equal(keep_at_least_one(keep, mask), expected)


def test_masked_softmax_gives_the_masked_no_weight() -> None:
    weights = masked_softmax(torch.tensor([[1.0, 5.0, 1.0]]), torch.tensor([[True, False, True]]))
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.0, 0.5]]))


def test_normalize_leaves_half_precision() -> None:
    assert normalize(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.float32
    assert normalize(torch.ones(2, 4, dtype=torch.float64)).dtype == torch.float64
    torch.testing.assert_close(normalize(torch.randn(3, 4)).norm(dim=-1), torch.ones(3))
    assert (normalize(torch.zeros(1, 4)) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_kth_largest_is_the_sorted_rows_kth(dtype: torch.dtype, k: int) -> None:
    scores = torch.randn(5, 7).to(dtype).requires_grad_()
    scores.data[0, :4] = float("-inf")
    scores.data[1] = 0.5  # all tie
    kth = kth_largest(scores, torch.tensor(k))
    assert torch.equal(kth, scores.detach().sort(dim=1, descending=True).values[:, k - 1])
    assert not kth.requires_grad
