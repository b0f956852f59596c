"""Smooth-Chamfer similarity against a loop over the embeddings, and its bounds."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import openvse
from openvse.errors import RecipeError
from openvse.retrieval.build import build_model
from openvse.similarities import SetMax, SmoothChamfer
from openvse.tasks.recipes import parse_recipe
from openvse.types import EmbeddingSet
from tests.similarities.random_sets import random_set
from tests.tiny import tiny_tree


def slow(images: list[Tensor], texts: list[Tensor], sharpness: float | None) -> float:
    """The printed sums, or those of the maxima."""

    def soft(cosines: list[float]) -> float:
        if sharpness is None:
            return max(cosines)
        return math.log(sum(math.exp(sharpness * c) for c in cosines)) / sharpness

    cosines = [[float(v @ t) for t in texts] for v in images]
    rows = sum(soft(row) for row in cosines) / len(images)
    columns = sum(soft(list(column)) for column in zip(*cosines, strict=True)) / len(texts)
    return (rows + columns) / 2


@pytest.mark.medium
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.5, 16.0, None]), st.integers(0, 99))
def test_equals_the_loop_within_its_bounds(k: int, m: int, sharpness: float | None, seed: int) -> None:
    images, texts = random_set(3, k, seed), random_set(4, m, seed + 1)
    scores, largest = SmoothChamfer(sharpness=sharpness)(images, texts), SetMax()(images, texts)
    for i in range(3):
        for t in range(4):
            own = images.vectors[i, images.mask[i]], texts.vectors[t, texts.mask[t]]
            score = float(scores[i, t])
            assert score == pytest.approx(slow([*own[0]], [*own[1]], sharpness), abs=1e-10)
            height = math.log(len(own[0]) * len(own[1])) / (2 * (sharpness or math.inf))
            mean = float((own[0] @ own[1].T).mean())
            assert mean + height - 1e-12 <= score <= float(largest[i, t]) + height + 1e-12


def test_every_embedding_gets_a_gradient() -> None:
    images, texts = random_set(1, 3, 0), random_set(1, 2, 1)
    full = EmbeddingSet(images.vectors.requires_grad_(), torch.ones(1, 3, dtype=torch.bool))
    SmoothChamfer()(full, EmbeddingSet(texts.vectors, torch.ones(1, 2, dtype=torch.bool))).sum().backward()
    assert full.vectors.grad is not None
    assert (full.vectors.grad.abs().sum(dim=-1) > 0).all()


def test_chamfer_is_its_limit() -> None:
    images, texts = random_set(5, 3, 0), random_set(4, 2, 1)
    chamfer = SmoothChamfer(sharpness=None)
    sharp = SmoothChamfer(sharpness=1e6)(images, texts)
    torch.testing.assert_close(chamfer(images, texts), sharp, rtol=0, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("sharpness", [None, 16.0])
def test_a_saved_model_keeps_its_sharpness(tmp_path: Path, sharpness: float | None) -> None:
    similarity = {"name": "smooth_chamfer", "sharpness": sharpness}
    recipe = parse_recipe({**tiny_tree(tmp_path), "similarity": similarity})
    build_model(recipe, captions=["a red dog"]).save(tmp_path / "model")
    assert openvse.load(tmp_path / "model").similarity.sharpness == sharpness


class Otherwise(SmoothChamfer):
    """Scores in another way, and promises nothing."""

    def forward(self, images: EmbeddingSet, texts: EmbeddingSet) -> Tensor:
        return -super().forward(images, texts)


class OtherwiseAgain(Otherwise):
    """Another name for it."""


def test_who_scores_in_another_way_does_not_inherit_that_the_maximum_is_near() -> None:
    assert SmoothChamfer.near_maximum and not SmoothChamfer.indexable
    assert not Otherwise.near_maximum and not OtherwiseAgain.near_maximum


@pytest.mark.parametrize("sharpness", [0.0, -1.0, math.nan, math.inf])
def test_other_sharpness_is_refused(sharpness: float) -> None:
    with pytest.raises(RecipeError, match="sharpness"):
        SmoothChamfer(sharpness=sharpness)
