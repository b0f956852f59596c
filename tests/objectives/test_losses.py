"""The losses for a loop of one's own give the numbers of the objective terms that recipes name."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import openvse
from openvse import losses
from openvse.assembly.parts import build_part
from openvse.errors import DataError, RecipeError
from openvse.functional import normalize, set_max_scores
from openvse.losses import Loss
from openvse.objectives import TERMS
from openvse.specs.model import Part
from openvse.types import EmbeddingSet, ScoredBatch
from tests.failures import Failures
from tests.naming import names, refusal

# Each loss with the term of a recipe that it stands for.
PAIRS: dict[str, tuple[Loss, dict[str, Any]]] = {
    "adopt": (
        losses.adopt(temperature=0.1),
        {
            "name": "contrast",
            "miner": "adaptive_top_k",
            "criterion": {"name": "info_nce", "temperature": 0.1, "margin": 0.2},
            "reduction": "mean",
        },
    ),
    "adopt_paper": (
        losses.adopt(rule="paper", margin=0.0),
        {
            "name": "contrast",
            "miner": {"name": "adaptive_top_k", "rule": "paper"},
            "criterion": {"name": "info_nce", "temperature": 0.05},
            "reduction": "mean",
        },
    ),
    "adopt_released_code": (
        losses.adopt(uniformity="all_cells", reduction="sum"),
        {
            "name": "contrast",
            "miner": {"name": "adaptive_top_k", "uniformity": "all_cells"},
            "criterion": {"name": "info_nce", "temperature": 0.05, "margin": 0.2},
        },
    ),
    "triplet": (losses.triplet(), {"name": "contrast", "miner": "hardest", "criterion": "hinge"}),
    "triplet_all": (
        losses.triplet(margin=0.5, negatives="all", reduction="mean"),
        {"name": "contrast", "miner": "all", "criterion": {"name": "hinge", "margin": 0.5}, "reduction": "mean"},
    ),
    "info_nce": (
        losses.info_nce(temperature=0.07),
        {
            "name": "contrast",
            "miner": "all",
            "criterion": {"name": "info_nce", "temperature": 0.07},
            "reduction": "mean",
        },
    ),
    "mil": (
        losses.mil(),
        {
            "name": "contrast",
            "miner": "all",
            "criterion": {"name": "hinge", "margin": 0.1, "reduction": "mean"},
            "reduction": "mean",
        },
    ),
    "bound": (losses.multi_view_bound(), {"name": "multi_view_bound", "miner": "hardest", "criterion": "hinge"}),
    "rough_bound": (
        losses.multi_view_bound(gated=False, negatives="all", margin=0.3, reduction="mean"),
        {
            "name": "multi_view_bound",
            "miner": "all",
            "criterion": {"name": "hinge", "margin": 0.3},
            "gated": False,
            "reduction": "mean",
        },
    ),
}


def vectors(items: int, k: int, seed: int) -> Tensor:
    """Return embeddings that do not have unit length."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(items, k, 5, dtype=torch.float64, generator=generator)


def units(given: Tensor) -> EmbeddingSet:
    return EmbeddingSet(normalize(given), torch.ones(given.shape[:2], dtype=torch.bool))


def test_it_is_the_term_of_the_recipe(failures: Failures) -> None:
    for name, (images, texts) in product(PAIRS, [(1, 1), (3, 1), (3, 2)]):
        with failures.of(images, texts, name):
            loss, part = PAIRS[name]
            term = build_part(TERMS, Part(**part), "objective").double()
            of_images, of_texts = vectors(4, images, 0), vectors(6, texts, 1)
            owners = torch.tensor([0, 1, 2, 3, 0, 2])
            positives = owners == torch.arange(4).unsqueeze(1)
            image_set, text_set = units(of_images), units(of_texts)
            expected = term(ScoredBatch(set_max_scores(image_set, text_set), positives, image_set, text_set))
            loss = loss.double()
            assert expected > 0.05
            torch.testing.assert_close(loss(of_images, of_texts, owners), expected, rtol=0, atol=1e-12)
            torch.testing.assert_close(loss(of_images, of_texts, positives), expected, rtol=0, atol=1e-12)
            torch.testing.assert_close(loss(image_set, text_set, owners), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_scores_give_what_embeddings_give(name: str) -> None:
    loss = PAIRS[name][0].double()
    images, texts = vectors(4, 1, 0)[:, 0], vectors(4, 1, 1)[:, 0]
    scores = normalize(images) @ normalize(texts).T
    torch.testing.assert_close(loss.from_scores(scores), loss(images, texts), rtol=0, atol=1e-12)


def test_the_bound_takes_the_scores_of_each_view() -> None:
    loss, images, texts = losses.multi_view_bound(), vectors(4, 3, 0), vectors(4, 1, 1)
    views = torch.einsum("ikd,tld->kit", normalize(images), normalize(texts))
    torch.testing.assert_close(loss.from_scores(views), loss(images, texts), rtol=0, atol=1e-12)
    assert names(refusal(DataError, lambda: losses.triplet().from_scores(views)), "3", "4", "4")


def test_the_diagonal_is_positive_by_default() -> None:
    images, texts = vectors(4, 1, 0)[:, 0], vectors(4, 1, 1)[:, 0]
    loss = losses.triplet()
    assert loss(images, texts) == loss(images, texts, torch.eye(4, dtype=torch.bool))


def test_the_triplet_loss_by_hand() -> None:
    scores = torch.tensor([[0.5, 0.6], [0.1, 0.3]])
    # Hardest negatives: 0.6 and 0.1 in the rows, 0.1 and 0.6 in the columns.
    assert losses.triplet(margin=0.2).from_scores(scores).item() == pytest.approx(0.3 + 0.0 + 0.0 + 0.5)


def test_a_learned_temperature_gets_a_gradient() -> None:
    loss = losses.info_nce(learned=True)
    (temperature,) = loss.parameters()
    loss(torch.randn(4, 5), torch.randn(4, 5)).backward()
    assert temperature.grad is not None and temperature.grad != 0
    assert not list(losses.adopt().parameters())


@pytest.mark.parametrize(
    ("images", "texts", "positives", "message"),
    [
        ((2, 5), (3, 5), None, "2.*3.*3"),
        ((2, 5), (2, 4), None, "5.*4"),
        ((2,), (2, 5), None, "torch.float32.*2"),
        ((0, 5), (0, 5), None, r"torch.float32 \[0, 5\]"),
        ((2, 5), (3, 5), [0, 1, 2], "0.*2.*0.*1"),
        ((2, 5), (3, 5), [0, 1], "torch.int64.*2.*3"),
        ((2, 5), (3, 5), [0.0, 1.0, 1.0], "positives.*torch.float32"),
        ((2, 5), (2, 5), [[False] * 2] * 2, ""),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(images, texts, positives, message: str) -> None:
    given = None if positives is None else torch.tensor(positives)
    with pytest.raises(DataError, match=message or None) as caught:
        losses.triplet()(torch.ones(images), torch.ones(texts), given)
    assert "\n" not in str(caught.value)


def test_options_are_checked_as_in_a_recipe() -> None:
    assert names(refusal(RecipeError, openvse.losses.adopt, temperature=0.0), "0.0")
