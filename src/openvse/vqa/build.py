"""A model that answers questions, from its recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from openvse.assembly import build_aggregator, build_image_encoder, build_part, build_text_encoder
from openvse.errors import RecipeError
from openvse.fusion import FUSIONS, Fusion
from openvse.model import Tower
from openvse.specs import RunRecipe, TowerSpec, expect_task
from openvse.vqa.answerer import ANSWERS_FILE, Answerer
from openvse.vqa.answers import AnswerVocabulary
from openvse.vqa.recipe import VQARecipe


# As for retrieval: encoders find by a gradient what of a backbone can train.
@torch.inference_mode(False)
@torch.enable_grad()
def build_answerer(
    recipe: RunRecipe,
    *,
    questions: Sequence[str] = (),
    answers: AnswerVocabulary | None = None,
    assets: Path | None = None,
) -> Answerer:
    """Build an untrained model.

    Args:
        recipe: names the parts; one for visual question answering.
        questions: the training questions, from which a vocabulary is built; never those of validation or test.
        answers: what it chooses from; not read where there are assets.
        assets: a model folder whose answers, vocabulary, tokenizer and backbone configuration are read instead.

    Raises:
        RecipeError: a part is unknown, an option is wrong, or the parts do not fit together.
        ModelError: the assets are damaged.
    """
    recipe = expect_task(recipe, VQARecipe)
    if assets is not None:
        answers = AnswerVocabulary.load(assets / ANSWERS_FILE)
    if answers is None:
        raise RecipeError(
            f"recipe {recipe.name}: a new model needs answers to choose from, and none are given"
        )
    torch.manual_seed(recipe.seed)
    image = None
    if recipe.image is not None:
        image_encoder = build_image_encoder(recipe.image, recipe.embed_dim, assets)
        image = Tower(image_encoder, build_aggregator(recipe.image, recipe.embed_dim, "image", image_encoder))
    text_encoder = build_text_encoder(recipe.text, recipe.embed_dim, questions, assets)
    text = Tower(text_encoder, build_aggregator(recipe.text, recipe.embed_dim, "text", text_encoder))
    fusion: Fusion | None = None
    if recipe.fusion is not None:
        fusion = build_part(FUSIONS, recipe.fusion, "fusion", {"embed_dim": recipe.embed_dim})
    _check_aggregators(recipe, {"image": image, "text": text})
    return Answerer(
        image,
        text,
        fusion,
        answers,
        embed_dim=recipe.embed_dim,
        dropout=recipe.head.dropout,
        config=recipe.to_dict(),
    )


def _check_aggregators(recipe: VQARecipe, towers: Mapping[str, Tower[Any] | None]) -> None:
    """Raise RecipeError for an aggregator that leaves nothing to a fusion, or all where there is none."""
    specs: dict[str, TowerSpec | None] = {"image": recipe.image, "text": recipe.text}
    for side, tower in towers.items():
        spec = specs[side]
        if tower is None or spec is None:
            continue
        name = f"{side}.aggregator {spec.aggregator.name}"
        if recipe.fusion is None and not tower.aggregator.fixed_k:
            raise RecipeError(
                f"{name} keeps every token, and without pictures no fusion sums them up: choose one that makes the "
                f"same number of vectors of every question, such as score_attention"
            )
        if recipe.fusion is not None and tower.aggregator.fixed_k:
            raise RecipeError(
                f"{name} sums up before fusion {recipe.fusion.name} could let picture and question read each other: "
                f"set {side}.aggregator: tokens, and aggregate by fusion: {{name: pooled, aggregator: ...}}"
            )
