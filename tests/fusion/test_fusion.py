"""Fusions and the scores they give: against slow loops, whatever the tile, with and without dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fusion.slow_loop import read_one, scores_one
from openvse.aggregators import AGGREGATORS
from openvse.assembly.parts import build_part
from openvse.errors import RecipeError
from openvse.fusion import FUSIONS, Fusion, Pooled, ScoreAttentionFusion, base
from openvse.fusion.base import score_pairs
from openvse.specs.model import Part
from openvse.types import EmbeddingSet, Features
from tests.failures import Failures

WIDTH = 6
CLS = {"aggregator": "first_token", "class_token": True}
BASELINES: list[dict[str, Any]] = [*({"aggregator": name} for name in ("mean", "max", "log_sum_exp", "conv1d")), CLS]


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    part = Part(name=name, num_heads=2, **options)
    return build_part(FUSIONS, part, "fusion", {"embed_dim": WIDTH}).double()


def tokens(lengths: list[int], seed: int, extra: int = 0) -> EmbeddingSet:
    """Ragged sets; an item's values do not depend on the padding, which is garbage."""
    size = max(lengths) + extra
    vectors = torch.full((len(lengths), size, WIDTH), 1e3, dtype=torch.float64)
    for item, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(100 * seed + item)
        vectors[item, :length] = torch.randn(length, WIDTH, dtype=torch.float64, generator=generator)
    return EmbeddingSet(vectors, torch.arange(size) < torch.tensor(lengths).unsqueeze(1))


IMAGES, TEXTS = tokens([5, 2, 4, 1], 1), tokens([3, 1, 2, 4, 2], 2)


def scores_of(fusion: Fusion, images: EmbeddingSet = IMAGES, texts: EmbeddingSet = TEXTS) -> Tensor:
    return score_pairs(fusion, *fusion.prepare(images, texts))


def real(items: EmbeddingSet, item: int) -> Tensor:
    return items.vectors[item, items.mask[item]]


def read_pair(fusion: Fusion, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-attention of both from the same tokens, then self-attention of each."""
    read_x, read_z = read_one(fusion.image_reads, x, z), read_one(fusion.text_reads, z, x)
    return read_one(fusion.image_itself, read_x, read_x), read_one(fusion.text_itself, read_z, read_z)


def mean_cosine(x: Tensor, z: Tensor) -> Tensor:
    cosines = [(a @ b) / ((a @ a).sqrt() * (b @ b).sqrt()) for a, b in zip(x, z, strict=True)]
    return sum(cosines) / len(cosines)  # type: ignore[return-value]  # sum starts from 0


@pytest.mark.medium
@pytest.mark.parametrize("num_vectors", [1, 3])
def test_score_attention_equals_the_loop_values_and_gradients(num_vectors: int) -> None:
    fusion = make("score_attention", num_vectors=num_vectors).eval()
    images, texts = tokens([3, 1], 1), tokens([2, 1, 3], 2)
    leaves = [images.vectors.requires_grad_(), texts.vectors.requires_grad_(), *fusion.parameters()]
    rows = []
    for i in range(2):
        for t in range(3):
            x, z = read_pair(fusion, real(images, i), real(texts, t))
            of_x, of_z = scores_one(fusion.image_scores, x, z), scores_one(fusion.text_scores, z, x)
            rows.append(
                mean_cosine(
                    torch.stack([sum(w * v for w, v in zip(s, x, strict=True)) for s in of_x]),
                    torch.stack([sum(w * v for w, v in zip(s, z, strict=True)) for s in of_z]),
                )
            )
    expected = torch.stack(rows).view(2, 3)
    scores = scores_of(fusion, images, texts)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(scores)
    mine = torch.autograd.grad(scores, leaves, direction)
    theirs = torch.autograd.grad(expected, leaves, direction)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.medium
@pytest.mark.parametrize("options", BASELINES, ids=lambda options: str(options["aggregator"]))
def test_baselines_aggregate_what_has_read(options: dict[str, Any]) -> None:
    fusion = make("pooled", **options).eval()
    scores = scores_of(fusion)
    for i in range(len(IMAGES)):
        for t in range(len(TEXTS)):
            x, z = real(IMAGES, i), real(TEXTS, t)
            if fusion.class_tokens is not None:
                x, z = torch.cat([fusion.class_tokens[:1], x]), torch.cat([fusion.class_tokens[1:], z])
            x, z = read_pair(fusion, x, z)
            vectors = [
                aggregator(Features(side.unsqueeze(0), torch.ones(1, len(side), dtype=torch.bool))).vectors[0]
                for aggregator, side in ((fusion.image_aggregator, x), (fusion.text_aggregator, z))
            ]
            torch.testing.assert_close(scores[i, t], mean_cosine(*vectors), rtol=0, atol=1e-10)


@pytest.mark.medium
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("allowed", [1, 100, 1 << 20])
def test_tiles_do_not_show(training: bool, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fusion = make("score_attention", num_vectors=2, dropout=0.4).train(training)
    prepared = fusion.prepare(IMAGES, TEXTS)
    leaves = [side.features.detach().requires_grad_() for side in prepared]
    sides = [type(side)(leaf, side.mask, side.keep) for side, leaf in zip(prepared, leaves, strict=True)]
    rows = torch.arange(len(IMAGES)).repeat_interleave(len(TEXTS))
    columns = torch.arange(len(TEXTS)).repeat(len(IMAGES))
    # All pairs at once, with an ordinary graph.
    x, z, _ = fusion(sides[0][rows], sides[1][columns])
    whole = torch.nn.functional.cosine_similarity(x, z, dim=-1).mean(dim=-1).view(len(IMAGES), len(TEXTS))
    direction = torch.randn_like(whole)
    learned = [*leaves, *(p for n, p in fusion.named_parameters() if "reads." not in n or "output" in n)]
    expected = torch.autograd.grad(whole, learned, direction)
    monkeypatch.setattr(base, "_TOKENS_ON_CPU", allowed)
    scores = score_pairs(fusion, *sides)
    torch.testing.assert_close(scores, whole, rtol=0, atol=1e-12)
    for one, other in zip(torch.autograd.grad(scores, learned, direction), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_dropout_is_drawn_once_a_step_and_not_outside_training() -> None:
    fusion = make("score_attention", dropout=0.5).train()
    first, second = scores_of(fusion), scores_of(fusion)
    assert not torch.allclose(first, second)
    assert torch.equal(scores_of(fusion.eval()), scores_of(fusion.eval()))
    kept = fusion.train().prepare(IMAGES, TEXTS)[0].keep
    assert set(kept.unique().tolist()) == {0.0, 2.0}


def test_only_pairs_with_a_gradient_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fusion = make("score_attention").eval()
    scored: list[int] = []
    plain = fusion.score

    def counted(images: Any, texts: Any) -> Tensor:
        scored.append(len(images))
        return plain(images, texts)

    monkeypatch.setattr(fusion, "score", counted)
    scores = scores_of(fusion)
    assert sum(scored) == scores.numel()
    scored.clear()
    (scores[0, 1] + 2 * scores[3, 4]).backward()
    assert sum(scored) == 2


def test_a_loss_that_needs_no_pair_gives_zeros() -> None:
    fusion = make("score_attention").eval()
    (0 * scores_of(fusion).sum()).backward()
    assert all(float(p.grad.abs().max()) == 0 for p in fusion.image_scores.parameters())


def test_frozen_weights_get_no_gradient_and_others_do() -> None:
    fusion = make("score_attention").eval()
    fusion.image_scores.requires_grad_(False)
    scores_of(fusion).sum().backward()
    assert all(p.grad is None for p in fusion.image_scores.parameters())
    assert all(p.grad is not None for p in fusion.text_scores.parameters())


def test_weights_are_those_that_sum_the_tokens() -> None:
    fusion = make("score_attention", num_vectors=3).eval()
    images, texts = fusion.prepare(IMAGES, TEXTS)
    rows = torch.arange(len(IMAGES))
    reduced = fusion(images, texts[rows])
    assert reduced.weights is not None
    of_images, of_texts = reduced.weights
    for weights in reduced.weights:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(IMAGES), 3, dtype=weights.dtype))
    x, z = fusion.read(images, texts[rows])
    torch.testing.assert_close(of_images @ x, reduced.image)
    torch.testing.assert_close(of_texts @ z, reduced.text)
    assert make("pooled")(images, texts[rows]).weights is None


@pytest.mark.medium
def test_any_aggregator_of_a_fixed_number_reduces() -> None:
    failures = Failures()
    for aggregator in sorted(set(AGGREGATORS) - {"frame_levels", "gcn", "gpo", "pie_net", "tokens"}):
        with failures.of(aggregator):
            options: dict[str, Any] = {"name": aggregator}
            if aggregator == "score_attention":
                options["num_heads"] = 2
            assert scores_of(make("pooled", aggregator=options).eval()).isfinite().all()
    assert not failures, failures


@pytest.mark.parametrize("aggregator", ["tokens", "pie_net"])
def test_an_aggregator_that_cannot_reduce_is_refused(aggregator: str) -> None:
    with pytest.raises(RecipeError, match="Tokens|PIENet"):
        make("pooled", aggregator=aggregator)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_must_be_a_probability_below_one(dropout: float) -> None:
    with pytest.raises(RecipeError, match=f"{dropout}"):
        make("score_attention", dropout=dropout)


def test_classes_stand_without_a_recipe() -> None:
    assert isinstance(ScoreAttentionFusion(embed_dim=16), Fusion)
    assert isinstance(Pooled(embed_dim=16), Fusion)
