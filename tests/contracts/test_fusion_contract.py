"""What every registered fusion must hold, present and future."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fusion.test_fusion import IMAGES, TEXTS, make, scores_of, tokens
from openvse.fusion import FUSIONS
from openvse.types import EmbeddingSet

# Every part as it comes, and the options that change what it computes, as a recipe writes them.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "pooled": [
        {"aggregator": "first_token", "class_token": True},
        {"aggregator": {"name": "multi_view", "num_views": 2}},
    ],
    "score_attention": [{"num_vectors": 3}],
}
CASES = [
    pytest.param(name, options, id="-".join([name, *map(str, options.values())]))
    for name in FUSIONS
    for options in [{}, *OPTIONS.get(name, [])]
]


@pytest.mark.parametrize(("name", "options"), CASES)
class TestFusionContract:
    def test_padding_changes_nothing(self, name: str, options: dict[str, Any]) -> None:
        fusion = make(name, **options).eval()
        wide = tokens([5, 2, 4, 1], 1, extra=3), tokens([3, 1, 2, 4, 2], 2, extra=2)
        torch.testing.assert_close(scores_of(fusion, *wide), scores_of(fusion), rtol=0, atol=1e-12)

    def test_nan_in_padding_changes_nothing(self, name: str, options: dict[str, Any]) -> None:
        fusion = make(name, **options).eval()
        dirty = [
            EmbeddingSet(side.vectors.masked_fill(~side.mask.unsqueeze(-1), float("nan")), side.mask)
            for side in (IMAGES, TEXTS)
        ]
        torch.testing.assert_close(scores_of(fusion, *dirty), scores_of(fusion), rtol=0, atol=1e-12)

    def test_a_pair_does_not_see_other_pairs(self, name: str, options: dict[str, Any]) -> None:
        fusion = make(name, **options).eval()
        together = scores_of(fusion)
        for i in range(len(IMAGES)):
            for t in range(len(TEXTS)):
                alone = scores_of(fusion, IMAGES[i : i + 1], TEXTS[t : t + 1])
                torch.testing.assert_close(together[i : i + 1, t : t + 1], alone, rtol=0, atol=1e-12)

    def test_both_sides_matter(self, name: str, options: dict[str, Any]) -> None:
        """The vectors of an image depend on the text that it is scored with, and the reverse."""
        fusion = make(name, **options).eval()
        images, texts = fusion.prepare(IMAGES, TEXTS)
        first, other = torch.tensor([0]), torch.tensor([3])
        for number, (rows, columns) in enumerate([((first, first), (first, other)), ((first, other), (first, first))]):
            vectors: list[Tensor] = [fusion(images[i], texts[t])[number] for i, t in zip(rows, columns, strict=True)]
            assert not torch.allclose(*vectors)

    def test_gradient_reaches_every_parameter_and_only_real_tokens(self, name: str, options: dict[str, Any]) -> None:
        fusion = make(name, **options).train()
        images = EmbeddingSet(IMAGES.vectors.clone().requires_grad_(), IMAGES.mask)
        texts = EmbeddingSet(TEXTS.vectors.clone().requires_grad_(), TEXTS.mask)
        scores = scores_of(fusion, images, texts)
        (scores * torch.randn_like(scores)).sum().backward()
        for side in (images, texts):
            assert side.vectors.grad is not None and side.vectors.grad.isfinite().all()
            assert (side.vectors.grad[~side.mask] == 0).all()
        for label, parameter in fusion.named_parameters():
            assert parameter.grad is not None, label
            assert parameter.grad.abs().max() > 0, label

    def test_state_dict_round_trip(self, name: str, options: dict[str, Any]) -> None:
        fusion = make(name, **options).eval()
        other = make(name, **options).eval()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
        other.load_state_dict(fusion.state_dict())
        torch.testing.assert_close(scores_of(other), scores_of(fusion), rtol=0, atol=0)


def test_options_belong_to_registered_parts() -> None:
    assert sorted(set(OPTIONS) - set(FUSIONS)) == []
