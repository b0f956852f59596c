"""The cosine with the scale and bias of a published dual encoder beside it."""

import math

import pytest
import torch

from openvse.errors import RecipeError
from openvse.functional import normalize
from openvse.similarities import ScaledCosine, SetMax
from openvse.types import EmbeddingSet


def items(count: int, seed: int) -> EmbeddingSet:
    vectors = normalize(torch.randn(count, 1, 4, generator=torch.Generator().manual_seed(seed)))
    return EmbeddingSet(vectors, torch.ones(count, 1, dtype=torch.bool))


def test_scores_are_cosines_and_logits_are_scaled() -> None:
    images, texts = items(3, 0), items(2, 1)
    similarity = ScaledCosine(scale=117.0, bias=-12.5, link="sigmoid")
    scores = similarity(images, texts)
    assert torch.equal(scores, SetMax()(images, texts))
    for i, t in ((0, 0), (2, 1)):
        cosine = sum(a * b for a, b in zip(images.vectors[i, 0].tolist(), texts.vectors[t, 0].tolist(), strict=True))
        assert similarity.logits(scores)[i, t].item() == pytest.approx(117.0 * cosine - 12.5, abs=1e-4)


def test_it_is_indexable_as_the_cosine_is() -> None:
    assert ScaledCosine().indexable and ScaledCosine().is_cosine


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"scale": -1.0}, {"scale": math.inf}, {"bias": math.nan}])
def test_numbers_that_change_the_order_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match="scale.*bias"):
        ScaledCosine(**wrong)
