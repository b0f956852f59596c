"""Random negatives, and ranking terms with anchors on one side."""

import pytest
import torch

from openvse.errors import RecipeError
from openvse.objectives import All, Contrast, Hinge, Random
from tests.objectives.set_batches import random_set_batch

POSITIVES = torch.eye(3, 6, dtype=torch.bool)


def drawn(miner: Random, scores: torch.Tensor, times: int = 200) -> torch.Tensor:
    """Return how often each candidate is taken."""
    torch.manual_seed(0)
    return torch.stack([miner(scores, POSITIVES) for _ in range(times)]).sum(dim=0)


@pytest.mark.medium
def test_each_negative_is_drawn_equally_often() -> None:
    counts = drawn(Random(), torch.rand(3, 6), times=1000)
    assert (counts[POSITIVES] == 0).all()
    assert (counts[~POSITIVES] > 120).all() and (counts.sum(dim=1) == 1000).all()


def test_violating_negatives_come_first() -> None:
    """Only candidates 3 and 5 of the first anchor are within 0.1 of its positive; the second has none."""
    scores = torch.tensor(
        [[0.5, 0.1, 0.2, 0.45, 0.3, 0.9], [0.0, 0.8, 0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.0, 0.0, 0.0]]
    )
    counts = drawn(Random(within=0.1), scores)
    assert counts[0].nonzero().flatten().tolist() == [3, 5]
    assert counts[1].nonzero().flatten().tolist() == [0, 2, 3, 4, 5]
    assert counts[2].nonzero().flatten().tolist() == [0, 1]


def test_more_than_there_are_takes_all() -> None:
    scores = torch.rand(3, 6)
    assert torch.equal(Random(num_negatives=9)(scores, POSITIVES), ~POSITIVES)
    assert (Random(num_negatives=2)(scores, POSITIVES).sum(dim=1) == 2).all()
    with pytest.raises(RecipeError, match="num_negatives.*0"):
        Random(num_negatives=0)


def test_anchors_of_one_side_are_half_of_the_loss() -> None:
    batch = random_set_batch(4, 6, 1, seed=0)
    both, images, texts = (
        Contrast(miner=All(), criterion=Hinge(), anchors=side)(batch) for side in ("both", "images", "texts")
    )
    by_hand = 0.0
    for image, text in batch.positives.nonzero().tolist():
        for other in range(6):
            if not batch.positives[image, other]:
                by_hand += max(0.0, 0.2 - float(batch.scores[image, text]) + float(batch.scores[image, other]))
    assert float(images) == pytest.approx(by_hand)
    torch.testing.assert_close(images + texts, both)
