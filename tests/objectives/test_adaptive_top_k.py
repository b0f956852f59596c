"""VSE+2AD's adaptive optimisation against loops written from equation 6 and the released rule."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from set_batches import random_set_batch
from torch import Tensor

from openvse.objectives import AdaptiveTopK, All, Contrast, InfoNCE
from openvse.objectives.base import Objective
from openvse.types import ScoredBatch

RULES = ["released", "paper"]
UNIFORMITIES = ["off_diagonal", "all_cells"]


def slow_num_negatives(scores: Tensor, positives: Tensor, rule: str) -> int:
    rows, columns = scores.shape
    cells = [(i, j) for i in range(rows) for j in range(columns)]
    own = [float(scores[c]) for c in cells if positives[c]]
    align = sum(own) / len(own)
    if rule == "paper":
        uniform = math.log(sum(math.exp(float(scores[c])) for c in cells) / len(cells))
        wanted = math.floor(columns * math.cos((align + uniform) * math.pi / 4))
    else:
        others = [math.exp(-float(scores[c])) for c in cells if not positives[c]]
        uniform = sum(others) / len(others) if others else 0.0
        wanted = math.floor(columns * math.cos(max(0.0, align + uniform) ** 1.25)) + 1
    return max(1, min(wanted, columns - 1))


def slow_adopt(b: ScoredBatch, scores: Tensor, rule: str, temperature: float, margin: float) -> Tensor:
    """Sum over pairs and both directions; the positive is in the denominator, the margin on the negatives."""
    total = torch.zeros((), dtype=torch.float64)
    for table, positives in ((scores, b.positives), (scores.T, b.positives.T)):
        k = slow_num_negatives(table.detach(), positives, rule)
        for anchor, candidate in positives.nonzero().tolist():
            others = [s for s, p in zip(table[anchor], positives[anchor], strict=True) if not p]
            hardest = sorted(others, key=Tensor.item, reverse=True)[:k]
            own = torch.exp(table[anchor, candidate] / temperature)
            rest = sum(torch.exp((s + margin) / temperature) for s in hardest)
            total = total - torch.log(own / (own + rest))
    return total


@pytest.mark.medium
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 999), st.sampled_from(RULES), st.floats(-0.9, 0.9))
def test_chooses_the_k_hardest(images: int, texts: int, seed: int, rule: str, shift: float) -> None:
    b = random_set_batch(images, texts, 1, seed)
    scores = b.scores * 0.1 + shift
    k = slow_num_negatives(scores, b.positives, rule)
    negatives = AdaptiveTopK(rule=rule)(scores, b.positives)
    for row in range(images):
        others = [j for j in range(texts) if not b.positives[row, j]]
        expected = sorted(others, key=lambda j: -float(scores[row, j]))[:k]
        assert negatives[row].nonzero().flatten().tolist() == sorted(expected)


@pytest.mark.medium
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 999), st.sampled_from(RULES), st.booleans())
def test_the_loss_and_its_gradient_equal_the_loop(images: int, texts: int, seed: int, rule: str, pushed: bool) -> None:
    b = random_set_batch(images, texts, 1, seed)
    margin = 0.2 if pushed else 0.0
    criterion = InfoNCE(temperature=0.25, margin=margin).double()
    temperature = float(1 / criterion.log_scale.exp())  # 0.25 as it was stored
    scores = b.scores.clone().requires_grad_()
    term = Contrast(miner=AdaptiveTopK(rule=rule), criterion=criterion)(
        ScoredBatch(scores, b.positives, b.images, b.texts)
    )
    slow = slow_adopt(b, scores, rule, temperature, margin)
    torch.testing.assert_close(term, slow, rtol=0, atol=1e-10)
    (ours,) = torch.autograd.grad(term, scores, retain_graph=True)
    (theirs,) = torch.autograd.grad(slow, scores)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.medium
@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.integers(0, 999))
def test_with_all_but_one_candidates_and_no_margin_it_is_info_nce(size: int, seed: int) -> None:
    b = random_set_batch(size, size, 1, seed)
    # Scores near 0 are as immature as the printed rule knows: K' = B cos(~0), so K = B - 1.
    scores = b.scores * 1e-3
    b = ScoredBatch(scores, b.positives, b.images, b.texts)
    miner, criterion = AdaptiveTopK(rule="paper"), InfoNCE(temperature=0.01).double()
    assert miner.diagnostics(scores, b.positives)["num_negatives"] == size - 1
    torch.testing.assert_close(
        Contrast(miner=miner, criterion=criterion)(b), Contrast(miner=All(), criterion=criterion)(b)
    )


def matured(positive: float, negative: float, size: int = 128) -> tuple[Tensor, Tensor]:
    positives = torch.eye(size, dtype=torch.bool)
    return torch.where(positives, positive, negative).double(), positives


@pytest.mark.parametrize("rule", RULES)
def test_fewer_negatives_as_the_scores_mature(rule: str) -> None:
    miner = AdaptiveTopK(rule=rule)
    course = [miner.diagnostics(*matured(align, 0.0))["num_negatives"] for align in (0.0, 0.2, 0.4, 0.6, 0.8)]
    assert course == sorted(course, reverse=True)
    assert course[0] > course[-1]
    unknown, positives = matured(math.nan, math.nan)
    assert miner.mine(unknown, positives).shape == unknown.shape  # the loss tells, not the miner


def test_the_released_rule_comes_down_to_few_and_the_printed_one_does_not() -> None:
    # cos(1.6^1.25) is below 0; cos(0.6 pi/4) is 0.89.
    trained = matured(0.6, 0.0)
    assert AdaptiveTopK().diagnostics(*trained)["num_negatives"] == 1
    assert AdaptiveTopK(rule="paper").diagnostics(*trained)["num_negatives"] == 113


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(0, 999), st.floats(0.0, 0.9))
def test_k_is_the_released_one_where_uniformity_sees_all_cells(size: int, seed: int, shift: float) -> None:
    """The release multiplies the diagonal away, so that each of its cells counts e^0, and averages all B * B."""
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.rand(size, size, generator=generator, dtype=torch.float64) - 0.5) * 0.2 + shift
    positives = torch.eye(size, dtype=torch.bool)
    align = sum(float(scores[i, i]) for i in range(size)) / size
    cells = [math.exp(0.0 if i == j else -float(scores[i, j])) for i in range(size) for j in range(size)]
    maturity = align + sum(cells) / size**2
    expected = min(max(int(size * math.cos(maturity**1.25)) + 1, 1), size - 1)
    report = AdaptiveTopK(uniformity="all_cells").diagnostics(scores, positives)
    assert report["num_negatives"] == expected
    assert report["uniformity"] == pytest.approx(sum(cells) / size**2, rel=1e-12)


def test_the_cells_of_the_positives_bring_u_nearer_to_1() -> None:
    scores, positives = matured(0.3, 0.25)
    without, among = (AdaptiveTopK(uniformity=way).diagnostics(scores, positives) for way in UNIFORMITIES)
    assert without["uniformity"] == pytest.approx(math.exp(-0.25))
    assert among["uniformity"] == pytest.approx((127 * math.exp(-0.25) + 1) / 128)
    assert (without["num_negatives"], among["num_negatives"]) == (59, 58)


def test_half_the_weight_is_the_released_mean_of_the_two_directions() -> None:
    b = random_set_batch(6, 6, 1, seed=3)
    criterion = InfoNCE(temperature=0.05, margin=0.2).double()
    term = Contrast(miner=AdaptiveTopK(), criterion=criterion, reduction="mean")
    ways = [
        criterion(scores, positives, AdaptiveTopK()(scores, positives)).mean()
        for scores, positives in ((b.scores, b.positives), (b.scores.T, b.positives.T))
    ]
    loss = Objective({"ranking": term}, {"ranking": 0.5})(b)["loss"]
    torch.testing.assert_close(loss, (ways[0] + ways[1]) / 2, rtol=0, atol=0)


def test_positives_are_not_mined_though_every_score_is_below_zero() -> None:
    scores, positives = matured(-0.5, -0.9, size=6)
    assert not (AdaptiveTopK()(scores, positives) & positives).any()


def test_diagnostics_name_both_directions() -> None:
    b = random_set_batch(3, 6, 1, seed=4)
    report = Contrast(miner=AdaptiveTopK(), criterion=InfoNCE()).diagnostics(b)
    assert set(report) == {
        f"{way}_{number}" for way in ("i2t", "t2i") for number in ("num_negatives", "align", "uniformity")
    }
    assert report["i2t_num_negatives"] == slow_num_negatives(b.scores, b.positives, "released")
    assert report["t2i_num_negatives"] == slow_num_negatives(b.scores.T, b.positives.T, "released")
    assert report["i2t_align"] == pytest.approx(float(b.scores[b.positives].mean()))
    assert report["i2t_uniformity"] == pytest.approx(float(torch.exp(-b.scores[~b.positives]).mean()))


def test_a_batch_without_negatives_is_harmless() -> None:
    scores, positives = torch.full((1, 1), 0.3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    for rule in RULES:
        for uniformity in UNIFORMITIES:
            assert not AdaptiveTopK(rule=rule, uniformity=uniformity)(scores, positives).any()
