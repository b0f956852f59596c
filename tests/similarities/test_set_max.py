"""Set-max against a loop over all pairs of embeddings."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openvse.functional import set_max_scores
from openvse.similarities import SetMax
from openvse.types import EmbeddingSet
from tests.similarities.random_sets import random_set


class Same(SetMax):
    """Scores as SetMax does."""

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature


class Averaged(SetMax):
    """The mean over all pairs of embeddings, which promises nothing."""

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return images.vectors.mean(dim=1) @ texts.vectors.mean(dim=1).T


class AveragedAgain(Averaged):
    """Another name for it."""


class Fast(SetMax):
    """Promises by itself."""

    indexable = True

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return set_max_scores(images, texts)


class Doubled:
    """Scores twice as much."""

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return 2 * set_max_scores(images, texts)


class DoubledSetMax(Doubled, SetMax):
    """Takes its forward from beside."""


@pytest.mark.parametrize(
    ("kind", "indexable"),
    [(SetMax, True), (Same, True), (Fast, True), (Averaged, False), (AveragedAgain, False), (DoubledSetMax, False)],
)
def test_who_scores_in_another_way_does_not_inherit_the_promise(kind: type[SetMax], indexable: bool) -> None:
    assert kind.indexable is kind().indexable is indexable


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_equals_the_loop(num_images: int, num_texts: int, k: int, m: int, seed: int) -> None:
    images, texts = random_set(num_images, k, seed), random_set(num_texts, m, seed + 1)
    scores = SetMax()(images, texts)
    for i in range(num_images):
        for t in range(num_texts):
            best = max(
                float(images.vectors[i, a] @ texts.vectors[t, b])
                for a in range(k)
                for b in range(m)
                if images.mask[i, a] and texts.mask[t, b]
            )
            assert abs(float(scores[i, t]) - best) < 1e-10


def test_gradient_goes_to_the_winning_pair_alone() -> None:
    images, texts = random_set(1, 3, 0), random_set(1, 2, 1)
    full = EmbeddingSet(images.vectors.requires_grad_(), torch.ones(1, 3, dtype=torch.bool))
    SetMax()(full, EmbeddingSet(texts.vectors, torch.ones(1, 2, dtype=torch.bool))).sum().backward()
    assert full.vectors.grad is not None
    assert int((full.vectors.grad.abs().sum(dim=-1) > 0).sum()) == 1
