"""MV-VSE's terms against loops written from equations 8 to 15."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from set_batches import embeddings, random_set_batch, scored
from torch import Tensor

from openvse.errors import RecipeError
from openvse.objectives import (
    AdaptiveTopK,
    All,
    Contrast,
    Hardest,
    Hinge,
    InfoNCE,
    Miner,
    MultiViewAverage,
    MultiViewBound,
)
from openvse.objectives.base import Objective
from openvse.objectives.ranking import view_diagnostics, view_scores
from openvse.types import EmbeddingSet, ScoredBatch

MARGIN = 0.3
MINERS: list[type[Miner]] = [Hardest, All]


def cosine(v: Tensor, t: Tensor) -> Tensor:
    return (v @ t) / (v.norm() * t.norm())


def loop_pairs(b: ScoredBatch) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """Yield each positive pair with its negative texts and its negative images."""
    for i, t in b.positives.nonzero().tolist():
        yield (
            i,
            t,
            [j for j in range(len(b.texts)) if not b.positives[i, j]],
            [j for j in range(len(b.images)) if not b.positives[j, t]],
        )


def chosen(values: list[Tensor], hardest: bool) -> list[Tensor]:
    return sorted(values, key=Tensor.item, reverse=True)[:1] if hardest else values


def slow_average(b: ScoredBatch, hardest: bool) -> Tensor:
    """Equation 8, pair by pair and view by view; each view has its own hardest negatives."""
    views = b.images.vectors.shape[1]
    total = torch.zeros((), dtype=torch.float64)
    for i, t, other_texts, other_images in loop_pairs(b):
        for k in range(views):
            v = b.images.vectors[i, k]
            s = cosine(v, b.texts.vectors[t, 0])
            texts = [cosine(v, b.texts.vectors[j, 0]) for j in other_texts]
            images = [cosine(b.images.vectors[j, k], b.texts.vectors[t, 0]) for j in other_images]
            for negative in chosen(texts, hardest) + chosen(images, hardest):
                total = total + (MARGIN - s + negative).clamp(min=0) / views
    return total


def slow_bound(b: ScoredBatch, hardest: bool, bound: str) -> Tensor:
    """Equations 9 (max), 10 to 12 (up; the indicator asks every view, as printed) and 13 (rough)."""
    views = b.images.vectors.shape[1]

    def view_score(i: int, k: int, t: int) -> Tensor:
        return cosine(b.images.vectors[i, k], b.texts.vectors[t, 0])

    def best(i: int, t: int) -> Tensor:
        return max((view_score(i, k, t) for k in range(views)), key=Tensor.item)

    total = torch.zeros((), dtype=torch.float64)
    for i, t, other_texts, other_images in loop_pairs(b):
        texts = chosen([best(i, j) for j in other_texts], hardest)
        images = chosen([best(j, t) for j in other_images], hardest)
        for negative in texts + images:
            if bound == "max":
                total = total + (MARGIN - best(i, t) + negative).clamp(min=0)
                continue
            violations = [MARGIN - view_score(i, k, t) + negative for k in range(views)]
            if bound == "up" and not all(v.item() > 0 for v in violations):
                continue
            total = total + sum(v.clamp(min=0) for v in violations) / views
    return total


def slow_soft_bound(b: ScoredBatch, temperature: float) -> float:
    """The normalised softmax of each view's score against the negatives' best scores, averaged over the views."""
    total = 0.0
    for i, t, other_texts, other_images in loop_pairs(b):
        for k in range(b.images.vectors.shape[1]):
            own = torch.exp(cosine(b.images.vectors[i, k], b.texts.vectors[t, 0]) / temperature)
            for others in ([b.scores[i, j] for j in other_texts], [b.scores[j, t] for j in other_images]):
                rest = sum(torch.exp(s / temperature) for s in others)
                total -= float(torch.log(own / (own + rest))) / b.images.vectors.shape[1]
    return total


def leaves(b: ScoredBatch) -> tuple[ScoredBatch, list[Tensor]]:
    """Return the same batch on vectors that want a gradient."""
    vectors = [side.vectors.clone().requires_grad_() for side in (b.images, b.texts)]
    images, texts = (EmbeddingSet(v, s.mask) for v, s in zip(vectors, (b.images, b.texts), strict=True))
    return scored(images, texts, b.positives), vectors


def assert_same(term: Tensor, slow: Tensor, vectors: list[Tensor]) -> None:
    torch.testing.assert_close(term, slow, rtol=0, atol=1e-10)
    if not slow.requires_grad:  # nothing violates the margin
        return
    # The loop divides by the length; compare along the sphere, where embeddings live.
    for ours, theirs, v in zip(
        torch.autograd.grad(term, vectors, retain_graph=True, materialize_grads=True),
        torch.autograd.grad(slow, vectors, materialize_grads=True),
        vectors,
        strict=True,
    ):
        along = (ours * v).sum(dim=-1, keepdim=True) * v
        torch.testing.assert_close(ours - along, theirs, rtol=0, atol=1e-10)


sizes = st.integers(1, 5)


@pytest.mark.medium
@settings(max_examples=20, deadline=None)
@given(sizes, sizes, st.integers(1, 4), st.integers(0, 999), st.booleans())
def test_average_equals_the_loop(images: int, texts: int, views: int, seed: int, hardest: bool) -> None:
    b, vectors = leaves(random_set_batch(images, texts, views, seed))
    term = MultiViewAverage(miner=Hardest() if hardest else All(), criterion=Hinge(margin=MARGIN))
    assert_same(term(b), slow_average(b, hardest), vectors)


@pytest.mark.medium
@settings(max_examples=30, deadline=None)
@given(sizes, sizes, st.integers(1, 4), st.integers(0, 999), st.booleans(), st.sampled_from(["up", "rough"]))
def test_bounds_equal_the_loop(images: int, texts: int, views: int, seed: int, hardest: bool, bound: str) -> None:
    b, vectors = leaves(random_set_batch(images, texts, views, seed))
    miner = Hardest() if hardest else All()
    term = MultiViewBound(miner=miner, criterion=Hinge(margin=MARGIN), gated=bound == "up")
    assert_same(term(b), slow_bound(b, hardest, bound), vectors)


@pytest.mark.medium
@settings(max_examples=15, deadline=None)
@given(sizes, sizes, st.integers(1, 4), st.integers(0, 999), st.booleans())
def test_contrast_on_the_best_view_is_max(images: int, texts: int, views: int, seed: int, hardest: bool) -> None:
    b, vectors = leaves(random_set_batch(images, texts, views, seed))
    term = Contrast(miner=Hardest() if hardest else All(), criterion=Hinge(margin=MARGIN))
    assert_same(term(b), slow_bound(b, hardest, "max"), vectors)


@pytest.mark.medium
@pytest.mark.parametrize("criterion", [Hinge(), Hinge(reduction="mean"), InfoNCE(temperature=0.1).double()])
@pytest.mark.parametrize("miner", [Hardest(), All(), AdaptiveTopK()])
@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 8), st.integers(1, 5), st.integers(0, 999))
def test_max_is_below_up_is_below_rough(miner, criterion, images, texts, views, seed) -> None:
    b = random_set_batch(images, texts, views, seed)
    low = Contrast(miner=miner, criterion=criterion)(b)
    middle = MultiViewBound(miner=miner, criterion=criterion)(b)
    high = MultiViewBound(miner=miner, criterion=criterion, gated=False)(b)
    assert low <= middle + 1e-12
    assert middle <= high + 1e-12


@pytest.mark.parametrize("criterion", [Hinge(), InfoNCE().double()])
@pytest.mark.parametrize("miner", [Hardest(), All()])
def test_one_view_is_the_plain_contrast(miner, criterion) -> None:
    b = random_set_batch(5, 8, views=1, seed=3)
    for reduction in ("sum", "mean"):
        arguments = {"miner": miner, "criterion": criterion, "reduction": reduction}
        plain = Contrast(**arguments)(b)
        torch.testing.assert_close(MultiViewAverage(**arguments)(b), plain)
        torch.testing.assert_close(MultiViewBound(**arguments)(b), plain)
        torch.testing.assert_close(MultiViewBound(**arguments, gated=False)(b), plain)


def test_the_softmax_version_equals_the_loop_and_its_bounds_are_one() -> None:
    b = random_set_batch(4, 7, views=3, seed=5)
    criterion = InfoNCE(temperature=0.2).double()
    up = MultiViewBound(miner=All(), criterion=criterion)(b)
    assert float(up) == pytest.approx(slow_soft_bound(b, 0.2), rel=1e-6)
    torch.testing.assert_close(up, MultiViewBound(miner=All(), criterion=criterion, gated=False)(b))


def test_the_mix_is_a_weighted_sum_of_terms() -> None:
    b = random_set_batch(6, 6, views=3, seed=8)
    hardest, hinge = Hardest(), Hinge(margin=MARGIN)
    mix = Objective(
        {"max": Contrast(miner=hardest, criterion=hinge), "up": MultiViewBound(miner=hardest, criterion=hinge)},
        {"max": 0.7, "up": 0.3},
    )
    expected = 0.7 * slow_bound(b, True, "max") + 0.3 * slow_bound(b, True, "up")
    torch.testing.assert_close(mix(b)["loss"], expected, rtol=0, atol=1e-10)
    assert mix.at_collapse(b) == pytest.approx(2 * 6 * MARGIN)


def test_a_satisfied_best_view_leaves_the_others_alone() -> None:
    # The first view fits its text, the second is far off: max is content, and so is up; rough is not.
    axis = torch.eye(4, dtype=torch.float64)
    images = EmbeddingSet(torch.stack([axis[[0, 2]], axis[[1, 3]]]), torch.ones(2, 2, dtype=torch.bool))
    b, (views, _) = leaves(scored(images, EmbeddingSet(axis[:2, None], torch.ones(2, 1, dtype=torch.bool))))
    assert MultiViewBound(miner=Hardest(), criterion=Hinge())(b).item() == 0.0
    rough = MultiViewBound(miner=Hardest(), criterion=Hinge(), gated=False)(b)
    rough.backward()
    assert rough.item() == pytest.approx(2 * 2 * 0.5 * 0.2)
    assert views.grad is not None and views.grad[:, 1].abs().sum() > 0


def test_up_reaches_every_view_where_max_reaches_one() -> None:
    b, (views, _) = leaves(random_set_batch(4, 4, views=3, seed=0))
    MultiViewBound(miner=Hardest(), criterion=Hinge(margin=2.0))(b).backward()
    assert views.grad is not None and (views.grad.abs().sum(dim=-1) > 0).all()


def test_view_scores_take_the_best_of_a_texts_embeddings() -> None:
    images, texts = embeddings(3, 2, 0), embeddings(4, 3, 1)
    mask = torch.tensor([[True, False, True]]).expand(4, 3)
    texts = EmbeddingSet(texts.vectors, mask)
    expected = torch.stack([scored(EmbeddingSet(v, m), texts).scores for v, m in split_views(images)])
    torch.testing.assert_close(view_scores(images, texts), expected)


def split_views(images: EmbeddingSet) -> list[tuple[Tensor, Tensor]]:
    return [(images.vectors[:, k : k + 1], images.mask[:, k : k + 1]) for k in range(images.vectors.shape[1])]


@pytest.mark.parametrize("term", [MultiViewAverage, MultiViewBound])
def test_a_varying_number_of_views_is_refused_in_one_line(term) -> None:
    images = embeddings(3, 2, 0)
    images.mask[1, 1] = False
    with pytest.raises(RecipeError) as caught:
        term(miner=Hardest(), criterion=Hinge())(scored(images, embeddings(3, 1, 1)))
    assert "\n" not in str(caught.value)


def test_diagnostics_count_the_pairs_that_each_view_wins() -> None:
    b = random_set_batch(5, 9, views=3, seed=2)
    won = [0, 0, 0]
    for i, t in b.positives.nonzero().tolist():
        won[int((b.images.vectors[i] @ b.texts.vectors[t, 0]).argmax())] += 1
    alike = [
        float(cosine(b.images.vectors[i, k], b.images.vectors[i, m]))
        for i in range(5)
        for k in range(3)
        for m in range(k)
    ]
    report = MultiViewBound(miner=Hardest(), criterion=Hinge()).diagnostics(b)
    assert report == view_diagnostics(b)
    assert [report[f"won_by_view_{k}"] for k in range(3)] == pytest.approx([n / 9 for n in won])
    assert report["view_similarity"] == pytest.approx(sum(alike) / len(alike))
    one = MultiViewAverage(miner=Hardest(), criterion=Hinge()).diagnostics(random_set_batch(3, 3, 1, 0))
    assert one == {"won_by_view_0": 1.0}
