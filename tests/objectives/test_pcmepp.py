"""The loss of PCME++ against loops over pairs, items and dimensions."""

import math

import pytest
import torch
from torch import Tensor

from openvse.errors import RecipeError
from openvse.objectives import PCMEPP
from openvse.retrieval.build import build_model, build_objective
from openvse.retrieval.recipe import RetrievalRecipe
from openvse.similarities import CSD
from openvse.specs.load import validated
from openvse.types import EmbeddingSet, ScoredBatch


def items(count: int, side: str, seed: int) -> EmbeddingSet:
    """Gaussians in three dimensions, as the aggregator hands them over."""
    generator = torch.Generator().manual_seed(seed)
    means, logs = torch.randn(2, count, 1, 3, dtype=torch.float64, generator=generator)
    half = -logs.exp().sum(dim=-1, keepdim=True) / 2
    ends = [half, torch.ones_like(half)]
    means = torch.nn.functional.normalize(means, dim=-1)
    vectors = torch.cat([means, *(ends if side == "image" else ends[::-1])], dim=-1)
    return EmbeddingSet(vectors, torch.ones(count, 1, dtype=torch.bool), logs)


def batch(positives: list[list[int]]) -> ScoredBatch:
    wanted = torch.tensor(positives, dtype=torch.bool)
    images, texts = items(len(wanted), "image", 0), items(wanted.shape[1], "text", 1)
    return ScoredBatch(CSD()(images, texts), wanted, images, texts)


def by_hand(given: ScoredBatch, scale: float, shift: float, kl: float, pseudo: float, smoothing: float) -> float:
    sides = [
        [(side.vectors[n, 0, :3].tolist(), side.residual[n, 0].tolist()) for n in range(len(side))]  # type: ignore[index]
        for side in (given.images, given.texts)
    ]

    def logit(i: int, t: int) -> float:
        (m, z), (n, y) = sides[0][i], sides[1][t]
        distance = sum((a - b) ** 2 for a, b in zip(m, n, strict=True)) + sum(map(math.exp, z + y))
        return -scale * distance + shift

    logits = [[logit(i, t) for t in range(len(sides[1]))] for i in range(len(sides[0]))]
    positives = given.positives.tolist()

    def matching(rows: list[list[float]], labels: list[list[bool]]) -> float:
        losses = []
        for row, wanted in zip(rows, labels, strict=True):
            for value, is_positive in zip(row, wanted, strict=True):
                label, p = 1 - smoothing if is_positive else smoothing, 1 / (1 + math.exp(-value))
                losses.append(-label * math.log(p) - (1 - label) * math.log(1 - p))
        return sum(losses) / len(losses)

    def more(rows: list[list[float]], labels: list[list[bool]]) -> list[list[bool]]:
        best = [max(v for v, y in zip(*pair, strict=True) if y) for pair in zip(rows, labels, strict=True)]
        return [[value >= least for value in row] for row, least in zip(rows, best, strict=True)]

    def joined(rows: list[list[float]], labels: list[list[bool]]) -> float:
        found = more(rows, labels)
        both = [[a or b for a, b in zip(x, y, strict=True)] for x, y in zip(labels, found, strict=True)]
        return matching(rows, both)

    def turned(rows: list[list[float]]) -> list[list[float]]:
        return [list(column) for column in zip(*rows, strict=True)]

    divergences = [
        sum(0.5 * (a * a + math.exp(z) - z - 1) for m, logs in side for a, z in zip(m, logs, strict=True))
        / (3 * len(side))
        for side in sides
    ]
    sides_loss = joined(logits, positives) + joined(turned(logits), turned(positives))  # type: ignore[arg-type]
    return 2 * matching(logits, positives) + kl * sum(divergences) + pseudo * sides_loss


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 5.0, "shift": 5.0, "kl": 1e-4, "pseudo_positives": 0.1, "smoothing": 1e-4},
        {"scale": 0.7, "shift": -1.0, "kl": 0.3, "pseudo_positives": 2.0, "smoothing": 0.0},
        {"scale": 1.0, "shift": 2.0, "kl": 0.0, "pseudo_positives": 0.0, "smoothing": 0.1},
    ],
)
def test_the_loss_is_that_of_the_equations(options: dict[str, float]) -> None:
    given = batch([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1]])
    expected = by_hand(given, *options.values())
    assert float(PCMEPP(**options).double()(given)) == pytest.approx(expected)


def test_a_pair_above_the_positive_is_a_pseudo_positive_of_that_side_alone() -> None:
    scores = torch.tensor([[0.2, 0.6], [0.1, 0.9]])
    sides = items(2, "image", 0), items(2, "text", 1)
    found = PCMEPP().diagnostics(ScoredBatch(scores, torch.eye(2, dtype=torch.bool), *sides))
    assert found["pseudo_positives"] == 1.0  # the second text of the first image, and no image of a text
    assert found.keys() == {"scale", "shift", "images", "texts", "pseudo_positives"}


def test_scale_and_shift_learn() -> None:
    term, given = PCMEPP().double(), batch([[1, 0], [0, 1]])
    slopes: tuple[Tensor, ...] = torch.autograd.grad(term(given), [term.scale, term.shift])
    assert all(slope.abs() > 0 for slope in slopes)


def test_smoothing_out_of_range_is_refused() -> None:
    with pytest.raises(RecipeError, match="smoothing.*0.5"):
        PCMEPP(smoothing=0.5)


def recipe(image: str, text: str, similarity: str) -> RetrievalRecipe:
    tree = {
        "name": "test",
        "embed_dim": 8,
        "image": {"encoder": {"name": "precomputed", "feature_dim": 6}, "aggregator": image},
        "text": {"encoder": {"name": "bigru", "min_count": 1}, "aggregator": text},
        "similarity": similarity,
        "objective": {"ranking": {"name": "pcmepp"}},
        "training": {"phases": [{"epochs": 1}]},
    }
    return validated(RetrievalRecipe, tree)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (("gaussian", "mean", "csd"), "gaussian"),
        (("mean", "mean", "csd"), "similarity csd"),
        (("gaussian", "gaussian", "set_max"), "similarity set_max"),
    ],
)
def test_parts_that_need_each_other_are_refused_alone(parts: tuple[str, str, str], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        build_model(recipe(*parts), captions=["a dog"])


def test_the_term_needs_distributions() -> None:
    model = build_model(recipe("mean", "mean", "set_max"), captions=["a dog"])
    with pytest.raises(RecipeError, match=r"objective\.ranking: pcmepp"):
        build_objective(recipe("mean", "mean", "set_max"), model=model)


def test_each_side_knows_which_it_is_and_a_model_made_in_python_is_described() -> None:
    model = build_model(recipe("gaussian", "gaussian", "csd"), captions=["a dog"])
    assert (model.image.aggregator.side, model.text.aggregator.side) == ("image", "text")  # type: ignore[union-attr]
    assert model.describe().text.aggregator.options == {}
