"""The compiled sort and sum, and their gradients, equal those of PyTorch for sets of every size, mask and stride."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from openvse import functional
from openvse.aggregators import GPO, AdPool, Aggregator, FSPool, KMax
from openvse.kernels import ranked
from openvse.kernels.ranked import LARGEST, is_usable, load_kernel, sort_elements, sum_ranked
from openvse.types import Features
from tests.failures import Failures

requires_compiler = pytest.mark.skipif(load_kernel("ranked") is None, reason="no C compiler is installed")


def plain_sum(local: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Sort and sum with PyTorch's own functions, in the precision of the input."""
    rows = local.masked_fill(~mask.unsqueeze(-1), float("-inf")).sort(dim=1, descending=True).values
    real = torch.arange(local.shape[1]) < mask.sum(dim=1, keepdim=True)
    rows = rows.masked_fill(~real.unsqueeze(-1), 0.0)[:, : weights.shape[1]]
    return torch.einsum("bnl,bn->bl", rows, weights[:, : rows.shape[1]])


def distinct(*shape: int) -> Tensor:
    """Return numbers of which no two are equal, so that the gradient is defined."""
    count = torch.Size(shape).numel()
    return ((torch.randperm(count) - count / 2) / count).view(shape).clone()


def some_masks(items: int, elements: int) -> Tensor:
    """Return masks with the real elements in any places: all, one, and a random half."""
    mask = torch.rand(items, elements) < 0.5
    mask[0], mask[1] = True, False
    mask[torch.arange(items), torch.randint(elements, (items,))] = True
    return mask


@requires_compiler
def test_sum_and_gradients_equal_those_of_pytorch() -> None:
    failures = Failures()
    for elements in [1, 2, 3, 5, 8, 13, 31, 36, 49, 64, 100, 200, LARGEST]:
        with failures.of(elements):
            torch.manual_seed(elements)
            local, mask = distinct(3, elements, 70), some_masks(3, elements)
            weights = torch.rand(3, elements)
            assert_equals_pytorch(local, mask, weights)
    assert not failures, failures


def assert_equals_pytorch(local: Tensor, mask: Tensor, weights: Tensor) -> None:
    """Compare the sum and both gradients."""
    mine, theirs = ((x.clone().requires_grad_() for x in (local, weights)) for _ in range(2))
    (my_local, my_weights), (their_local, their_weights) = mine, theirs
    ours, expected = sum_ranked(my_local, mask, my_weights), plain_sum(their_local, mask, their_weights)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(sum_ranked(local, mask, weights), expected)
    given = torch.randn_like(ours)
    ours.backward(given)
    expected.backward(given)
    torch.testing.assert_close(my_local.grad, their_local.grad)
    torch.testing.assert_close(my_weights.grad, their_weights.grad, rtol=1e-4, atol=1e-5)


@requires_compiler
def test_every_size_is_sorted() -> None:
    local = torch.randn(LARGEST, LARGEST, 3)
    mask = torch.arange(LARGEST) < torch.arange(1, LARGEST + 1).unsqueeze(1)
    for size, rows in enumerate(sort_elements(local, mask), start=1):
        assert torch.equal(rows[:size], local[size - 1, :size].sort(dim=0, descending=True).values)
        assert not rows[size:].any()


@requires_compiler
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_sorting_and_its_gradient(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.arange(40 * 5).view(40, 5)[torch.randperm(40)]  # whole numbers, which bfloat16 holds up to 256
    local, mask = values.to(kind).repeat(4, 1, 1).requires_grad_(), some_masks(4, 40)
    rows = sort_elements(local, mask)
    given = torch.randn(rows.shape).to(kind)
    rows.backward(given)
    assert rows.dtype == local.grad.dtype == kind
    for item in range(4):
        order = local[item, mask[item]].argsort(dim=0, descending=True)
        assert torch.equal(rows[item, : len(order)], local[item, mask[item]].gather(0, order))
        assert torch.equal(local.grad[item, mask[item]].gather(0, order), given[item, : len(order)])
    assert not local.grad[~mask].any()


@requires_compiler
def test_bfloat16_is_summed_in_single_precision() -> None:
    local, weights = torch.randn(2, 50, 33).bfloat16(), torch.rand(2, 50)
    mask = some_masks(2, 50)
    expected = plain_sum(local.float(), mask, weights).bfloat16()
    assert torch.equal(sum_ranked(local, mask, weights), expected)


@requires_compiler
def test_strides_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "_VALUES_PER_THREAD", 1)
    wide, mask, weights = torch.randn(7, 20, 90), some_masks(7, 9), torch.rand(7, 9)
    part = wide[:, 2:20:2, 5:75]
    expected = sum_ranked(part.contiguous(), mask, weights)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3, 16):
            torch.set_num_threads(threads)
            assert torch.equal(sum_ranked(part, mask, weights), expected)
            assert torch.equal(sum_ranked(part.transpose(1, 2).contiguous().transpose(1, 2), mask, weights), expected)
    finally:
        torch.set_num_threads(before)


@requires_compiler
def test_nan_and_infinity_stay_visible() -> None:
    local = torch.zeros(1, 6, 3)
    local[0, 2, 0], local[0, 4, 1] = float("nan"), float("inf")
    mask, weights = torch.ones(1, 6, dtype=torch.bool), torch.full((1, 6), 1 / 6)
    assert sum_ranked(local, mask, weights)[0].isnan().tolist() == [True, False, False]
    assert sum_ranked(local, mask, weights)[0].isinf().tolist() == [False, True, False]
    first = torch.tensor([[1.0, 0, 0, 0, 0, 0]])
    assert sum_ranked(-local, mask, first)[0, 1] == 0  # minus infinity has no weight


def with_nan(kind: torch.dtype, elements: int) -> tuple[Tensor, Tensor]:
    """Return sets of which each dimension has no NaN, one, several or nothing else, beside infinity, and a mask."""
    torch.manual_seed(elements)
    # Whole numbers, distinct in each dimension, which bfloat16 holds.
    local, mask = torch.rand(5, elements, 70).argsort(dim=1).to(kind), some_masks(5, elements)
    for at, value in enumerate((torch.nan, -torch.nan, torch.inf)):
        local[:, at % elements, at::7] = value
    local[4, :, 9:20] = torch.nan
    local[2, torch.rand(elements) < 0.4, 20:30] = torch.nan
    return local, mask


KINDS = [torch.float32, torch.float64, torch.bfloat16]


def test_nan_is_the_largest_number_as_in_pytorch() -> None:
    failures = Failures()
    for elements, kind in product([1, 3, 16, 40], KINDS):
        with failures.of(kind, elements):
            local, mask = with_nan(kind, elements)
            mine, theirs = local.clone().requires_grad_(), local.clone().requires_grad_()
            rows = functional.sort_descending(mine, mask).transpose(1, 2)
            given = torch.randn(rows.shape).to(kind)
            rows.backward(given)
            for item, real in enumerate(mask):
                expected = theirs[item, real].sort(dim=0, descending=True).values
                assert torch.equal(rows[item, : len(expected)].nan_to_num(nan=7), expected.nan_to_num(nan=7))
                expected.backward(given[item, : len(expected)])
            single = local.isfinite() & mask.unsqueeze(2)  # of several NaN, any may come first
            assert torch.equal(mine.grad[single], theirs.grad[single])
            assert torch.allclose(mine.grad.sum(1), theirs.grad.sum(1), atol=0.1 if kind == torch.bfloat16 else 1e-5)
    assert not failures, failures


@pytest.mark.parametrize("kind", KINDS)
def test_a_pooling_of_nan_is_nan_on_every_path(kind: torch.dtype) -> None:
    local, mask = with_nan(kind, 40)
    has_nan = (local.isnan() & mask.unsqueeze(2)).any(dim=1)
    last = (functional.position_mask(mask.sum(1), 40).sum(1, keepdim=True) - 1 == torch.arange(40)).to(kind)
    assert torch.equal(functional.masked_k_max(local, mask, 1).isnan(), has_nan)
    assert functional.masked_k_max(local, mask, 3)[has_nan].isnan().all()
    assert functional.sum_by_rank(local, mask, last)[has_nan].isnan().all()  # only the smallest has a weight


@requires_compiler
def test_too_few_weights_are_refused() -> None:
    local, mask = torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match="3.*5"):
        sum_ranked(local, mask, torch.rand(2, 3))
    mask[:, 3:] = False
    assert sum_ranked(local, mask, torch.rand(2, 3)).shape == (2, 4)


@requires_compiler
@pytest.mark.parametrize("make", [GPO, KMax, FSPool, AdPool])
def test_poolings_equal_their_plain_form(make: Callable[..., Aggregator], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    pool, mask = make(input_dim=24, embed_dim=24), some_masks(5, 17)
    results = []
    for usable in (is_usable, lambda local: False):
        monkeypatch.setattr(functional, "is_usable", usable)
        local = distinct(5, 17, 24).requires_grad_() if not results else results[0][0].detach().clone().requires_grad_()
        pool.zero_grad()
        vectors = pool(Features(local, mask)).vectors
        vectors.square().sum().backward()
        gradients = [each.grad.clone() for each in pool.parameters() if each.grad is not None]
        results.append((local, vectors, local.grad, gradients))
    (_, ours, of_local, of_weights), (_, plain, plain_of_local, plain_of_weights) = results
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(of_local, plain_of_local)
    torch.testing.assert_close(of_weights, plain_of_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("local", "why"),
    [
        (torch.randn(2, 3, 4, dtype=torch.float64), "precision"),
        (torch.randn(2, LARGEST + 1, 4), "size"),
        (torch.randn(0, 3, 4), "empty"),
        (torch.randn(2, 3, 4, device="meta"), "device"),
    ],
)
def test_other_sets_are_left_to_pytorch(local: Tensor, why: str) -> None:
    assert not is_usable(local), why
