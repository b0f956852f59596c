"""The ranking term against loops written from the formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.errors import RecipeError
from openvse.objectives import All, Contrast, Hardest, Hinge, InfoNCE
from openvse.objectives.base import Objective
from openvse.types import EmbeddingSet, ScoredBatch


def batch(scores: Tensor, positives: Tensor) -> ScoredBatch:
    def unused(items: int) -> EmbeddingSet:
        return EmbeddingSet(torch.zeros(items, 1, 2), torch.ones(items, 1, dtype=torch.bool))

    return ScoredBatch(scores, positives, unused(scores.shape[0]), unused(scores.shape[1]))


def random_batch(images: int, texts: int, seed: int) -> ScoredBatch:
    """Every text has one image; an image may have several texts or none."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(images, texts, dtype=torch.float64, generator=generator) * 2 - 1
    positives = torch.zeros(images, texts, dtype=torch.bool)
    positives[torch.randint(images, (texts,), generator=generator), torch.arange(texts)] = True
    return batch(scores, positives)


def slow_hinge(b: ScoredBatch, margin: float, hardest: bool) -> float:
    """VSE++ pair by pair, in both directions."""
    total = 0.0
    for scores, positives in ((b.scores, b.positives), (b.scores.T, b.positives.T)):
        for anchor, candidate in positives.nonzero().tolist():
            others = [float(s) for s, p in zip(scores[anchor], positives[anchor], strict=True) if not p]
            chosen = sorted(others, reverse=True)[:1] if hardest else others
            total += sum(max(0.0, margin - float(scores[anchor, candidate]) + s) for s in chosen)
    return total


def slow_info_nce(b: ScoredBatch, temperature: float) -> float:
    total = 0.0
    for scores, positives in ((b.scores, b.positives), (b.scores.T, b.positives.T)):
        for anchor, candidate in positives.nonzero().tolist():
            own = math.exp(float(scores[anchor, candidate]) / temperature)
            others = sum(
                math.exp(float(s) / temperature)
                for s, p in zip(scores[anchor], positives[anchor], strict=True)
                if not p
            )
            total -= math.log(own / (own + others))
    return total


sizes = st.integers(1, 6)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, st.integers(0, 999), st.booleans())
def test_hinge_equals_the_loop(images: int, texts: int, seed: int, hardest: bool) -> None:
    b = random_batch(images, texts, seed)
    term = Contrast(miner=Hardest() if hardest else All(), criterion=Hinge(margin=0.3))
    assert float(term(b)) == pytest.approx(slow_hinge(b, 0.3, hardest), abs=1e-10)


@pytest.mark.medium
@settings(max_examples=30, deadline=None)
@given(sizes, sizes, st.integers(0, 999), st.sampled_from([0.05, 0.5, 1.0]))
def test_info_nce_equals_the_loop(images: int, texts: int, seed: int, temperature: float) -> None:
    b = random_batch(images, texts, seed)
    term = Contrast(miner=All(), criterion=InfoNCE(temperature=temperature).double())
    assert float(term(b)) == pytest.approx(slow_info_nce(b, temperature), rel=1e-6, abs=1e-9)


def test_info_nce_is_cross_entropy_when_each_image_has_one_text() -> None:
    b = batch(torch.randn(6, 6), torch.eye(6, dtype=torch.bool))
    term = Contrast(miner=All(), criterion=InfoNCE(temperature=0.07), reduction="mean")
    target = torch.arange(6)
    cross_entropy = torch.nn.functional.cross_entropy
    expected = cross_entropy(b.scores / 0.07, target) + cross_entropy(b.scores.T / 0.07, target)
    torch.testing.assert_close(term(b), expected)


@pytest.mark.parametrize("temperature", [0.01, 0.001])
def test_info_nce_stays_finite_at_low_temperature(temperature: float) -> None:
    scores = torch.tensor([[-1.0, 1.0], [1.0, -1.0]], requires_grad=True)
    loss = Contrast(miner=All(), criterion=InfoNCE(temperature=temperature))(batch(scores, torch.eye(2).bool()))
    loss.backward()
    assert loss.isfinite() and scores.grad is not None and scores.grad.isfinite().all()


def test_learned_temperature_gets_a_gradient_and_stays_above_its_floor() -> None:
    criterion = InfoNCE(temperature=0.02, learned=True)
    term = Contrast(miner=All(), criterion=criterion)
    b = batch(torch.rand(4, 4), torch.eye(4, dtype=torch.bool))
    term(b).backward()
    assert criterion.log_scale.grad is not None and criterion.log_scale.grad != 0
    with torch.no_grad():
        criterion.log_scale.fill_(50.0)
    floor = Contrast(miner=All(), criterion=InfoNCE(temperature=InfoNCE.MIN_TEMPERATURE))
    torch.testing.assert_close(term(b), floor(b))
    with pytest.raises(RecipeError, match="temperature.*0.0"):
        InfoNCE(temperature=0.0)


def test_other_captions_of_an_image_are_not_negatives() -> None:
    # One image with two captions and one other: the second caption scores highest but is a positive.
    scores = torch.tensor([[0.5, 0.9, 0.1], [0.0, 0.0, 0.8]], dtype=torch.float64)
    positives = torch.tensor([[True, True, False], [False, False, True]])
    term = Contrast(miner=Hardest(), criterion=Hinge(margin=0.2))
    assert float(term(batch(scores, positives))) == 0.0


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, st.integers(0, 999), st.booleans())
def test_as_released_only_the_diagonal_of_the_pairs_is_positive(
    images: int, texts: int, seed: int, hardest: bool
) -> None:
    b = random_batch(images, texts, seed)
    image_of, text_of = b.positives.nonzero(as_tuple=True)
    pairs = batch(b.scores[image_of][:, text_of], torch.eye(texts, dtype=torch.bool))
    miner = Hardest() if hardest else All()
    term = Contrast(miner=miner, criterion=Hinge(margin=0.3), negatives_of_one_image=True)
    assert float(term(b)) == pytest.approx(slow_hinge(pairs, 0.3, hardest), abs=1e-10)


class Counted(All):
    """All negatives, and how many there are."""

    def diagnostics(self, scores: Tensor, positives: Tensor) -> dict[str, Tensor]:
        return {"negatives": (self.mine(scores, positives).sum() - positives.sum()).float()}


@pytest.mark.parametrize(("of_one_image", "i2t", "t2i"), [(False, 3, 3), (True, 6, 6)])
def test_diagnostics_are_those_of_the_negatives_in_the_loss(of_one_image: bool, i2t: int, t2i: int) -> None:
    positives = torch.tensor([[True, True, False], [False, False, True]])
    term = Contrast(miner=Counted(), criterion=Hinge(), negatives_of_one_image=of_one_image)
    assert term.diagnostics(batch(torch.rand(2, 3), positives)) == {"i2t_negatives": i2t, "t2i_negatives": t2i}


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, st.integers(0, 999), st.booleans())
def test_the_hardest_positive_stands_for_all_of_its_anchor(images: int, texts: int, seed: int, hardest: bool) -> None:
    b = random_batch(images, texts, seed)
    total = 0.0
    for scores, positives in ((b.scores, b.positives), (b.scores.T, b.positives.T)):
        for row, own in zip(scores, positives, strict=True):
            others = sorted(row[~own].tolist())[-1 if hardest else 0 :]
            lowest = min(row[own].tolist(), default=math.inf)
            total += sum(max(0.0, 0.3 - lowest + s) for s in others)
    miner = Hardest() if hardest else All()
    term = Contrast(miner=miner, criterion=Hinge(margin=0.3), positives="hardest")
    assert float(term(b)) == pytest.approx(total, abs=1e-10)


def test_the_hardest_of_one_positive_is_refused() -> None:
    with pytest.raises(RecipeError, match="positives"):
        Contrast(miner=All(), criterion=Hinge(), negatives_of_one_image=True, positives="hardest")


def test_mean_is_the_sum_over_the_number_of_pairs() -> None:
    b = random_batch(4, 6, 3)
    total = Contrast(miner=Hardest(), criterion=Hinge())(b)
    mean = Contrast(miner=Hardest(), criterion=Hinge(), reduction="mean")(b)
    torch.testing.assert_close(mean, total / 6)


def test_objective_weighs_and_names_its_terms() -> None:
    b = random_batch(5, 5, 1)
    ranking, soft = (Contrast(miner=All(), criterion=Hinge()), Contrast(miner=All(), criterion=InfoNCE().double()))
    values = Objective({"ranking": ranking, "soft": soft}, {"ranking": 1.0, "soft": 0.5})(b)
    assert list(values) == ["ranking", "soft", "loss"]
    torch.testing.assert_close(values["soft"], 0.5 * soft(b))
    torch.testing.assert_close(values["loss"], ranking(b) + 0.5 * soft(b))


def test_collapsed_loss_is_twice_batch_times_margin() -> None:
    objective = Objective({"ranking": Contrast(miner=Hardest(), criterion=Hinge(margin=0.2))}, {"ranking": 1.0})
    b = batch(torch.rand(128, 128), torch.eye(128, dtype=torch.bool))
    assert objective.at_collapse(b) == pytest.approx(51.2, abs=1e-3)
