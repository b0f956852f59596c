"""Attention between sets against the paper's equations, one number at a time."""

import pytest
import torch
from torch import Tensor

from fusion.slow_loop import read_one, scores_one
from openvse.errors import RecipeError
from openvse.layers.attention import Attention, AttentionScores, attend
from tests.naming import names, refusal

WIDTH = 6


def tokens(lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Ragged items with garbage in their padding."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(lengths), max(lengths), WIDTH, dtype=torch.float64, generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return values.masked_fill(~mask.unsqueeze(-1), 1e3), mask


# Few keys for many queries, and the reverse: on a CPU the two are computed differently.
CASES = [([7, 3, 1], [2, 1, 2]), ([2, 1, 2], [7, 3, 1])]


@pytest.mark.parametrize(("lengths", "others"), CASES)
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_the_layer_equals_the_loop(lengths: list[int], others: list[int], num_heads: int) -> None:
    torch.manual_seed(0)
    layer = Attention(WIDTH, num_heads).double()
    (x, x_mask), (z, z_mask) = tokens(lengths, 1), tokens(others, 2)
    read = layer(x, layer.query(x), layer.key(z), layer.value(z), z_mask)
    for item in range(len(lengths)):
        expected = read_one(layer, x[item, x_mask[item]], z[item, z_mask[item]])
        torch.testing.assert_close(read[item, x_mask[item]], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("lengths", "others"), CASES)
@pytest.mark.parametrize(("num_heads", "num_vectors"), [(1, 1), (2, 1), (3, 4)])
def test_the_scores_equal_the_loop_and_so_do_their_gradients(
    lengths: list[int], others: list[int], num_heads: int, num_vectors: int
) -> None:
    torch.manual_seed(0)
    operator = AttentionScores(WIDTH, num_heads, num_vectors).double()
    (x, x_mask), (z, z_mask) = tokens(lengths, 1), tokens(others, 2)
    leaves = [x.requires_grad_(), z.requires_grad_(), *operator.parameters()]
    scores = operator(x, x_mask, z, z_mask)
    expected = torch.zeros_like(scores)
    for item in range(len(lengths)):
        expected[item, :, x_mask[item]] = scores_one(operator, x[item, x_mask[item]], z[item, z_mask[item]])
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(scores)
    mine = torch.autograd.grad(scores, leaves, direction)
    theirs = torch.autograd.grad(expected, leaves, direction)
    for one, other in zip(mine, theirs, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("queries", "keys"), [(5, 3), (3, 5), (4, 4)])
def test_both_ways_of_attending_are_one(queries: int, keys: int) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (queries, keys, keys))
    mask = torch.arange(keys) < torch.tensor([[keys], [1]])
    logits = (query @ key.transpose(2, 3) / 2).masked_fill(~mask[:, None, None], float("-inf"))
    torch.testing.assert_close(attend(query, key, value, mask), logits.softmax(-1) @ value)
    # Values of another width than the keys.
    torch.testing.assert_close(attend(query, key, value[..., :1], mask), logits.softmax(-1) @ value[..., :1])


@pytest.mark.parametrize("num_heads", [0, 4])
def test_heads_that_do_not_divide_the_width_are_refused(num_heads: int) -> None:
    assert names(refusal(RecipeError, Attention, WIDTH, num_heads), "num_heads", num_heads, "6")
    assert names(refusal(RecipeError, AttentionScores, WIDTH, num_heads, 1), "num_heads")


def test_no_reduction_at_all_is_refused() -> None:
    assert names(refusal(RecipeError, AttentionScores, WIDTH, 2, 0), "num_vectors", "0", "1")
